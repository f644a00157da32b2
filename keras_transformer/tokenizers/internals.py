"""The only file of `tokenizers/` that uses what tensorflow-text and TensorFlow do not promise."""

import copy
import hashlib

import tensorflow as tf
import tensorflow_text


def lasting_tokenizer(model: bytes) -> tensorflow_text.SentencepieceTokenizer:
    """tensorflow-text's tokenizer of a SentencePiece model, which outlives its kernel.

    A model in memory belongs to the kernel that created it, and every
    `keras.utils.set_random_seed` or `tf.random.set_seed` discards the kernels: from then on the
    tokenizer would fail with `Resource localhost/_0_SentencepieceOp does not exist`. A model with
    a name survives.

    Relies on the tokenizer's attribute `_model_resource`.
    """
    tokenizer = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
    tokenizer._model_resource = _NamedModel(model)
    return tokenizer


def with_pieces(tokenizer):
    """A tokenizer of the same model in memory that returns pieces as strings instead of ids."""
    other = copy.copy(tokenizer)
    other.out_type = tf.string
    return other


class _NamedModel(tf.saved_model.experimental.TrackableResource):
    """A SentencePiece model in memory, named after its content.

    Relies on the operation `sentencepiece_op` of tensorflow-text's own module.
    """

    def __init__(self, model: bytes):
        super().__init__()
        self._model = model
        _ = self.resource_handle  # created now, because inside a graph it would belong to the graph

    def _create_resource(self):
        from tensorflow_text.python.ops import sentencepiece_tokenizer

        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model,
            shared_name=f"sentencepiece_{hashlib.sha256(self._model).hexdigest()}",
        )
