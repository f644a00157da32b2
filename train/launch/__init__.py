"""Starts training on several workers: `keras-transformer launch`."""
