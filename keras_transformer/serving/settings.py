"""What a served translator is made from: a model as functions, and how to search."""

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class ModelFunctions:
    """A translation model as functions of tensors; `models.translation` has them.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        encode: source_ids (batch, source) -> memory, a nested structure, batch first.
        start_cache: memory, num_beams -> cache, a nested structure, batch first, whose
            axes of size 0 grow with each step.
        step: memory, token_ids (batch, beams), parents (batch, beams), position, cache ->
            logits (batch, beams, vocabulary) and the longer cache; see `decoding`.
        logits: source_ids, target_ids -> logits (batch, target, vocabulary).
    """

    weights: Sequence
    encode: Callable
    start_cache: Callable
    step: Callable
    logits: Callable


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """How a served model searches; fixed in the graph.

    Args:
        num_beams: hypotheses kept at each step, at least 1.
        num_best: translations that `translate_nbest` returns, at most `num_beams`.
        length_penalty: exponent of the length by which scores are divided, at least 0.
        max_source_length: longest source, in tokens with its end; what is longer is cut.
        max_target_length: longest translation, in tokens with its end.
    """

    num_beams: int = 4
    num_best: int = 4
    length_penalty: float = 0.6
    max_source_length: int = 256
    max_target_length: int = 256

    def __post_init__(self):
        if not 1 <= self.num_best <= self.num_beams:
            raise ValueError(
                "num_best must be at least 1 and at most num_beams. Received: "
                f"num_best={self.num_best}, num_beams={self.num_beams}."
            )
        if self.max_source_length < 2 or self.max_target_length < 2:
            raise ValueError(
                "Lengths must leave room for one token and the end, at least 2. Received: "
                f"max_source_length={self.max_source_length}, "
                f"max_target_length={self.max_target_length}."
            )
