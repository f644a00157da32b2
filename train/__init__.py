"""Commands that train, translate and evaluate; `python -m train` runs a demo."""

import glob
import os

# TensorFlow's notes would hide the progress bars. Its errors matter where there are GPUs or other
# workers; elsewhere they say that there is no GPU, or wrongly that the processor lacks AVX-512.
# Set it to 0 to read everything.
_may_err = glob.glob("/dev/nvidia[0-9]*") or "TF_CONFIG" in os.environ
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if _may_err else "3")

# oneDNN's matrix products, which TensorFlow uses by default on Intel processors only: on an AMD
# EPYC (Zen 3) a training step is 15 to 25 % faster with them.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# TensorFlow allocates GPU memory as needed, instead of all at once on every GPU that it sees.
# Launched workers inherit this. Set it to false if a run needs the whole GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
