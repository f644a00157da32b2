"""From a function that takes one step to whole sequences, in plain TensorFlow.

The search knows nothing of models. It calls `step(token_ids, parents, position, cache)`:

    token_ids   (batch, beams) int32, the last token of every beam
    parents     (batch, beams) int32, the beam of the step before that each one goes on from
    position    int32 scalar, how many tokens came before
    cache       any nest (tuple, list, dict) of tensors, batch first, as the last step
                returned it; an axis of size 0 in the initial cache grows from step to step

and gets back `(logits, cache)`, the logits (batch, beams, vocabulary). The search never
reorders the cache: a state of each beam is `tf.gather(state, parents, batch_dims=1)`, but
keys and values stay where they are, and a mask tells whose they are.
"""

from keras_transformer.decoding.beams import NO_HYPOTHESIS_SCORE, Hypotheses
from keras_transformer.decoding.sampling import sample
from keras_transformer.decoding.search import beam_search, greedy_search
from keras_transformer.decoding.streaming import stream

__all__ = ["NO_HYPOTHESIS_SCORE", "Hypotheses", "beam_search", "greedy_search", "sample", "stream"]
