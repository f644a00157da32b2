"""Commands that train, translate and measure; `python -m train` shows the main job."""

import os

# TensorFlow's start-up notes would hide the progress bars. Set it to 0 to read them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
