"""Multi-head attention, written once and called on whole sequences or step by step."""

import contextvars
import itertools

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_probability
from keras_transformer.layers.checks import InputChecksMixin, implicit_mask
from keras_transformer.layers.compiled import compiled_attention_weights, has_own_gradients
from keras_transformer.layers.dropout import InnerDropout
from keras_transformer.layers.memory_efficient_attention import memory_efficient_attention
from keras_transformer.layers.projection import LoRAMixin, add_projection
from keras_transformer.ops.attention import (
    append_to_cache,
    attention_weights,
    merge_heads,
    split_heads,
)
from keras_transformer.ops.masks import causal_mask, check_attention_mask, combine_masks
from keras_transformer.ops.projection import known_rows

# While `AttentionScoresMixin.attend` runs: the weights of each attention layer called so far.
_recorded_scores = contextvars.ContextVar("recorded_scores", default=None)


def scores_are_recorded():
    """Whether the call that is running must record its attention weights."""
    return _recorded_scores.get() is not None


class AttentionScoresMixin:
    """Adds `attention_scores` to attention layers, and to the blocks and stacks that hold them.

    `call` stays the only forward pass: while it runs, each attention layer records its weights if
    somebody asks for them. A layer that holds others overrides `scores_in`, and one whose call
    takes other arguments `attention_scores`, to name them.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "attend" in vars(cls):  # which `call` called before version 0.3
            raise TypeError(
                "Override `call`, and call `record_scores` in it, instead of `attend`. Received: "
                f"{cls.__name__}."
            )

    def attention_scores(self, inputs, padding_mask=None, attention_mask=None):
        """The attention weights of a call with the same arguments.

        Returns:
            Weights in [0, 1], (batch, heads, target, source); of a stack, a list with one entry a
            block.

        Raises:
            ValueError: if the layer was never called, so that it has no weights yet.
        """
        return self.attend(inputs, padding_mask, attention_mask)[1]

    def attend(self, *args, **kwargs):
        """The pair of the outputs and the attention scores of a call with the same arguments."""
        if not self.built:
            raise ValueError(
                "Call the layer before you ask for its attention. "
                f"Received: {self.name}, which has no weights yet."
            )
        recorded = {}
        token = _recorded_scores.set(recorded)
        try:
            outputs = self(*args, **kwargs, training=False)
        finally:
            _recorded_scores.reset(token)
        return outputs, self.scores_in(recorded)

    def record_scores(self, weights):
        """Keeps the weights of a call if somebody asks for them."""
        if scores_are_recorded():
            _recorded_scores.get()[self] = weights

    def scores_in(self, recorded):
        """The scores of this layer among those recorded, a dictionary from layer to weights."""
        if self not in recorded:
            raise ValueError(
                "Attention scores come from a call with tensors, not symbolic inputs, of a layer "
                f"whose call passes them to `record_scores`. Received: none from {self.name}."
            )
        return recorded[self]


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(AttentionScoresMixin, InputChecksMixin, LoRAMixin, keras.layers.Layer):
    """Lets every target position attend to all source positions, with several heads.

    Call it with one tensor for self-attention, with two for attention from the first to the
    second; like Keras's layer, it takes another key third. The projections that read the same
    input are one matrix product.

    Source: Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762).

    Args:
        num_heads: number of heads, at least 1.
        key_dim: width of each head; the width of the query input divided by
            `num_heads` if None. The whole width makes wide heads, with `num_heads`
            times the weights.
        dropout: probability in [0, 1) with which an attention weight is dropped.
        use_bias: whether the four projections add a bias.
        kernel_initializer: draws each projection separately; Glorot as in the paper.

    Call arguments:
        query: (batch, target, dim).
        value: (batch, source, source_dim) to attend to; None means `query`.
        key: what the query is compared with, of the shape of `value`; None means `value`.
        padding_mask: boolean (batch, source), True for a real token; as all masks, by name. The
            implicit Keras mask of what is attended to is used if None.
        attention_mask: boolean, broadcasts to (batch, target, source); True where
            attention is allowed. Both masks given: what both allow.
        training: whether dropout is applied.

    Returns:
        Same shape as `query`.

    Raises:
        ValueError: if `num_heads` or `key_dim` is below 1; if `key_dim` is None and the width of
            the query cannot be divided by `num_heads`; for inputs or masks of another rank or
            width, a value in a later call only, or a key that is not like the value.

    Examples:
        >>> layer = MultiHeadAttention(num_heads=2)
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 7, 6))).shape)
        (3, 5, 4)
    """

    causal = False  # whether no position attends to later ones, whatever the masks

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

    def build(self, query_shape, value_shape=None, key_shape=None):
        self._build_for(query=query_shape, value=value_shape, key=value_shape)
        _check_key(value_shape, key_shape)
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

    def call(
        self,
        query,
        value=None,
        key=None,
        *,
        padding_mask=None,
        attention_mask=None,
        training=None,
    ):
        if value is None and not self._self_attention:
            value = query
        _check_key(getattr(value, "shape", None), getattr(key, "shape", None))
        self._check_inputs(query=query, value=value, key=key)
        padding_mask = implicit_mask(query if value is None else value, padding_mask)
        if value is None:
            queries, keys, values = self._project_heads(query, self.query_key_value, 3)
        else:
            queries = split_heads(self.query(query), self.num_heads)
            keys, values = self.keys_values(value, key)
        mask = combine_masks(padding_mask, check_attention_mask(attention_mask))
        return self.attend_heads(queries, keys, values, mask, training)

    def attention_scores(
        self, query, value=None, key=None, *, padding_mask=None, attention_mask=None
    ):
        """The weights of a call with the same arguments, (batch, heads, target, source)."""
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return self.attend(query, value, key, **masks)[1]

    def attend_heads(self, queries, keys, values, mask=None, training=None, bias=None):
        """Attention over projected heads (batch, heads, length, dim), then the output projection.

        A bias of the logits broadcasts to (batch, heads, target, source).

        Returns:
            (batch, target, dim).
        """
        mask = None if mask is None else ops.expand_dims(mask, 1)  # (batch, 1, target, source)
        is_dot_product = bias is None and type(self).weights_of is MultiHeadAttention.weights_of
        context = None
        if is_dot_product and not scores_are_recorded():
            rate = self.dropout if training else 0.0
            generator = self._dropout.seed_generator if rate else None
            context = memory_efficient_attention(queries, keys, values, mask, rate, generator)
        if context is None:
            weights = self.weights_of(queries, keys, mask, bias)
            self.record_scores(weights)
            context = ops.matmul(self._dropout(weights, training=training), values)
        return self.output_projection(merge_heads(context))

    def weights_of(self, queries, keys, mask=None, bias=None):
        """Attention weights; override to define another kind of attention.

        Args:
            queries: (batch, heads, target, key_dim).
            keys: (batch, heads, source, key_dim).
            mask: boolean, broadcasts to (batch, heads, target, source), or None.
            bias: added to the logits, broadcasts to the same, or None.

        Returns:
            Weights in [0, 1], (batch, heads, target, source); zeros in a fully masked row.
        """
        if bias is None and has_own_gradients(queries):
            return compiled_attention_weights(queries, keys, mask)
        return attention_weights(queries, keys, mask, bias)

    def keys_values(self, value, key=None):
        """Projects (batch, source, dim) to keys and values, each (batch, heads, source, dim)."""
        if key is None or key is value:
            return self._project_heads(value, self.key_value, 2)
        inner = self.key_value.kernel.shape[0] // 2
        [keys] = self._project_heads(key, self.key_value.rows(0, inner), 1)
        [values] = self._project_heads(value, self.key_value.rows(inner, 2 * inner), 1)
        return keys, values

    def attend_to(self, query, keys, values, mask=None):
        """Like a call, from `query` (batch, target, dim) to what `keys_values` returned."""
        queries = split_heads(self.query(query), self.num_heads)
        return self.attend_heads(queries, keys, values, mask)

    def empty_cache(self, batch_size, length=None, num_beams=1):
        """The cache before the first `step`: a pair of keys and values.

        An attention with another cache overrides it: a tuple of tensors with these axes.

        Args:
            batch_size: number of rows, an integer scalar.
            length: number of steps to make room for, for a cache of full size; None for a cache
                that grows.
            num_beams: number of beams per row to make room for.

        Returns:
            A pair of tensors, each (batch, heads, length * num_beams, key_dim), or
            (batch, heads, 0, key_dim).
        """
        positions = 0 if length is None else length * num_beams
        key_dim = self.output_projection.kernel.shape[1] // self.num_heads
        shape = (batch_size, self.num_heads, positions, key_dim)
        return (ops.zeros(shape, self.compute_dtype),) * 2

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
            return self.attend_heads(query, key, value, mask), (key, value)
        start = None if position is None else position * inputs.shape[1]
        keys = append_to_cache(cache[0], key, start)
        values = append_to_cache(cache[1], value, start)
        return self.attend_heads(query, keys, values, mask), (keys, values)

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

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _check_key(value_shape, key_shape):
    if key_shape is None:
        return
    shapes = [None if shape is None else tuple(shape) for shape in (value_shape, key_shape)]
    if value_shape is None or any(
        None not in sizes and sizes[0] != sizes[1]
        for sizes in itertools.zip_longest(*(shape[1:] for shape in shapes), fillvalue=0)
    ):
        raise ValueError(
            "key must have the shape of value, with which it goes. Received: value of shape {}, "
            "key of shape {}.".format(*shapes)
        )
