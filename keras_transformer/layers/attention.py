"""Multi-head attention, written once and called on whole sequences or step by step."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_probability
from keras_transformer.layers.chunked_attention import attention_by_length, may_suit_chunks
from keras_transformer.layers.compiled import compiled_attention_weights, has_own_gradients
from keras_transformer.layers.fused_attention import fused_attention, suits_cudnn
from keras_transformer.layers.inputs import ChecksInputs, implicit_mask
from keras_transformer.layers.internals import carry_mask
from keras_transformer.layers.projection import TakesLoRA, add_projection
from keras_transformer.layers.quantization import InnerDropout
from keras_transformer.ops.attention import attention_weights, merge_heads, split_heads
from keras_transformer.ops.caches import append
from keras_transformer.ops.masks import causal_mask, check_attention_mask, combine_masks
from keras_transformer.ops.projection import known_rows


class ShowsAttention:
    """Adds `attention_scores` to a layer whose `attend` returns the pair of outputs and weights.

    `attend` is the forward pass, written once: `call` returns the first of the pair. A layer whose
    call takes more than these arguments overrides the method to name its own.
    """

    def attention_scores(self, inputs, padding_mask=None, attention_mask=None):
        """The attention weights of a call with the same arguments.

        Returns:
            Weights in [0, 1], (batch, heads, target, source); of a stack, a list with one entry a
            block.

        Raises:
            ValueError: if the layer was never called, so that it has no weights yet.
        """
        return scores_of(self, inputs, padding_mask=padding_mask, attention_mask=attention_mask)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ShowsAttention, ChecksInputs, TakesLoRA, keras.layers.Layer):
    """Lets every target position gather from all source positions, with several heads.

    Call it with one tensor for self-attention, with two for attention from the first
    to the second. The projections that read the same input are one matrix product.

    Source: Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762).

    Args:
        num_heads: number of heads, at least 1.
        key_dim: width of each head; the width of the query input divided by
            `num_heads` if None. The whole width makes wide heads, with `num_heads`
            times the weights.
        dropout: probability in [0, 1) with which an attention weight is dropped.
        use_bias: whether the four projections add a bias.
        kernel_initializer: of each projection by itself, Glorot as in the paper.

    Call arguments:
        query: (batch, target, dim).
        value: (batch, source, source_dim) to attend to; None means `query`.
        padding_mask: boolean (batch, source), True for a real token. The implicit Keras
            mask of what is attended to is used if None.
        attention_mask: boolean, broadcasts to (batch, target, source); True where
            attention is allowed. Both masks given: what both allow.
        training: whether dropout is applied.

    Returns:
        Same shape as `query`.

    Raises:
        ValueError: if `num_heads` or `key_dim` is below 1; if `key_dim` is None and the width of
            the query cannot be divided by `num_heads`; for inputs or masks of another rank or
            width, or a value in a later call only.

    Examples:
        >>> layer = MultiHeadAttention(num_heads=2)
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 7, 6))).shape)
        (3, 5, 4)
    """

    def __init__(
        self,
        num_heads,
        key_dim=None,
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        if key_dim is not None:
            check_integer("key_dim", key_dim)
        check_probability("dropout", dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self._dropout = InnerDropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, query_shape, value_shape=None):
        self._build_for(query=query_shape, value=value_shape)
        hidden_dim = query_shape[-1]
        if self.key_dim is None and hidden_dim % self.num_heads:
            raise ValueError(
                "hidden_dim must be divisible by num_heads so that every head gets the same "
                f"width; otherwise set key_dim. Received: hidden_dim={hidden_dim}, "
                f"num_heads={self.num_heads}."
            )
        inner = self.num_heads * (self.key_dim or hidden_dim // self.num_heads)
        self._self_attention = value_shape is None
        if self._self_attention:
            self.query_key_value = self._projection("query_key_value", hidden_dim, inner, 3)
        else:
            self.query = self._projection("query", hidden_dim, inner)
            self.key_value = self._projection("key_value", value_shape[-1], inner, 2)
        self.output_projection = self._projection("output", inner, hidden_dim)

    def call(self, query, value=None, padding_mask=None, attention_mask=None, training=None):
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return self.attend(query, value, **masks, training=training, with_scores=False)[0]

    def attention_scores(self, query, value=None, padding_mask=None, attention_mask=None):
        """The weights of a call with the same arguments, (batch, heads, target, source)."""
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return scores_of(self, query, value, **masks)

    def attend(
        self,
        query,
        value=None,
        padding_mask=None,
        attention_mask=None,
        training=None,
        with_scores=True,
    ):
        """The pair of what `call` and what `attention_scores` return.

        Scores may be None without `with_scores`: not every attention has them at hand.
        """
        if value is None and not self._self_attention:
            value = query
        self._check_inputs(query=query, value=value)
        padding_mask = implicit_mask(query if value is None else value, padding_mask)
        if value is None:
            queries, keys, values = self._project_heads(query, self.query_key_value, 3)
        else:
            queries = split_heads(self.query(query), self.num_heads)
            keys, values = self.keys_values(value)
        mask = combine_masks(padding_mask, check_attention_mask(attention_mask))
        heads = queries, keys, values
        return self.attend_heads(*heads, mask, training, with_scores=with_scores)

    def attend_heads(
        self, queries, keys, values, mask=None, training=None, bias=None, with_scores=True
    ):
        """Attention over projected heads (batch, heads, length, dim), then the output projection.

        A bias of the scores broadcasts to (batch, heads, target, source).

        Returns:
            The pair of outputs (batch, target, dim) and weights (batch, heads, target, source), or
            None without `with_scores` where they are never held.
        """
        mask = None if mask is None else ops.expand_dims(mask, 1)  # (batch, 1, target, source)
        is_plain = bias is None and type(self).weights_of is MultiHeadAttention.weights_of
        rate = self.dropout if training else 0.0
        context = None
        if is_plain and not with_scores and may_suit_chunks(queries, keys):
            generator = self._dropout.seed_generator if rate else None
            context = attention_by_length(queries, keys, values, mask, rate, generator)
        elif is_plain and not with_scores and not rate and suits_cudnn(queries, keys):
            context = fused_attention(queries, keys, values, mask)
        if context is not None:
            return self.output_projection(merge_heads(context)), None
        weights = self.weights_of(queries, keys, mask, bias)
        context = ops.matmul(self._dropout(weights, training=training), values)
        return self.output_projection(merge_heads(context)), weights

    def weights_of(self, queries, keys, mask=None, bias=None):
        """Attention weights; override to define another kind of attention.

        Args:
            queries: (batch, heads, target, key_dim).
            keys: (batch, heads, source, key_dim).
            mask: boolean, broadcasts to (batch, heads, target, source), or None.
            bias: of the scores, broadcasts to the same, or None.

        Returns:
            Weights in [0, 1], (batch, heads, target, source); zeros in a row that may attend to
            nothing.
        """
        if bias is None and has_own_gradients(queries):
            return compiled_attention_weights(queries, keys, mask)
        return attention_weights(queries, keys, mask, bias)

    def keys_values(self, value):
        """Projects (batch, source, dim) to keys and values, each (batch, heads, source, dim)."""
        return self._project_heads(value, self.key_value, 2)

    def attend_to(self, query, keys, values, mask=None):
        """Like `attend`, from `query` (batch, target, dim) to what `keys_values` returned."""
        queries = split_heads(self.query(query), self.num_heads)
        return self.attend_heads(queries, keys, values, mask)

    def step(self, inputs, cache, mask, position=None):
        """One position of causal self-attention, for several beams of each row.

        Args:
            inputs: vectors at the newest position, (batch, beams, dim).
            cache: the pair of keys and values of the earlier steps, each
                (batch, heads, cached, key_dim): one position a beam and step. None reads the
                first positions of a sequence in one pass: the inputs are then
                (batch, positions, dim), and each sees itself and those before it.
            mask: boolean, (batch, beams, cached + beams), True where a beam may look: at
                its own past and its newest position, as of `ops.masks.beam_mask`; None if
                there is one beam.
            position: number of earlier steps, an integer scalar, if the cache has its full
                size from the first step on, and so has the mask, which then is not None; None
                for a cache that grows.

        Returns:
            The pair of outputs, (batch, beams, dim), and the cache, longer by `beams` if it grows.
        """
        query, key, value = self._project_heads(inputs, self.query_key_value, 3)
        if cache is None:
            mask = causal_mask(ops.shape(inputs)[1]) if mask is None else mask
            return self.attend_heads(query, key, value, mask, with_scores=False)[0], (key, value)
        start = None if position is None else position * inputs.shape[1]
        keys, values = append(cache[0], key, start), append(cache[1], value, start)
        outputs, _ = self.attend_heads(query, keys, values, mask)
        return outputs, (keys, values)

    def _project_heads(self, inputs, projection, count):
        """`count` projections side by side, each (batch, heads, length, key_dim)."""
        projected = projection(inputs)
        dim = projected.shape[-1] // (count * self.num_heads)
        shape = (known_rows(inputs), ops.shape(inputs)[1], count, self.num_heads, dim)
        # One transpose for all; its outermost axis is taken apart without a copy.
        return ops.unstack(ops.transpose(ops.reshape(projected, shape), (2, 0, 3, 1, 4)), count)

    def _projection(self, name, input_dim, output_dim, count=1):
        initializer = self.kernel_initializer
        return add_projection(self, name, input_dim, output_dim, initializer, count, self.use_bias)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, query_shape, value_shape=None):
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def scores_of(layer, *inputs, **masks):
    """What `attend` of a layer returns second, for inputs as the user has them."""
    return layer.attend(*(as_called(layer, given) for given in inputs), **masks)[1]


def as_called(layer, inputs):
    """`inputs` as Keras hands them to `call`: in the dtype of the layer, with their mask."""
    if not layer.built:
        raise ValueError(
            "Call the layer before you ask for its attention. "
            f"Received: {layer.name}, which has no weights yet."
        )
    if isinstance(inputs, (list, tuple)):
        return [as_called(layer, each) for each in inputs]
    if inputs is None or keras.backend.standardize_dtype(inputs.dtype) == "bool":
        return inputs
    tensor = ops.cast(inputs, layer.compute_dtype)
    carry_mask(inputs, tensor)
    return tensor
