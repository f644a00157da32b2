"""Settings of served translators and language models."""

import dataclasses
import json

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.decoding.search import SCORINGS, check_search
from keras_transformer.decoding.token_rules import NO_RULES, TokenRules
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID

# What a run keeps of `SamplingSettings`, besides its rules.
SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "start_id", "end_ids")


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
        scoring: "gnmt", "gnmt_heuristic", "huggingface", "huggingface_early_stopping" or
            "huggingface_never", as in `decoding.beam_search`; with the last three a translation may
            be up to `max_target_length` long, not only about twice its source.
        token_rules: which tokens the search may choose, `decoding.TokenRules`.

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
    token_rules: TokenRules = NO_RULES

    def __post_init__(self):
        check_integer("num_beams", self.num_beams, 1)
        if self.num_best is None:
            object.__setattr__(self, "num_best", min(4, self.num_beams))  # a frozen dataclass
        search = self.num_beams, self.num_best, self.length_penalty, self.scoring
        check_search(*search, n_best_name="num_best")
        reason = " There must be room for one token and the end token."
        for name in ("max_source_length", "max_target_length"):
            check_integer(name, getattr(self, name), 2, reason=reason)
        _check_token_rules(self.token_rules)

    @property
    def as_hugging_face(self):
        """Whether scores and limits are those of Hugging Face."""
        return SCORINGS[self.scoring].as_hugging_face


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings of a language model; an export fixes them in the graph.

    Args:
        context: limit of prompt and continuation together, in tokens, at least 2.
        max_tokens: length of the continuations of `serving_default`, in tokens, below `context`.
        temperature: of `serving_default`, above 0; near 0 chooses the most likely token.
        empty_prompt: text that replaces an empty prompt, at least one token.
        top_k: of `serving_default`, number of most likely tokens to sample from, at least 1; None
            for all.
        top_p: of `serving_default`, probability mass of the most likely tokens to sample from, in
            (0, 1].
        token_rules: which tokens may be sampled, `decoding.TokenRules`; those of the prompt count.
        start_id: the tokenizer's id that begins every text that the model reads, such as Llama's
            "<s>"; None if none does. An empty prompt is then this id alone.
        end_ids: ids that end a text besides the end token, such as that of "<|eot_id|>".

    Raises:
        ValueError: if a setting is out of range.
    """

    context: int = 256
    max_tokens: int = 128
    temperature: float = 0.8
    empty_prompt: str = "\n"
    top_k: int | None = None
    top_p: float = 1.0
    token_rules: TokenRules = NO_RULES
    start_id: int | None = None
    end_ids: tuple[int, ...] = ()

    def __post_init__(self):
        check_integer("context", self.context, 2)
        reason = f" It must be below context, {self.context}, which includes the prompt."
        check_integer("max_tokens", self.max_tokens, 1, self.context - 1, reason)
        check_number("temperature", self.temperature, above=0)
        if self.top_k is not None:
            check_integer("top_k", self.top_k, 1)
        check_number("top_p", self.top_p, above=0, most=1)
        _check_token_rules(self.token_rules)
        if self.start_id is not None:
            check_integer("start_id", self.start_id, 0)
            if self.start_id in (PAD_ID, END_ID):
                raise ValueError(
                    f"start_id must not be {PAD_ID}, padding, nor {END_ID}, which ends a text. "
                    f"Received: start_id={self.start_id}."
                )
        if not isinstance(self.end_ids, (list, tuple)):  # a list, from JSON
            raise ValueError(f"end_ids must be a tuple of ids. Received: end_ids={self.end_ids!r}.")
        object.__setattr__(self, "end_ids", tuple(self.end_ids))
        for end_id in self.end_ids:
            check_integer("end_ids", end_id, 0)
        self.token_rules.check_ends("end_ids", self.end_ids)


def read_token_rules(text, changes=None):
    """`TokenRules` from a JSON object, as a run keeps them; "" or None for no rules.

    `changes` replace rules of the run. Raises ValueError for unknown rules and wrong values.
    """
    return _token_rules(read_object("token_rules", text), changes)


def usual_max_tokens(context):
    """The default length of a continuation: half the context, in tokens."""
    return max(1, context // 2)


def read_sampling(text, context, token_rules=None):
    """The `SamplingSettings` that a run keeps as a JSON object; "" or None for the usual ones.

    `context` limits prompt and continuation together, in tokens; `token_rules` replace rules of the
    run. Raises ValueError for unknown settings and wrong values.
    """
    values = {"max_tokens": usual_max_tokens(context)} | read_object("sampling", text)
    rules = _token_rules(values.pop("token_rules", {}), token_rules)
    names = SAMPLING
    if unknown := sorted(set(values) - set(names)):
        raise ValueError(
            f"sampling must be among {', '.join((*names, 'token_rules'))}. Received: {unknown}."
        )
    return SamplingSettings(context=context, **values, token_rules=rules)


def read_object(name, text):
    """The JSON object in a text, a dictionary; empty for "" or None."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, TypeError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{name} must be a JSON object. Received: {text!r:.80}.")
    return content


def _token_rules(values, changes):
    names = [field.name for field in dataclasses.fields(TokenRules)]
    for each in (values, changes or {}):
        if not isinstance(each, dict):
            raise ValueError(f"token_rules must be a JSON object. Received: {each!r:.80}.")
        if unknown := sorted(set(each) - set(names)):
            raise ValueError(f"token_rules must be among {', '.join(names)}. Received: {unknown}.")
    return TokenRules(**(values | (changes or {})))


def _check_token_rules(token_rules):
    if not isinstance(token_rules, TokenRules):
        raise ValueError(f"token_rules must be TokenRules. Received: {token_rules!r:.80}.")
