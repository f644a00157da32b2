"""Starts a training on several workers: `python -m train.launch`."""
