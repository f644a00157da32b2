"""Additive attention: a small network, not a dot product, compares queries and keys."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.projection import add_projection
from keras_transformer.ops.softmax import masked_softmax


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(MultiHeadAttention):
    """`MultiHeadAttention` with the logits v . tanh(q + k), where v is learned for each head.

    It is called, cached and masked like `MultiHeadAttention`. With `num_heads=1` the logits are
    those of the paper, from a decoder's state to an encoder's; the heads, and the projections
    of values and outputs, are the Transformer's. Its logits need `key_dim` times the memory of
    the dot product, so use it for short texts and for comparisons. `kernel_initializer` also
    draws v.

    Source: Bahdanau et al. 2014, section A.1.2 (https://arxiv.org/abs/1409.0473).

    Args:
        num_heads: and all further arguments as for `MultiHeadAttention`.

    Call arguments:
        As for `MultiHeadAttention`.

    Returns:
        Same shape as `query`.

    Raises:
        ValueError: as `MultiHeadAttention` does.

    Examples:
        >>> layer = AdditiveAttention(num_heads=2)
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 7, 6))).shape)
        (3, 5, 4)
    """

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        _, key_dim = self._query_heads
        initializer = self.kernel_initializer
        # One projection a head to one number: a kernel (heads, key_dim).
        self.directions = add_projection(
            self, "score", key_dim, (1,) * self.num_heads, initializer, use_bias=False
        ).kernel

    def weights_of(self, queries, keys, mask=None, bias=None):
        directions = ops.cast(self.directions, queries.dtype)[:, None, :, None]
        pairs = ops.tanh(queries[..., :, None, :] + keys[..., None, :, :])
        # (..., heads, target, source, key_dim) by (heads, 1, key_dim, 1)
        return masked_softmax(ops.matmul(pairs, directions)[..., 0], mask, bias)
