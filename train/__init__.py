"""Commands that train, translate and measure; `python -m train` shows the main job."""

import os

# TensorFlow's start-up notes would hide the progress bars. Set it to 0 to read them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# oneDNN's matrix products, which TensorFlow takes by itself on Intel's processors only: on an AMD
# EPYC (Zen 3) a training step is 15 to 25 % faster with them.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# TensorFlow takes the memory of a GPU as it needs it, instead of all at once from every GPU that
# it sees. Workers that are launched inherit it. Set it to false for a training that fills a GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
