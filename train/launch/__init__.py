"""Starts training on several workers: `python -m train.launch`."""
