"""Commands that train, translate and measure; `python -m train` shows the main job."""
