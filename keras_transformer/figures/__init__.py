"""Plots and attention maps: arrays in, a matplotlib Figure or an HTML page out."""

from keras_transformer.figures.attention import Attention
from keras_transformer.figures.plots import learning_curves, positional_encoding

__all__ = [
    "Attention",
    "learning_curves",
    "positional_encoding",
]
