"""Multi-head attention, written once and called on whole sequences or step by step."""

import itertools
import math

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number, check_probability
from keras_transformer.layers.attention_scores import (
    AttentionScoresMixin,
    recorded_scores,
    scores_are_recorded,
)
from keras_transformer.layers.checks import (
    InputChecksMixin,
    check_arguments,
    explicit_mask,
    implicit_mask,
    mask_per_token,
)
from keras_transformer.layers.dropout import InnerDropout
from keras_transformer.layers.freezing import FrozenPartsMixin
from keras_transformer.layers.normalization import RMSNormalization
from keras_transformer.layers.projection import LoRAMixin, add_projection
from keras_transformer.layers.rotary_embedding import RotaryEmbedding
from keras_transformer.ops.attention import (
    attend,
    merge_heads,
    mix,
    repeat_heads,
    split_heads,
)
from keras_transformer.ops.cache import append_to_cache
from keras_transformer.ops.masks import as_attention_mask, causal_mask, combine_masks
from keras_transformer.ops.positions import spread_by_distance
from keras_transformer.ops.projection import known_rows
from keras_transformer.ops.softmax import attention_weights


def given(arguments):
    """The arguments that are not None; a custom layer need not accept the others."""
    return {name: value for name, value in arguments.items() if value is not None}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(
    AttentionScoresMixin, InputChecksMixin, FrozenPartsMixin, LoRAMixin, keras.layers.Layer
):
    """Lets every target position attend to all source positions, with several heads.

    Call it with one tensor for self-attention, with two for attention from the first to the
    second, and with a third for other keys, like `keras.layers.MultiHeadAttention`, whose numbers
    it gives; but a position that may attend to nothing gets zeros from the heads, not their mean.
    The projections that read the same input are one matrix product.

    Source: Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762); shared keys and
    values: Ainslie et al. 2023 (https://arxiv.org/abs/2305.13245); normalised queries and keys:
    Henry et al. 2020 (https://arxiv.org/abs/2010.04245).

    Args:
        num_heads: number of heads, at least 1.
        key_dim: width of each head; the width of the query input divided by
            `num_heads` if None. The whole width makes wide heads, with `num_heads`
            times the weights.
        value_dim: width of each head's values; `key_dim` if None.
        dropout: probability in [0, 1) with which an attention weight is dropped.
        use_bias: whether the four projections add a bias.
        kernel_initializer: draws each projection separately; Glorot as in the paper.
        num_key_value_heads: number of heads of keys and values, a divisor of `num_heads`, each
            shared by as many neighbouring heads of queries, so that the cache of decoding is that
            much smaller; `num_heads` if None. 1 is multi-query attention.
        rotary: the arguments of a `RotaryEmbedding`, a dictionary, which then rotates queries and
            keys of self-attention; None for none.
        query_key_norm: added to the mean square by an RMS normalisation of each head's queries
            and keys, before they are rotated; None for no normalisation.
        soft_cap: limits the products of queries and keys, as of `ops.softmax.soft_capped`; None
            for no limit.
        use_output_bias: whether the output projection adds a bias; as `use_bias` if None.

    Call arguments:
        query: (batch, target, dim).
        value: (batch, source, source_dim) to attend to; None means `query`.
        key: what the query is compared with, (batch, source, source_dim); None means `value`.
        padding_mask: boolean (batch, source), True for a real token; as all masks, by name. The
            implicit Keras mask of what is attended to is used if None. Zeros and ones in integers
            are as good as booleans, in every mask.
        attention_mask: boolean, broadcasts to (batch, target, source), or (target, source); True
            where attention is allowed. All masks given: what all of them allow.
        attention_bias: added to the scaled products of queries and keys, broadcasts to
            (batch, heads, target, source), or None; such as of `RelativePositionBias`; or that of
            each distance, (1, heads, target + source), as of `ops.positions.spread_by_distance`,
            which lets long sequences hold only some weights at a time.
        query_mask: boolean (batch, target); a position that is False attends to nothing. The
            implicit mask of the query is not used.
        value_mask: another, (batch, source), under Keras's name.
        key_mask: another, (batch, source); the implicit Keras mask of `key` if None.
        use_causal_mask: whether no position attends to later ones.
        return_attention_scores: whether the weights are returned as well.
        training: whether dropout is applied.

    Returns:
        Same shape as `query`; with `return_attention_scores` the pair of this and the weights
        before dropout, (batch, heads, target, source).

    Raises:
        ValueError: if a number is out of its range, or `num_key_value_heads` does not divide
            `num_heads`; for an `activity_regularizer`; if `key_dim` is None and the width of the
            query cannot be divided by `num_heads`; for inputs or masks of another rank or width, a
            value in a later call only, or a key that is not like the value; for `rotary` with a
            value.

    Examples:
        >>> layer = MultiHeadAttention(num_heads=2)
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 7, 6))).shape)
        (3, 5, 4)
    """

    causal = False  # whether no position attends to later ones, whatever the masks
    takes_bias = True  # whether `call` and `step` take an `attention_bias`
    stepwise_methods = ("step", "attend_to")  # they compute step by step what `call` does

    def __init_subclass__(cls, **kwargs):
        """Checks that a subclass with another `call` has other steps, too.

        One that overrides `call` or `step` takes no bias unless it says so.
        """
        super().__init_subclass__(**kwargs)
        base = next(each for each in cls.__mro__[1:] if issubclass(each, MultiHeadAttention))
        own = {name for each in cls.__mro__[: cls.__mro__.index(base)] for name in vars(each)}
        missing = [name for name in cls.stepwise_methods if name not in own]
        if "call" in own and missing:
            raise ValueError(
                f"An attention that overrides call must override {' and '.join(missing)}, too, so "
                "that a decoder computes the same step by step. An attention for encoders alone "
                'says stepwise_methods = (), one for Transformer-XL stepwise_methods = ("step",). '
                f"Received: class {cls.__name__}."
            )
        if own & {"call", "step"} and "takes_bias" not in own:
            cls.takes_bias = False

    def __init__(
        self,
        num_heads,
        key_dim=None,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        *,
        kernel_initializer="glorot_uniform",
        num_key_value_heads=None,
        rotary=None,
        query_key_norm=None,
        soft_cap=None,
        use_output_bias=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if self.activity_regularizer is not None:
            raise ValueError(
                "activity_regularizer is not supported: Keras's attention has it on each of its "
                "four projections, of which some are one product here. Add a penalty to the "
                "outputs with keras.layers.ActivityRegularization. Received: activity_regularizer="
                f"{kwargs['activity_regularizer']!r}."
            )
        check_integer("num_heads", num_heads)
        widths = {"key_dim": key_dim, "value_dim": value_dim}
        for name, number in {**widths, "num_key_value_heads": num_key_value_heads}.items():
            if number is not None:
                check_integer(name, number)
        check_probability("dropout", dropout)
        check_arguments("rotary", rotary)
        for name, number in {"query_key_norm": query_key_norm, "soft_cap": soft_cap}.items():
            if number is not None:
                check_number(name, number, above=0)
        if num_heads % (num_key_value_heads or num_heads):
            raise ValueError(
                "num_key_value_heads must divide num_heads so that each is shared by as many "
                f"heads. Received: num_heads={num_heads}, "
                f"num_key_value_heads={num_key_value_heads}."
            )
        if soft_cap is not None and not self._is_dot_product:
            raise ValueError(
                "soft_cap limits the products of MultiHeadAttention, and this attention has a "
                f"weights_of of its own. Received: soft_cap={soft_cap} for {type(self).__name__}."
            )
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.num_key_value_heads = num_key_value_heads
        self.rotary = rotary
        self.query_key_norm = query_key_norm
        self.soft_cap = soft_cap
        self.use_output_bias = use_output_bias
        self._dropout = InnerDropout(dropout, dtype=self.dtype_policy)
        self._rotary = None
        if rotary is not None:
            self._rotary = RotaryEmbedding(**rotary, dtype=self.dtype_policy, name="rotary")
        self.query_norm = self.key_norm = None
        if query_key_norm is not None:
            self.query_norm, self.key_norm = (
                RMSNormalization(
                    epsilon=query_key_norm,
                    trainable=self.trainable and self.lora is None,
                    dtype=self.dtype_policy,
                    name=name,
                )
                for name in ("query_norm", "key_norm")
            )
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
        if value_shape is not None and self.rotary is not None:
            raise ValueError(
                "Rotary positions are those of one sequence: call the attention with one tensor, "
                f"or set rotary=None. Received: a value of shape {tuple(value_shape)}."
            )
        key_dim = self.key_dim or hidden_dim // self.num_heads
        # Number and width of the heads.
        shared = self.num_key_value_heads or self.num_heads
        self._query_heads = (self.num_heads, key_dim)
        self._key_heads, self._value_heads = (shared, key_dim), (shared, self.value_dim or key_dim)
        self._self_attention = value_shape is None
        if self._self_attention:
            parts = self._query_heads, self._key_heads, self._value_heads
            self.query_key_value = self._projection("query_key_value", hidden_dim, *parts)
        else:
            self.query = self._projection("query", hidden_dim, self._query_heads)
            self.key_value = self._projection(
                "key_value", value_shape[-1], self._key_heads, self._value_heads
            )
        inner = self.num_heads * self._value_heads[1]
        has_bias = self.use_bias if self.use_output_bias is None else self.use_output_bias
        self.output_projection = add_projection(
            self, "output", inner, hidden_dim, self.kernel_initializer, has_bias
        )
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.build((None, None, None, key_dim))
        if self._rotary is not None:
            self._rotary.build((None, None, None, key_dim))

    def call(
        self,
        query,
        value=None,
        key=None,
        *,
        padding_mask=None,
        attention_mask=None,
        attention_bias=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
    ):
        if value is None and not self._self_attention:
            value = query
        _check_key(getattr(value, "shape", None), getattr(key, "shape", None))
        self._check_inputs(query=query, value=value, key=key)
        source = query if value is None else value
        if attention_bias is not None:
            self._check_bias(attention_bias, query.shape[1], source.shape[1])
        mask = _mask_of_call(
            query, source, padding_mask, attention_mask, query_mask, value_mask, key_mask
        )
        if use_causal_mask:
            mask = combine_masks(mask, causal_mask(ops.shape(query)[1], ops.shape(source)[1]))
        if value is None:
            heads = self._self_heads(query)
        else:
            heads = self._queries(query), *self.keys_values(value, key)
        if not return_attention_scores:
            return self.attend_heads(*heads, mask, training, attention_bias)
        with recorded_scores() as recorded:
            outputs = self.attend_heads(*heads, mask, training, attention_bias)
        return outputs, self.scores_in(recorded)

    def compute_output_spec(self, query, *args, return_attention_scores=False, **kwargs):
        outputs = super().compute_output_spec(query, *args, **kwargs)
        if not return_attention_scores:
            return outputs
        value = args[0] if args else kwargs.get("value")
        source = query if value is None else value
        shape = (query.shape[0], self.num_heads, query.shape[1], source.shape[1])
        return outputs, keras.KerasTensor(shape, outputs.dtype)

    def attend_heads(self, queries, keys, values, mask=None, training=None, bias=None):
        """Attention over projected heads (batch, heads, length, dim), then the output projection.

        A bias of the logits is an `attention_bias` of a call.

        Returns:
            (batch, target, dim).
        """
        mask = None if mask is None else ops.expand_dims(mask, 1)  # (batch, 1, target, source)
        rate = self.dropout if training else 0.0
        generator = self._dropout.seed_generator if rate else None
        if self._is_dot_product:
            is_recorded = scores_are_recorded()
            context, weights = attend(
                queries, keys, values, mask, bias, self.soft_cap, rate, generator, is_recorded
            )
        else:
            keys, values = (repeat_heads(each, self.num_heads) for each in (keys, values))
            if bias is not None and len(bias.shape) == 3:
                bias = spread_by_distance(bias, ops.shape(queries)[2])
            weights = ops.cast(self.weights_of(queries, keys, mask, bias), values.dtype)
            context = mix(weights, values, rate, generator)
        self.record_scores(weights)
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
        return attention_weights(queries, keys, mask, bias, self.soft_cap)

    @property
    def _is_dot_product(self):
        return type(self).weights_of is MultiHeadAttention.weights_of

    def keys_values(self, value, key=None):
        """Projects (batch, source, dim) to keys and values, each (batch, heads, source, dim)."""
        if key is None or key is value:
            keys, values = self._project_heads(
                value, self.key_value, self._key_heads, self._value_heads
            )
        else:
            end, rows = math.prod(self._key_heads), self.key_value.kernel.shape[0]
            [keys] = self._project_heads(key, self.key_value.rows(0, end), self._key_heads)
            [values] = self._project_heads(value, self.key_value.rows(end, rows), self._value_heads)
        return self._normalised(keys, self.key_norm), values

    def attend_to(self, query, keys, values, mask=None):
        """Like a call, from `query` (batch, target, dim) to what `keys_values` returned."""
        return self.attend_heads(self._queries(query), keys, values, mask)

    def empty_cache(self, batch_size, length=None, num_beams=1):
        """The cache before the first `step`: a pair of keys and values.

        An attention with another cache overrides it: a tuple of tensors with these axes.

        Args:
            batch_size: number of rows, an integer scalar.
            length: number of steps to make room for, for a cache of full size; None for a cache
                that grows.
            num_beams: number of beams per row to make room for.

        Returns:
            A pair of tensors, (batch, heads, length * num_beams, key_dim) and the same of
            value_dim; of length 0 if they grow. The heads are `num_key_value_heads`.
        """
        positions = 0 if length is None else length * num_beams
        return tuple(
            ops.zeros((batch_size, num_heads, positions, dim), self.compute_dtype)
            for num_heads, dim in (self._key_heads, self._value_heads)
        )

    def step(self, inputs, cache, mask, position=None, attention_bias=None):
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
            attention_bias: as in a call, broadcasts to (batch, heads, beams, cached + beams).

        Returns:
            The pair of outputs, (batch, beams, dim), and the cache, longer by `beams` if it grows.
        """
        if cache is None:
            query, key, value = self._self_heads(inputs)
            mask = causal_mask(ops.shape(inputs)[1]) if mask is None else mask
            outputs = self.attend_heads(query, key, value, mask, bias=attention_bias)
            return outputs, (key, value)
        num_beams = inputs.shape[1]
        reached = position
        if position is None and self._rotary is not None:
            reached = ops.shape(cache[0])[2] // num_beams
        query, key, value = self._self_heads(inputs, reached)
        start = None if position is None else position * num_beams
        keys = append_to_cache(cache[0], key, start)
        values = append_to_cache(cache[1], value, start)
        outputs = self.attend_heads(query, keys, values, mask, bias=attention_bias)
        return outputs, (keys, values)

    def _queries(self, query):
        """The queries of attention to a value, normalised."""
        [queries] = self._project_heads(query, self.query, self._query_heads)
        return self._normalised(queries, self.query_norm)

    def _self_heads(self, inputs, position=None):
        """Queries, keys and values of self-attention, normalised and rotated.

        All inputs stand at one `position`, an integer scalar; or they follow each other if None.
        """
        parts = self._query_heads, self._key_heads, self._value_heads
        queries, keys, values = self._project_heads(inputs, self.query_key_value, *parts)
        queries = self._normalised(queries, self.query_norm)
        keys = self._normalised(keys, self.key_norm)
        if self._rotary is None:
            return queries, keys, values
        if position is None:
            return self._rotary(queries), self._rotary(keys), values
        return self._rotary.step(queries, position), self._rotary.step(keys, position), values

    def _check_bias(self, bias, target, source):
        """Raises ValueError for an `attention_bias` of another rank, or number of distances."""
        shape, distances = tuple(bias.shape), None
        if None not in (target, source):
            distances = target + source
        if len(shape) == 3 and distances is not None:
            fits = shape[0] == 1 and shape[1] == self.num_heads and shape[2] in (None, distances)
        else:
            fits = len(shape) in (3, 4)
        if not fits:
            raise ValueError(
                "attention_bias must have the shape (batch, heads, target, source), where the "
                "first two axes may be 1, or (1, heads, target + source), one number for each "
                f"distance. Received: shape {shape}."
            )

    def _normalised(self, heads, norm):
        return heads if norm is None else norm(heads)

    def _project_heads(self, inputs, projection, *parts):
        """What a projection has side by side, each (batch, heads, length, dim).

        Args:
            inputs: (batch, length, dim).
            projection: a `Projection`.
            *parts: for each, the number and the width of its heads.
        """
        projected = projection(inputs)
        if len(set(parts)) > 1:
            *ends, _ = itertools.accumulate(num_heads * dim for num_heads, dim in parts)
            projected = ops.split(projected, ends, axis=-1)
            return [split_heads(each, part[0]) for each, part in zip(projected, parts, strict=True)]
        shape = (known_rows(inputs), ops.shape(inputs)[1], len(parts), *parts[0])
        # One transpose for all; its outermost axis is taken apart without a copy.
        heads = ops.transpose(ops.reshape(projected, shape), (2, 0, 3, 1, 4))
        return ops.unstack(heads, len(parts))

    def _projection(self, name, input_dim, *parts):
        widths = [num_heads * dim for num_heads, dim in parts]
        return add_projection(self, name, input_dim, widths, self.kernel_initializer, self.use_bias)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "num_key_value_heads": self.num_key_value_heads,
            "rotary": self.rotary,
            "query_key_norm": self.query_key_norm,
            "soft_cap": self.soft_cap,
            "use_output_bias": self.use_output_bias,
        }


def _mask_of_call(query, source, padding_mask, attention_mask, query_mask, value_mask, key_mask):
    """The conjunction of all masks of a call, (batch, target, source), or None if there is none."""
    # Keras passes the implicit masks of its three names, too. That of the value is what
    # `implicit_mask` finds; a padded query may attend as it likes, for nobody reads it.
    value_mask, query_mask = explicit_mask(source, value_mask), explicit_mask(query, query_mask)
    query_mask = mask_per_token("query_mask", query_mask, query)
    value_mask = mask_per_token("value_mask", value_mask, source)
    key_mask = mask_per_token("key_mask", key_mask, source)
    if padding_mask is None:
        padding_mask, value_mask = value_mask, None
    if query_mask is not None:
        query_mask = ops.expand_dims(query_mask, 2)  # (batch, target, 1)
    return combine_masks(
        implicit_mask(source, padding_mask),
        value_mask,
        key_mask,
        query_mask,
        as_attention_mask(attention_mask),
    )


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
