"""Plots and attention maps: arrays in, a matplotlib Figure or an HTML page out."""

from keras_transformer.figures.attention import (
    Attention,
    attention_grid,
    attention_heat_map,
    attention_page,
)
from keras_transformer.figures.plots import learning_curves, positional_encoding, schedule

__all__ = [
    "Attention",
    "attention_grid",
    "attention_heat_map",
    "attention_page",
    "learning_curves",
    "positional_encoding",
    "schedule",
]
