"""Loads released weights of other libraries into models of this one."""

from keras_transformer.convert.gpt2 import arrays_of_keras_hub_gpt2, load_gpt2

__all__ = ["arrays_of_keras_hub_gpt2", "load_gpt2"]
