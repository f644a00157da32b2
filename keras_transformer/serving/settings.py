"""How a served translator searches, and how a served language model writes."""

import dataclasses


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


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """How a served language model writes; fixed in the graph.

    Args:
        context: most tokens of prompt and continuation together, at least 2.
        max_tokens: length of a continuation of `serving_default`, below `context`.
        temperature: of `serving_default`; near 0 takes the best token.
        empty_prompt: what stands for an empty prompt, at least one token.
    """

    context: int = 256
    max_tokens: int = 128
    temperature: float = 0.8
    empty_prompt: str = "\n"

    def __post_init__(self):
        if not 1 <= self.max_tokens < self.context:
            raise ValueError(
                "max_tokens must be at least 1 and below context, which holds the prompt too. "
                f"Received: max_tokens={self.max_tokens}, context={self.context}."
            )
