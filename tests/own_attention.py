"""An attention as users write one; tests of the commands import a copy of this file."""

import keras
from keras import ops

import keras_transformer as kt


@keras.saving.register_keras_serializable(package="own")
class TemperatureAttention(kt.MultiHeadAttention):
    """Dot products divided by a temperature, which each head learns."""

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.temperature = self.add_weight((self.num_heads, 1, 1), "ones", name="temperature")

    def weights_of(self, queries, keys, mask=None, bias=None):
        queries = queries / ops.cast(self.temperature, queries.dtype)
        return super().weights_of(queries, keys, mask, bias)
