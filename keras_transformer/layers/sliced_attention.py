"""Self-attention of narrow heads, which see a slice of the vectors, with or without weights."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.attention_scores import AttentionScoresMixin, scores_are_recorded
from keras_transformer.layers.checks import InputChecksMixin, NotQuantizedMixin, implicit_mask
from keras_transformer.layers.projection import add_projection
from keras_transformer.ops.attention import attend, merge_heads, split_heads
from keras_transformer.ops.masks import as_attention_mask, combine_masks


@keras.saving.register_keras_serializable(package="keras_transformer")
class SlicedAttention(
    AttentionScoresMixin, InputChecksMixin, NotQuantizedMixin, keras.layers.Layer
):
    """Cuts every vector into slices and attends with each slice separately: one head per slice.

    Of d numbers and h heads, what a head sees and what its queries, keys and values cost:

    | heads  | layer                              | sees         | weights of all heads |
    | ------ | ---------------------------------- | ------------ | -------------------- |
    | narrow | `SlicedAttention(h)`               | d / h of d   | 3 d d / h            |
    | usual  | `MultiHeadAttention(h)`            | d, as d / h  | 3 d d                |
    | wide   | `MultiHeadAttention(h, key_dim=d)` | all d        | 3 d d h              |

    Without projections, queries, keys and values are the slice as it is, the outputs are put
    side by side, and nothing is learned; with one head that is softmax(X X^T / sqrt(d)) X,
    the plainest self-attention there is.

    Source: Bloem 2019, "Transformers from scratch" (https://peterbloem.nl/blog/transformers).

    Args:
        num_heads: number of slices, at least 1.
        use_projections: whether every head projects its slice to queries, keys and values,
            and an output projection with a bias mixes the heads.

    Call arguments:
        inputs: (batch, length, dim).
        padding_mask: boolean (batch, length), True for a real token; the implicit Keras
            mask of `inputs` if None.
        attention_mask: boolean, broadcasts to (batch, length, length); True where
            attention is allowed.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `num_heads` is below 1 or does not divide the width of the inputs.

    Examples:
        >>> layer = SlicedAttention(num_heads=1, use_projections=False)
        >>> layer(keras.ops.eye(2)[None])[0].numpy().round(2)
        array([[0.67, 0.33],
               [0.33, 0.67]], dtype=float32)
    """

    def __init__(self, num_heads, use_projections=True, **kwargs):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        self.num_heads = num_heads
        self.use_projections = use_projections
        self.supports_masking = True

    def build(self, input_shape):
        self._build_for(inputs=input_shape)
        hidden_dim = input_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                "hidden_dim must be divisible by num_heads so that every slice has the same "
                f"width. Received: hidden_dim={hidden_dim}, num_heads={self.num_heads}."
            )
        if self.use_projections:
            dim, initializer = hidden_dim // self.num_heads, keras.initializers.GlorotUniform()
            self.query_key_value = add_projection(
                self,
                "query_key_value",
                dim,
                (dim,) * (3 * self.num_heads),
                initializer,
                use_bias=False,
            ).kernel
            self.output_projection = add_projection(
                self, "output", hidden_dim, hidden_dim, initializer
            )

    def call(self, inputs, padding_mask=None, attention_mask=None):
        self._check_inputs(inputs=inputs)
        mask = combine_masks(implicit_mask(inputs, padding_mask), as_attention_mask(attention_mask))
        mask = None if mask is None else ops.expand_dims(mask, 1)  # (batch, 1, length, length)
        slices = split_heads(inputs, self.num_heads)  # (batch, heads, length, dim)
        queries = keys = values = slices
        if self.use_projections:
            dim = slices.shape[-1]
            kernel = ops.reshape(self.query_key_value, (self.num_heads, 3 * dim, dim))
            kernel = ops.swapaxes(ops.cast(kernel, slices.dtype), 1, 2)
            queries, keys, values = ops.split(ops.matmul(slices, kernel), 3, axis=-1)
        keeps_weights = scores_are_recorded()
        context, weights = attend(queries, keys, values, mask, keeps_weights=keeps_weights)
        self.record_scores(weights)
        outputs = merge_heads(context)
        return self.output_projection(outputs) if self.use_projections else outputs

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "use_projections": self.use_projections,
        }
