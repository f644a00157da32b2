"""Settings of served translators and language models."""

import dataclasses
import numbers

from keras_transformer.decoding.search import SCORINGS, check_at_least


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Beam search settings of a translator; an export fixes them in the graph.

    Args:
        num_beams: hypotheses kept at each step, at least 1; 1 is greedy search.
        num_best: translations that `translate_nbest` returns, from 1 to `num_beams`. Defaults to
            4, or `num_beams` if that is smaller.
        length_penalty: exponent of the length penalty, at least 0; 0 turns it off.
        max_source_length: source limit in tokens, end token included, at least 2; longer sources
            are truncated.
        max_target_length: translation limit in tokens, end token included, at least 2.
        scoring: "gnmt", "huggingface" or "huggingface_early_stopping", as in
            `decoding.beam_search`; with the latter two a translation may be up to
            `max_target_length` long, not only about twice its source.

    Raises:
        ValueError: if a setting is out of range.

    Examples:
        >>> SearchSettings(num_beams=2).num_best
        2
    """

    num_beams: int = 4
    num_best: int | None = None
    length_penalty: float = 0.6
    max_source_length: int = 256
    max_target_length: int = 256
    scoring: str = "gnmt"

    def __post_init__(self):
        check_at_least("num_beams", self.num_beams, 1)
        if self.num_best is None:
            object.__setattr__(self, "num_best", min(4, self.num_beams))  # a frozen dataclass
        if not 1 <= self.num_best <= self.num_beams:
            raise ValueError(
                "num_best must be at least 1 and at most num_beams. Received: "
                f"num_best={self.num_best}, num_beams={self.num_beams}."
            )
        if not isinstance(self.length_penalty, numbers.Real) or not self.length_penalty >= 0:
            raise ValueError(
                "length_penalty must be a number of at least 0, e.g. 0.6. Received: "
                f"length_penalty={self.length_penalty!r}."
            )
        if self.scoring not in SCORINGS:
            raise ValueError(
                f"scoring must be one of {', '.join(SCORINGS)}. Received: {self.scoring!r}."
            )
        if self.max_source_length < 2 or self.max_target_length < 2:
            raise ValueError(
                "Lengths must leave room for one token and the end token, at least 2. Received: "
                f"max_source_length={self.max_source_length}, "
                f"max_target_length={self.max_target_length}."
            )


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings of a language model; an export fixes them in the graph.

    Args:
        context: limit of prompt and continuation together, in tokens, at least 2.
        max_tokens: length of the continuations of `serving_default`, in tokens, below `context`.
        temperature: of `serving_default`; near 0 chooses the most likely token.
        empty_prompt: text that replaces an empty prompt, at least one token.

    Raises:
        ValueError: if `max_tokens` or `context` is out of range.
    """

    context: int = 256
    max_tokens: int = 128
    temperature: float = 0.8
    empty_prompt: str = "\n"

    def __post_init__(self):
        if not 1 <= self.max_tokens < self.context:
            raise ValueError(
                "max_tokens must be at least 1 and below context, which includes the prompt. "
                f"Received: max_tokens={self.max_tokens}, context={self.context}."
            )
