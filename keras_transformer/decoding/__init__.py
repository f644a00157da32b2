"""From a function that takes one step to whole sequences, in plain TensorFlow.

The search knows nothing of models. It calls `step(token_ids, position, cache)`:

    token_ids   (batch, beams) int32, the last token of every beam
    position    int32 scalar, how many tokens came before
    cache       any nest (tuple, list, dict) of tensors (batch, beams, ...); an axis
                of size 0 in the initial cache grows from step to step

and gets back `(logits, cache)`, the logits (batch, beams, vocabulary).
"""

from keras_transformer.decoding.beams import NO_HYPOTHESIS_SCORE, Hypotheses
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import beam_search, greedy_search

__all__ = ["NO_HYPOTHESIS_SCORE", "Hypotheses", "beam_search", "greedy_search", "sample"]
