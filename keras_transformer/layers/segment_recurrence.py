"""The memory that training carries from one segment of a text to the next."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.attention_scores import AttentionScoresMixin
from keras_transformer.layers.checks import check_per_token, check_vectors
from keras_transformer.layers.freezing import FrozenPartsMixin
from keras_transformer.ops.masks import padding_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class SegmentRecurrence(AttentionScoresMixin, FrozenPartsMixin, keras.layers.Wrapper):
    """Gives a stack, in training, a memory of the previous segments.

    Row i of each training batch must continue where row i of the previous batch ended, so give
    `fit` unshuffled batches that all have `batch_size` rows. `start_id` marks where a document
    begins, at the start or in the middle of a row: no token attends to anything before its own
    document, neither in the memory nor in the segment.

    Outside of training there is no state: each row is read on its own, and for longer texts
    `advance` accepts and returns a memory. The memory is not a weight: `model.save` leaves it
    out, and `Checkpoints` keep it.

    Under a `tf.distribute` strategy each replica carries the memory of its own rows.

    Source: Dai et al. 2019, section 3.2 (https://arxiv.org/abs/1901.02860).

    Args:
        layer: a `TransformerXL` stack, whose dtype policy is used.
        batch_size: rows of a training batch on each replica; at least 1.
        memory_length: number of tokens to remember in training, at least 0.
        start_id: the id with which each document begins; None if all is one text.

    Call arguments:
        inputs: vectors of a segment, (batch, length, dim).
        token_ids: the ids of these vectors, integers (batch, length), 0 for padding.
            Padding is allowed only at the end of a document.
        training: whether to carry memory from call to call, and to apply dropout.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `batch_size` is below 1, `memory_length` is below 0, or a training batch
            is known to have a different number of rows.

    Examples:
        >>> from keras_transformer.layers.transformer_xl import TransformerXL
        >>> stack = TransformerXL(num_layers=2, num_heads=2, intermediate_dim=7)
        >>> layer = SegmentRecurrence(stack, batch_size=3, memory_length=11)
        >>> ids = keras.ops.ones((3, 5), "int32")
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), ids, training=True).shape)
        (3, 5, 4)
    """

    def __init__(self, layer, batch_size, memory_length, start_id=None, **kwargs):
        super().__init__(layer, **{**kwargs, "dtype": layer.dtype_policy})
        check_integer("batch_size", batch_size)
        check_integer("memory_length", memory_length, 0)
        if start_id is not None:
            check_integer("start_id", start_id, 0)
        if not self.trainable:
            layer.trainable = False
        self.batch_size = batch_size
        self.memory_length = memory_length
        self.start_id = start_id
        self.supports_masking = True

    def build(self, inputs_shape, token_ids_shape=None):
        super().build(inputs_shape)
        shape = (self.batch_size, self.memory_length)
        self._memories = tuple(
            self._own_variable(f"memory_{index}", (*shape, inputs_shape[-1]), self.compute_dtype)
            for index in range(self.layer.num_layers)
        )
        # True for the part of the memories that belongs to the document at the end of a row.
        self._is_remembered = self._own_variable("is_remembered", shape, "bool")

    def call(self, inputs, token_ids, training=None):
        if not training:
            return self.advance(inputs, token_ids)[0]
        rows, length = inputs.shape[0], ops.shape(inputs)[1]
        if rows not in (None, self.batch_size):
            raise ValueError(
                "A training batch must have as many rows on each replica as the model was made "
                "for, because each row continues the same row of the previous batch. "
                f"Received: {rows} rows, batch_size={self.batch_size}."
            )
        memory = [ops.convert_to_tensor(variable) for variable in self._memories]
        is_remembered = ops.convert_to_tensor(self._is_remembered)
        outputs, (memory, is_remembered) = self.advance(
            inputs, token_ids, (memory, is_remembered), training
        )
        for variable, longer in zip(self._memories, memory, strict=True):
            variable.assign(longer[:, length:])
        self._is_remembered.assign(is_remembered[:, length:])
        return outputs

    def advance(self, inputs, token_ids, memory=None, training=None):
        """Reads one segment with a given memory, without changing any state.

        Args:
            inputs: as for a call.
            token_ids: as for a call.
            memory: the pair of a list with one tensor (batch, past, dim) per block and a boolean
                (batch, past), True for what may be attended to; None at first.
            training: whether dropout is applied.

        Returns:
            The pair of outputs, (batch, length, dim), and the memory, longer by `length`.
        """
        check_vectors(inputs=inputs)
        check_per_token("token_ids", token_ids, inputs)
        no_tokens = ops.zeros_like(token_ids[:, :0], dtype="bool")
        memories, is_remembered = (None, no_tokens) if memory is None else memory
        is_real = ops.concatenate([is_remembered, padding_mask(token_ids)], axis=1)
        same_document = self._same_document(is_remembered, token_ids)
        outputs, memories = self.layer(
            inputs,
            memories,
            padding_mask=is_real,
            attention_mask=same_document,
            training=training,
        )
        if same_document is not None:
            is_real = ops.logical_and(is_real, same_document[:, -1])
        return outputs, (memories, is_real)

    def scores_in(self, recorded):
        return self.layer.scores_in(recorded)

    def _same_document(self, is_remembered, token_ids):
        """Boolean (batch, length, past + length), True within a document; None for one text."""
        if self.start_id is None:
            return None
        is_start = ops.cast(ops.equal(token_ids, self.start_id), "int32")
        targets = ops.cumsum(is_start, axis=1)  # 0 as long as that of the memory goes on
        past = ops.zeros_like(is_remembered, dtype="int32")
        sources = ops.concatenate([past, targets], axis=1)
        return ops.equal(targets[:, :, None], sources[:, None])

    def forget(self):
        """Empties the memory of all rows, before training continues with other text."""
        # Zeros, too: a weight of 0 times NaN, from a step that diverged, is NaN.
        for variable in (*self._memories, self._is_remembered):
            variable.assign(ops.zeros(variable.shape, variable.dtype))

    def _own_variable(self, name, shape, dtype):
        """State that every replica has for itself; reading it from outside gives the first."""
        return keras.Variable(
            "zeros",
            shape=shape,
            dtype=dtype,
            trainable=False,
            autocast=False,
            synchronization="on_read",
            aggregation="only_first_replica",
            name=name,
        )

    @property
    def weights(self):
        return self.layer.weights

    def save_own_variables(self, store):
        """Saves nothing: the memory is not a weight."""

    def load_own_variables(self, store):
        """Loads nothing: the memory is not a weight."""

    def compute_output_shape(self, inputs_shape, token_ids_shape=None):
        return inputs_shape

    @classmethod
    def from_config(cls, config):
        """Gives the stack the dtype of this config, as the layer has the dtype of its stack."""
        stack = {**config["layer"]["config"], "dtype": config["dtype"]}
        return super().from_config({**config, "layer": {**config["layer"], "config": stack}})

    def get_config(self):
        return {
            **super().get_config(),
            "batch_size": self.batch_size,
            "memory_length": self.memory_length,
            "start_id": self.start_id,
        }
