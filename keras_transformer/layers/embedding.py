"""From token ids to vectors and back to logits."""

import math

import keras
from keras import ops

from keras_transformer.arguments import (
    LARGEST_INTEGER,
    check_integer,
    check_number,
    check_probability,
)
from keras_transformer.layers.checks import NotQuantizedMixin, check_ids
from keras_transformer.ops.internals import keep_mask, look_up_rows
from keras_transformer.ops.masks import padding_mask
from keras_transformer.ops.projection import columns_of, project
from keras_transformer.ops.softmax import soft_capped


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenDropout(keras.layers.Layer):
    """Replaces random tokens with padding in training, so that nothing attends to them.

    Unlike dropout of vectors, it does not scale what is kept: a normalisation after it would
    otherwise see other sums in training than in inference. The first token of a row is kept, so
    that no row is empty and [CLS] is present.

    Source: word dropout of Iyyer et al. 2015, section 3
    (https://aclanthology.org/P15-1162).

    Args:
        rate: probability in [0, 1) of dropping a token.
        pad_id: the id of padding.

    Call arguments:
        inputs: ids, integers (batch, length).
        training: whether to drop tokens.

    Returns:
        Same shape and dtype.

    Raises:
        ValueError: if `rate` is outside of [0, 1).

    Examples:
        >>> ids = keras.ops.array([[3, 5, 7]])
        >>> TokenDropout(0.5)(ids).numpy().tolist()  # inference
        [[3, 5, 7]]
    """

    def __init__(self, rate, pad_id=0, **kwargs):
        super().__init__(autocast=False, **kwargs)
        check_probability("rate", rate)
        check_integer("pad_id", pad_id, least=-LARGEST_INTEGER)
        self.rate = rate
        self.pad_id = pad_id
        if rate:
            self.seed_generator = keras.random.SeedGenerator()

    keeps_ids = True  # its outputs are ids of its inputs, or padding

    def call(self, inputs, training=False):
        check_ids("inputs", inputs)
        if not (training and self.rate):
            return inputs
        kept = keep_mask(ops.shape(inputs), self.rate, self.seed_generator)
        is_first = ops.arange(ops.shape(inputs)[1]) == 0
        return ops.where(kept | is_first, inputs, self.pad_id)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=False):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class IgnoredToken(keras.layers.Layer):
    """Replaces one token with padding, so that nothing attends to it.

    Args:
        token_id: id of the token.
        pad_id: the id of padding.

    Call arguments:
        inputs: ids, integers (batch, length).

    Returns:
        Same shape and dtype.

    Examples:
        >>> IgnoredToken(3)(keras.ops.array([[7, 5, 3, 0]])).numpy().tolist()
        [[7, 5, 0, 0]]
    """

    def __init__(self, token_id, pad_id=0, **kwargs):
        super().__init__(autocast=False, **kwargs)
        check_integer("token_id", token_id, 0)
        check_integer("pad_id", pad_id, 0)
        self.token_id = token_id
        self.pad_id = pad_id

    keeps_ids = True  # its outputs are ids of its inputs, or padding

    def call(self, inputs):
        return ops.where(ops.equal(inputs, self.token_id), self.pad_id, inputs)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "token_id": self.token_id, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(NotQuantizedMixin, keras.layers.Layer):
    """Looks up a vector for each token id; in reverse, scores every token for a vector.

    Used both ways, the same table is input embedding and output projection ("tied"). The
    looked-up vectors are scaled by the square root of their width. The implicit Keras mask
    marks padding.

    Source: Vaswani et al. 2017, section 3.4 (https://arxiv.org/abs/1706.03762).

    Args:
        vocabulary_size: number of different ids.
        hidden_dim: width of the vectors.
        scale: whether looked-up vectors are multiplied by sqrt(hidden_dim).
        pad_id: the id that pads short rows; None for no padding and no mask.
        stddev: standard deviation of the initial weights; None for 1 / sqrt(hidden_dim), which
            gives vectors a length of about 1.

    Call arguments:
        inputs: ids, integers (batch, length) in [0, vocabulary_size); with `reverse`,
            vectors, (batch, length, hidden_dim).
        reverse: whether to map vectors to logits instead of ids to vectors.

    Returns:
        Vectors, (batch, length, hidden_dim); with `reverse`, float32 logits,
        (batch, length, vocabulary_size).

    Raises:
        ValueError: if a size is below 1.

    Examples:
        >>> layer = TokenEmbedding(vocabulary_size=11, hidden_dim=4)
        >>> vectors = layer(keras.ops.array([[3, 5, 0]]))
        >>> tuple(vectors.shape), tuple(layer(vectors, reverse=True).shape)
        ((1, 3, 4), (1, 3, 11))
    """

    def __init__(self, vocabulary_size, hidden_dim, scale=True, pad_id=0, stddev=None, **kwargs):
        # Without autocast: ids that arrive as floats would lose digits in bfloat16.
        super().__init__(autocast=False, **kwargs)
        check_integer("vocabulary_size", vocabulary_size)
        check_integer("hidden_dim", hidden_dim)
        if pad_id is not None:
            check_integer("pad_id", pad_id, 0, vocabulary_size - 1)
        if stddev is not None:
            check_number("stddev", stddev, least=0)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.scale = scale
        self.pad_id = pad_id
        self.stddev = stddev
        self.supports_masking = True

    def build(self, input_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.hidden_dim),
            # Without a `stddev`: after scaling each column has variance 1, and so have the
            # logits of a normalised vector.
            initializer=keras.initializers.RandomNormal(
                stddev=self.hidden_dim**-0.5 if self.stddev is None else self.stddev
            ),
            # Looked-up rows are cast, not the table, which is far larger.
            autocast=False,
        )

    @property
    def num_ids(self):
        """All ids must be below it; the library's `Model` checks that those in the data are."""
        return self.vocabulary_size

    @property
    def projection_table(self):
        """What `reverse` multiplies by, transposed: (vocabulary_size, hidden_dim)."""
        return self.embeddings

    def call(self, inputs, reverse=False):
        if reverse:
            inputs = ops.cast(inputs, self.compute_dtype)
            return ops.cast(project(inputs, self.embeddings), "float32")
        check_ids("inputs", inputs)
        # A Sequential model passes ids as floats, which are exact up to 2^24.
        ids, axis = ops.cast(inputs, "int32"), 0
        table, columns = self.embeddings, columns_of(self.embeddings)
        if columns is not None:
            table, axis = columns, 1
            ids = ops.where(ids < self.vocabulary_size, ids, -1)  # it may have more columns
        vectors = look_up_rows(table, ids, axis)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * math.sqrt(self.hidden_dim) if self.scale else vectors

    def compute_mask(self, inputs, previous_mask=None):
        if len(inputs.shape) > 2:  # vectors, with `reverse`
            return previous_mask
        return None if self.pad_id is None else padding_mask(inputs, self.pad_id)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)

    def compute_output_spec(self, inputs, reverse=False):
        if reverse:
            shape, dtype = (*inputs.shape[:-1], self.vocabulary_size), "float32"
        else:
            shape, dtype = self.compute_output_shape(inputs.shape), self.compute_dtype
        return keras.KerasTensor(shape, dtype=dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "scale": self.scale,
            "pad_id": self.pad_id,
            "stddev": self.stddev,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class VocabularyBias(keras.layers.Layer):
    """Adds a learned bias to the logit of each token, in float32.

    Call arguments:
        logits: (..., vocabulary).

    Returns:
        Same shape, float32.

    Examples:
        >>> tuple(VocabularyBias()(keras.ops.zeros((2, 3, 5))).shape)
        (2, 3, 5)
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        self.bias = self.add_weight(name="bias", shape=input_shape[-1:], initializer="zeros")

    def call(self, logits):
        return ops.cast(logits, "float32") + ops.cast(self.bias, "float32")

    def compute_output_spec(self, logits):
        return keras.KerasTensor(logits.shape, dtype="float32")

    def get_config(self):
        return super().get_config()  # otherwise Keras refuses to serialise a dtype policy


@keras.saving.register_keras_serializable(package="keras_transformer")
class SoftCap(keras.layers.Layer):
    """Keeps logits between `-limit` and `limit`: limit * tanh(logits / limit), in float32.

    Source: Gemma Team 2024, section 2 (https://arxiv.org/abs/2408.00118).

    Args:
        limit: positive.

    Call arguments:
        logits: of any shape.

    Returns:
        Same shape, float32.

    Raises:
        ValueError: if `limit` is not positive.

    Examples:
        >>> SoftCap(30.0)(keras.ops.array([1.0, 1000.0])).numpy().round(2).tolist()
        [1.0, 30.0]
    """

    def __init__(self, limit, **kwargs):
        super().__init__(autocast=False, **kwargs)
        check_number("limit", limit, above=0)
        self.limit = limit
        self.supports_masking = True

    def call(self, logits):
        return soft_capped(ops.cast(logits, "float32"), self.limit)

    def compute_output_spec(self, logits):
        return keras.KerasTensor(logits.shape, dtype="float32")

    def get_config(self):
        return {**super().get_config(), "limit": self.limit}
