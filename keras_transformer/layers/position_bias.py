"""Biases of attention by distance, which take the place of positions in the vectors of tokens."""

import math

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.checks import NotQuantizedMixin, check_arguments, check_vectors
from keras_transformer.ops.positions import spread_by_distance

LONGEST = 2**20  # tokens


class PositionBias(NotQuantizedMixin, keras.layers.Layer):
    """What all biases by distance share; a subclass has `by_distance`.

    The distance is the position of the source less that of the target, in tokens.
    """

    def __init__(self, num_heads, causal=False, **kwargs):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        self.num_heads = num_heads
        self.causal = causal
        self.supports_masking = True

    def call(self, inputs):
        check_vectors(inputs=inputs)
        length = ops.shape(inputs)[1]
        return spread_by_distance(self.of_distances(length), length)

    def of_distances(self, length):
        """The bias of each distance in a sequence, from `-length` on, (1, heads, 2 * length)."""
        distances = ops.arange(2 * length, dtype="int32") - length
        return ops.swapaxes(self.by_distance(distances[None]), 0, 1)

    def step(self, position, columns, num_beams=1):
        """The bias of one target at a `position` to a cache, (1, heads, 1, columns).

        Args:
            position: of the newest tokens, an integer scalar.
            columns: of the cache, an integer scalar: one a beam and position.
            num_beams: beams per row.
        """
        positions = ops.arange(columns, dtype="int32") // num_beams
        return ops.expand_dims(self.by_distance((positions - position)[None, :]), 0)

    def compute_output_shape(self, input_shape):
        return (1, self.num_heads, input_shape[1], input_shape[1])

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "causal": self.causal}


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositionBias(PositionBias):
    """A learned bias for each head and bucket of distances, as in T5.

    Half of the buckets hold one distance each; the others grow as its logarithm, up to
    `max_distance`, beyond which all distances share the last one. Unless `causal`, each direction
    has half of the buckets.

    Source: Raffel et al. 2020, section 2.1 (https://arxiv.org/abs/1910.10683), by its released
    code.

    Args:
        num_heads: number of heads, at least 1.
        num_buckets: number of buckets, at least 2, or 4 and even unless `causal`.
        max_distance: in tokens, above half of the buckets of one direction, at most 2 ** 20.
        causal: whether no target attends to later sources, which then need no buckets.

    Call arguments:
        inputs: vectors of the sequence, (batch, length, dim), of which only the length counts.

    Returns:
        (1, heads, length, length), the `attention_bias` of a `MultiHeadAttention`.

    Raises:
        ValueError: if a number is out of its range.

    Examples:
        >>> tuple(RelativePositionBias(num_heads=2)(keras.ops.zeros((3, 5, 4))).shape)
        (1, 2, 5, 5)
    """

    def __init__(self, num_heads, num_buckets=32, max_distance=128, causal=False, **kwargs):
        super().__init__(num_heads, causal, **kwargs)
        check_integer("num_buckets", num_buckets, 2 if causal else 4)
        if num_buckets % 2:
            raise ValueError(
                "num_buckets must be even: half of them hold one distance each. "
                f"Received: num_buckets={num_buckets}."
            )
        reason = " Farther distances share the last bucket."
        exact = num_buckets // (2 if causal else 4)
        check_integer("max_distance", max_distance, exact + 1, LONGEST, reason)
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def build(self, input_shape=None):
        self._back = tuple(self._buckets_of_one_direction())
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def by_distance(self, distances):
        """(heads, target, source), for integer distances (target, source)."""
        back = ops.convert_to_tensor(self._back, "int32")
        buckets = ops.take(back, ops.clip(-distances, 0, self.max_distance))
        if not self.causal:
            later = (
                ops.take(back, ops.clip(distances, 0, self.max_distance)) + self.num_buckets // 2
            )
            buckets = ops.where(distances > 0, later, buckets)
        bias = ops.take(ops.cast(self.embeddings, self.compute_dtype), buckets, axis=0)
        return ops.transpose(bias, (2, 0, 1))

    def _buckets_of_one_direction(self):
        """The bucket of each distance from 0 to `max_distance`, a list of integers."""
        buckets = self.num_buckets if self.causal else self.num_buckets // 2
        exact, longest = buckets // 2, self.max_distance
        scale = (buckets - exact) / math.log(longest / exact)

        def bucket_of(distance):
            if distance < exact:
                return distance
            # It falls on whole numbers, where rounding must not decide.
            far = exact + int(math.log(distance / exact) * scale + 1e-9)
            return min(far, buckets - 1)

        return [bucket_of(distance) for distance in range(longest + 1)]

    def get_config(self):
        own = {"num_buckets": self.num_buckets, "max_distance": self.max_distance}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ALiBi(PositionBias):
    """A bias that falls with the distance, in each head with another slope; nothing is learned.

    Source: Press et al. 2022 (https://arxiv.org/abs/2108.12409), and for numbers of heads that are
    no power of 2 its released code.

    Args:
        num_heads: number of heads, at least 1.
        causal: whether no target attends to later sources; their bias is then not used.

    Call arguments:
        inputs: vectors of the sequence, (batch, length, dim), of which only the length counts.

    Returns:
        (1, heads, length, length), the `attention_bias` of a `MultiHeadAttention`.

    Raises:
        ValueError: if `num_heads` is below 1.

    Examples:
        >>> ALiBi(num_heads=2)(keras.ops.zeros((1, 2, 4)))[0, :, 1].numpy().tolist()
        [[-0.0625, -0.0], [-0.00390625, -0.0]]
    """

    def by_distance(self, distances):
        """(heads, target, source), for integer distances (target, source)."""
        slopes = ops.convert_to_tensor(self.slopes(), "float32")[:, None, None]
        bias = -slopes * ops.cast(ops.abs(distances), "float32")
        return ops.cast(bias, self.compute_dtype)

    def slopes(self):
        """The slope of each head, a list of numbers."""
        power = 2 ** int(math.log2(self.num_heads))
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        # Those between, every second one of twice as many heads.
        between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
        return (slopes + between)[: self.num_heads]


POSITION_BIASES = {"t5": RelativePositionBias, "alibi": ALiBi}


def create_position_bias(arguments, **kwargs):
    """A layer of `POSITION_BIASES`, whose name is the "type" of the arguments; None for None."""
    check_arguments("position_bias", arguments)
    if arguments is None:
        return None
    own = dict(arguments)
    kind = own.pop("type", None)
    if not isinstance(kind, str) or kind not in POSITION_BIASES or own.keys() & kwargs.keys():
        raise ValueError(
            "position_bias must be None or a dictionary of arguments with the type "
            f"{' or '.join(map(repr, POSITION_BIASES))}, without {', '.join(kwargs)}, which the "
            f"stack decides. Received: {arguments}."
        )
    return POSITION_BIASES[kind](**own, **kwargs)
