"""Tokens that a model does not see."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class IgnoredToken(keras.layers.Layer):
    """Turns one token into padding, so that nothing attends to it.

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

    keeps_ids = True  # those of its inputs, among them padding

    def call(self, inputs):
        return ops.where(ops.equal(inputs, self.token_id), self.pad_id, inputs)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "token_id": self.token_id, "pad_id": self.pad_id}
