"""Beam search, sampling and streaming with any step function, in plain TensorFlow.

A search is independent of the model. It calls `step(token_ids, parents, position, cache)`:

    token_ids   (batch, beams) int32, the newest token of each beam
    parents     (batch, beams) int32, the beam of the previous step that each beam extends
    position    int32 scalar, number of earlier tokens
    cache       any nest (tuple, list, dict) of tensors, batch first, from the previous step;
                axes of size 0 in the initial cache grow with each step; a cache of full size is
                written at `position`, and the search is given its `capacity`

which returns `(logits, cache)`, the logits (batch, beams, vocabulary). The search never reorders
the cache. A step function that keeps a state per beam gathers it with
`tf.gather(state, parents, batch_dims=1)`; keys and values stay in place, and a mask selects those
of each beam.

What every row is forced to begin with, a prompt or the prefix of a translation, is read in one pass
if the search has a function `prefill(token_ids, next_ids, count, cache) -> (log_probs, cache)`, as
`models.LanguageModel.prefill` documents it. The search then goes on from there.
"""

from keras_transformer.decoding.beams import NO_HYPOTHESIS_SCORE, Hypotheses
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.scoring import GNMTScoring, HuggingFaceScoring, Scoring
from keras_transformer.decoding.search import BeamSearch
from keras_transformer.decoding.streaming import Streamer
from keras_transformer.decoding.token_rules import TokenRules

__all__ = [
    "NO_HYPOTHESIS_SCORE",
    "BeamSearch",
    "GNMTScoring",
    "HuggingFaceScoring",
    "Hypotheses",
    "Sampling",
    "Scoring",
    "Streamer",
    "TokenRules",
]
