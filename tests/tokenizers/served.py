"""Tokenizers in a SavedModel, as a served model holds them."""

import tensorflow as tf


def served_round_trip(tokenizer, folder):
    """A loaded function from (batch,) strings to the joined tokens of each."""
    module = tf.Module()
    module.tokenizer = tokenizer
    module.there_and_back = tf.function(
        lambda texts: tokenizer.detokenize(tokenizer.tokenize(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(folder))
    return tf.saved_model.load(str(folder)).there_and_back
