"""Settings of served translators and language models, and how a run keeps them."""

import dataclasses
import json

from keras_transformer.arguments import check_integer
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.scoring import GNMTScoring, HuggingFaceScoring
from keras_transformer.decoding.search import BeamSearch
from keras_transformer.decoding.token_rules import TokenRules
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID

# The names that flags and runs give to scorings.
SCORINGS = {
    "gnmt": (GNMTScoring, "never"),
    "gnmt_heuristic": (GNMTScoring, False),
    "huggingface": (HuggingFaceScoring, False),
    "huggingface_early_stopping": (HuggingFaceScoring, True),
    "huggingface_never": (HuggingFaceScoring, "never"),
}
# What a run keeps of `SearchSettings` and, besides its rules, of `SamplingSettings`.
SEARCH = (
    "num_beams", "length_penalty", "scoring", "max_length", "max_target_length", "token_rules",
)  # fmt: skip
TEMPERATURE = 0.8  # unless a run or a folder says otherwise
SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "start_id", "end_ids")


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings of a translator; an export fixes them in the graph.

    Args:
        search: `decoding.BeamSearch`, whose `num_best` translations `translate_nbest` returns. With
            `decoding.HuggingFaceScoring` a translation may be up to `max_target_length` long, not
            only about twice its source.
        max_source_length: source limit in tokens, end token included, at least 2; longer sources
            are truncated.
        max_target_length: translation limit in tokens, end token included, at least 2.

    Raises:
        ValueError: if a setting is out of range.

    Examples:
        >>> SearchSettings(BeamSearch(num_beams=2)).search.num_best
        2
    """

    search: BeamSearch = dataclasses.field(default_factory=BeamSearch)
    max_source_length: int = 256
    max_target_length: int = 256

    def __post_init__(self):
        if not isinstance(self.search, BeamSearch):
            raise ValueError(f"search must be a BeamSearch. Received: {self.search!r:.80}.")
        reason = " There must be room for one token and the end token."
        for name in ("max_source_length", "max_target_length"):
            check_integer(name, getattr(self, name), 2, reason=reason)


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Settings of a language model; an export fixes them in the graph.

    Args:
        context: limit of prompt and continuation together, in tokens, at least 2.
        max_tokens: length of the continuations of `serving_default`, in tokens, below `context`;
            None for half of it.
        sampling: `decoding.Sampling`: temperature, top_k and top_p of `serving_default`, and rules,
            for which the tokens of the prompt count. Defaults to a temperature of 0.8.
        empty_prompt: text that replaces an empty prompt, at least one token.
        start_id: the tokenizer's id that begins every text that the model reads, such as Llama's
            "<s>"; None if none does. An empty prompt is then this id alone.

    Raises:
        ValueError: if a setting is out of range.
    """

    context: int = 256
    max_tokens: int | None = None
    sampling: Sampling = dataclasses.field(default_factory=lambda: Sampling(TEMPERATURE))
    empty_prompt: str = "\n"
    start_id: int | None = None

    def __post_init__(self):
        check_integer("context", self.context, 2)
        if self.max_tokens is None:
            object.__setattr__(self, "max_tokens", self.context // 2)  # a frozen dataclass
        reason = f" It must be below context, {self.context}, which includes the prompt."
        check_integer("max_tokens", self.max_tokens, 1, self.context - 1, reason)
        if not isinstance(self.sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling. Received: {self.sampling!r:.80}.")
        if self.start_id is not None:
            check_integer("start_id", self.start_id, 0)
            if self.start_id in (PAD_ID, END_ID):
                raise ValueError(
                    f"start_id must not be {PAD_ID}, padding, nor {END_ID}, which ends a text. "
                    f"Received: start_id={self.start_id}."
                )


def read_search(kept, num_beams=None, length_penalty=None, token_rules=None):
    """The `SearchSettings` that a run keeps, as of `kept_search`; `num_best` is `num_beams`.

    What is not None replaces settings of the run; `token_rules` replace only those that they name.
    Raises ValueError for unknown names and wrong values.
    """
    num_beams = kept["num_beams"] if num_beams is None else num_beams
    length_penalty = kept["length_penalty"] if length_penalty is None else length_penalty
    rules = _token_rules(read_object("token_rules", kept["token_rules"]), token_rules)
    return SearchSettings(
        BeamSearch(num_beams, num_beams, scoring_of(kept["scoring"], length_penalty), rules),
        kept["max_length"],
        kept["max_target_length"] or kept["max_length"],
    )


def scoring_of(name, length_penalty):
    """The scoring that has a name in flags and runs; ValueError if none has."""
    if name not in SCORINGS:
        raise ValueError(f"scoring must be one of {', '.join(SCORINGS)}. Received: {name!r}.")
    scoring, early_stopping = SCORINGS[name]
    return scoring(length_penalty, early_stopping)


def kept_search(settings):
    """The settings of a search that a run keeps, under the names of flags."""
    search = settings.search
    names = {each: name for name, each in SCORINGS.items()}
    return {
        "num_beams": search.num_beams,
        "length_penalty": search.scoring.length_penalty,
        "scoring": names[type(search.scoring), search.scoring.early_stopping],
        "max_length": settings.max_source_length,
        "max_target_length": settings.max_target_length,
        "token_rules": json.dumps(search.token_rules.changed()),
    }


def read_sampling(text, context, token_rules=None):
    """The `SamplingSettings` that a run keeps as JSON, as of `kept_sampling`; "" or None for usual.

    `context` limits prompt and continuation together, in tokens; `token_rules` replace rules of the
    run. Raises ValueError for unknown settings and wrong values.
    """
    kept = read_object("sampling", text)
    rules = _token_rules(kept.pop("token_rules", {}), token_rules)
    if unknown := sorted(set(kept) - set(SAMPLING)):
        raise ValueError(
            f"sampling must be among {', '.join((*SAMPLING, 'token_rules'))}. Received: {unknown}."
        )
    own = {name: kept.pop(name) for name in ("max_tokens", "start_id") if name in kept}
    sampling = Sampling(**{"temperature": TEMPERATURE} | kept, token_rules=rules)
    return SamplingSettings(context, sampling=sampling, **own)


def kept_sampling(settings):
    """The settings of sampling that a run keeps, as JSON: those that differ from the usual ones."""
    usual = _flat(SamplingSettings(settings.context))
    changed = {name: value for name, value in _flat(settings).items() if value != usual[name]}
    return json.dumps(changed)


def _flat(settings):
    """All settings of sampling that a run may keep, by name."""
    values = vars(settings) | vars(settings.sampling)
    rules = settings.sampling.token_rules.changed()
    return {name: values[name] for name in SAMPLING} | {"token_rules": rules}


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
