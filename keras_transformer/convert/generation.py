"""How Hugging Face's models search and sample: generation_config.json, or an older config.json.

Every setting is honoured, is switched off by its value, changes no result, or is refused; a warning
names all others.
"""

import dataclasses
import logging

from keras_transformer.convert.folder import Settings
from keras_transformer.convert.tables import ConversionError
from keras_transformer.decoding import (
    BeamSearch,
    GNMTScoring,
    HuggingFaceScoring,
    Sampling,
    TokenRules,
)
from keras_transformer.serving.settings import TEMPERATURE, SamplingSettings, SearchSettings
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

MAX_TOKENS = 512  # of a continuation, where a folder does not say how many
GENERATION, WORDS = "generation_config.json", "bad_words_ids"
# Settings that our searches lack, with the values that switch them off.
UNSUPPORTED = {
    **dict.fromkeys(
        ("constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids",
         "max_time", "sequence_bias", "stop_strings", "watermarking_config"), (None,)
    ),
    **dict.fromkeys(
        ("diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"), (None, 0)
    ),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beam_groups"), (None, 1)),
    "token_healing": (None, False),
}  # fmt: skip
UNSUPPORTED_IN_SAMPLING = {
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "min_p"), (None, 0)),
    "top_h": (None,),
    "typical_p": (None, 1),
}
UNSUPPORTED_IN_LANGUAGE_MODELS = {
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "num_beams": (None, 1),
}
HONOURED = (
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "do_sample",
    "early_stopping", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "no_repeat_ngram_size", "num_beams", "renormalize_logits", "repetition_penalty",
    "suppress_tokens", "temperature", "top_k", "top_p",
)  # fmt: skip
# Ids that the weights and tokenizers decide; how to compute, and what to return besides.
IGNORED = (
    "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_ensemble_weight", "assistant_lookbehind", "bos_token_id", "cache_config",
    "cache_implementation", "compile_config", "continuous_batching_config",
    "disable_compile", "is_assistant", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_logits",
    "output_scores", "pad_token_id", "prefill_chunk_size", "prompt_lookup_num_tokens",
    "remove_invalid_values", "return_dict_in_generate", "speculation_type", "target_lookbehind",
    "transformers_version", "use_cache", "use_mtp",
)  # fmt: skip
KNOWN = {*HONOURED, *UNSUPPORTED, *UNSUPPORTED_IN_SAMPLING, *IGNORED}


def read_settings(folder):
    """The `Settings` of a folder's search.

    As in `transformers`, config.json counts only where there is no generation_config.json.
    """
    if not folder.has(GENERATION):
        return folder.settings
    settings = Settings(folder.json(GENERATION), folder.path / GENERATION)
    settings.ignore(KNOWN)
    settings.warn_of_unread()
    return settings


def search_settings(folder, order, positions):
    """The `SearchSettings` of a translation model's folder.

    Args:
        folder: a `ModelFolder`.
        order: the `VocabularyPermutation` of the target.
        positions: how many its family usually has.
    """
    settings = read_settings(folder)
    start, end = (int(order.their_id_of[i]) for i in (START_ID, END_ID))
    settings.one_of("decoder_start_token_id", None, start, [start])
    ends = dict.fromkeys(("eos_token_id", "forced_eos_token_id"), (None, end, [end]))
    settings.check(UNSUPPORTED | {"do_sample": (None, False)} | ends)
    our_id_of = order.text_id_of.tolist()
    forces_end = settings.has("forced_eos_token_id")
    rules = _token_rules(settings, our_id_of, forces_end=forces_end)
    if rules.min_new_tokens:  # after the start alone, not after a language
        length = rules.min_new_tokens + 1
        rules = dataclasses.replace(rules, min_length=length, min_new_tokens=0)
    if rules.change_scores and order.repeats_start:
        rules = dataclasses.replace(rules, start_counts_as=our_id_of[order.their_id_of[START_ID]])
    if settings.one_of("renormalize_logits", False, None, True):
        _check_never(settings, order)
        rules = dataclasses.replace(rules, renormalize_logits=True)
    forced = {rules.forced_bos_token_id, END_ID if rules.forces_end else None}
    if clash := forced & set(rules.suppress_tokens):
        ids = order.their_id_of[sorted(clash)].tolist()
        settings.refuse("suppress_tokens", "ids that no other setting forces", ids)
    early = settings.one_of("early_stopping", False, True, "never", None)
    scoring = HuggingFaceScoring(settings.number("length_penalty", 1.0), early or False)
    longest = settings.count("max_length", positions, least=3) - 1  # without the start
    return SearchSettings(
        BeamSearch(settings.count("num_beams", 1), scoring=scoring, token_rules=rules),
        max_source_length=folder.settings.count("max_position_embeddings", positions, least=2),
        max_target_length=settings.count("max_new_tokens", longest, least=2),
    )


def _check_never(settings, order):
    """Raises ConversionError if they may choose, and so count, ids that our search never does."""
    pad, start, end = order.their_id_of[[PAD_ID, START_ID, END_ID]].tolist()
    alone = [word[0] for word in settings.values.get(WORDS) or [] if len(word) == 1]
    suppressed = settings.values.get("suppress_tokens") or []
    if missing := {pad, start} - {end, *alone, *suppressed}:
        expected = f"False, or bad_words_ids must have {[[each] for each in sorted(missing)]}"
        settings.refuse("renormalize_logits", expected, True)


def in_language(folder, settings, tokenizer):
    """Makes a first token that the settings force the language to translate to.

    Args:
        folder: a `ModelFolder`, for messages.
        settings: `SearchSettings`.
        tokenizer: a `SentencePieceTokenizer` with `languages`.

    Returns:
        The settings without that token, and {"target_language": name}, or {} if none is forced.
    """
    rules, name = settings.search.token_rules, "forced_bos_token_id"
    if rules.forced_bos_token_id is None:
        return settings, {}
    languages = {index: language for language, index in tokenizer.languages.items()}
    if rules.forced_bos_token_id not in languages:
        search = read_settings(folder)
        search.refuse(name, "the id of a language", search.values[name])
    language = languages[rules.forced_bos_token_id]
    rules = dataclasses.replace(rules, forced_bos_token_id=None)
    search = dataclasses.replace(settings.search, token_rules=rules)
    return dataclasses.replace(settings, search=search), {"target_language": language}


def end_ids_of(folder, size):
    """The ids that end a text of a language model, a list.

    Args:
        folder: a `ModelFolder`.
        size: the number of its ids.
    """
    settings = read_settings(folder)
    ends = settings.raw("eos_token_id")
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(end) is int and 0 <= end < size for end in ends):
        settings.refuse("eos_token_id", f"ids below {size}", ends)
    return ends


def sampling_settings(folder, size, context, *ends, start=None):
    """The `SamplingSettings` of a language model's folder.

    Args:
        folder: a `ModelFolder`.
        size: the number of its ids; ours come after four control ids.
        context: its longest context in tokens.
        *ends: their ids that end a text.
        start: their id that begins every text; None if none does.
    """
    settings = read_settings(folder)
    samples = settings.flag("do_sample", False)
    settings.check(
        UNSUPPORTED | UNSUPPORTED_IN_LANGUAGE_MODELS | (UNSUPPORTED_IN_SAMPLING if samples else {})
    )
    if settings.has("max_length") and not settings.has("max_new_tokens"):
        logging.getLogger(__name__).warning(
            "%s: max_length counts the prompt and is not read; give max_new_tokens, or max_tokens "
            "where you continue texts.",
            settings.file,
        )
    our_id_of = list(range(4, 4 + size))
    start_id = None if start is None else our_id_of[start]
    if ends:
        our_id_of[ends[0]] = END_ID
        settings.one_of("eos_token_id", None, ends[0], [*ends])
    values = {"temperature": TEMPERATURE, "end_ids": [our_id_of[end] for end in ends[1:]]}
    max_tokens = settings.count("max_new_tokens", max(1, min(context // 2, MAX_TOKENS)))
    if samples:
        values["temperature"] = settings.number("temperature", 1.0)
        values["top_k"] = settings.count("top_k", 50, least=0) or None
        values["top_p"] = settings.number("top_p", 1.0)
    elif settings.has("do_sample"):
        values["top_k"] = 1
    settings.one_of("renormalize_logits", False, None, True)  # which draws nothing else
    rules = _token_rules(settings, our_id_of)
    try:
        sampling = Sampling(**values, token_rules=rules)
        return SamplingSettings(context, max_tokens, sampling, start_id=start_id)
    except ValueError as error:
        raise ConversionError(f"{settings.file}: {error}") from None


def written_search(settings, their_id_of=int):
    """`SearchSettings` as Hugging Face's; a warning says where their search is another one.

    Their length penalty is n ** length_penalty, and they have no limit of 2 n + 8 tokens.

    Args:
        settings: of a translator.
        their_id_of: function from our id to theirs.

    Raises:
        ConversionError: if it matters to the rules that the start token counts as the end token and
            has another id, or the other way round.
    """
    search, end = settings.search, their_id_of(END_ID)
    rules, scoring = search.token_rules, search.scoring
    is_end = their_id_of(START_ID) == end
    if is_end != (rules.start_counts_as == END_ID) and _start_matters(rules):
        kind = "the end token" if is_end else "a token of its own"
        raise ConversionError(
            f"In a written folder the start token is {kind}, so it must count as that for "
            f"token_rules. Received: start_counts_as={rules.start_counts_as}."
        )
    is_theirs = isinstance(scoring, HuggingFaceScoring)
    words = [(PAD_ID,), *([] if is_end else [(START_ID,)]), *map(tuple, rules.bad_words_ids)]
    words = dict.fromkeys(tuple(map(their_id_of, word)) for word in words)
    written = _written_rules(rules, their_id_of) | {
        "bad_words_ids": [list(word) for word in words],
        "forced_eos_token_id": end if rules.forces_end else None,
        "max_length": settings.max_target_length + 1,  # with the start
        "num_beams": search.num_beams,
        "length_penalty": power_penalty(scoring),
        "early_stopping": is_theirs and scoring.early_stopping,
    }
    if search.num_beams > 1 and not is_theirs:
        logging.getLogger(__name__).warning(
            "Hugging Face's search divides scores by n ** %.3g here, which grows as the run's "
            "penalty does at 20 tokens, and it has no limit of twice the source: some translations "
            "will differ.",
            written["length_penalty"],
        )
    return written


def _start_matters(rules):
    """Whether another start token could change what the rules allow: the end occurs but once."""
    is_in_word = any(END_ID in word[:-1] for word in rules.bad_words_ids)
    return rules.repetition_penalty != 1 or rules.no_repeat_ngram_size == 1 or is_in_word


def written_sampling(settings, first_id, end):
    """`SamplingSettings` as Hugging Face's.

    Args:
        settings: of a generator.
        first_id: how many control ids the tokenizer has and the model lacks.
        end: their id that ends a text.
    """
    their_id_of, sampling = {END_ID: end} if first_id else {}, settings.sampling
    rules = _written_rules(sampling.token_rules, lambda i: their_id_of.get(i, i - first_id))
    return rules | {
        "do_sample": True,
        "max_new_tokens": settings.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
    }


def power_penalty(scoring):
    """The exponent for scores that are divided by n ** exponent instead of our penalty.

    With GNMT's scoring, ((5 + n) / 6) ** length_penalty grows with n as this power does where
    translations have about 20 tokens. Raises ConversionError for another scoring.
    """
    if type(scoring) is HuggingFaceScoring:
        return scoring.length_penalty
    if type(scoring) is not GNMTScoring:
        raise ConversionError(
            "Other libraries have the scores of GNMTScoring and HuggingFaceScoring alone. "
            f"Received: scoring={scoring!r:.80}."
        )
    return scoring.length_penalty * 20 / (5 + 20)


def _written_rules(rules, their_id_of=int):
    """`TokenRules` with their ids, without what only a search has."""
    written = rules.changed()
    for name in ("forces_end", "start_counts_as", "counts_as_end"):
        written.pop(name, None)
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if name in written:
            written[name] = [their_id_of(each) for each in written[name]]
    if written.get("forced_bos_token_id") is not None:
        written["forced_bos_token_id"] = their_id_of(written["forced_bos_token_id"])
    if WORDS in written:
        written[WORDS] = [[their_id_of(each) for each in word] for word in written[WORDS]]
    return written


def _token_rules(settings, our_id_of, **changes):
    """`TokenRules` with our ids for theirs, and with changes."""

    def our_id(name, value):
        if type(value) is not int or not 0 <= value < len(our_id_of):
            settings.refuse(name, f"ids below {len(our_id_of)}", value)
        return our_id_of[value]

    def our_ids(name, values):
        if not isinstance(values, list):
            settings.refuse(name, "lists of ids", values)
        return [our_id(name, value) for value in values]

    values = {name: value for name, value in settings.values.items() if value}
    words = values.get(WORDS, [])
    if not isinstance(words, list):
        settings.refuse(WORDS, "lists of ids", words)
    words = [our_ids(WORDS, word) for word in words]
    usual = ([PAD_ID], [START_ID], [END_ID])  # the first two never occur, and the last one may
    suppressed = our_ids("suppress_tokens", values.get("suppress_tokens", []))
    first = settings.values.get("forced_bos_token_id")
    min_new_tokens = settings.count("min_new_tokens", 0, least=0)
    min_length = settings.count("min_length", 0, least=0)
    try:
        return TokenRules(
            no_repeat_ngram_size=settings.count("no_repeat_ngram_size", 0, least=0),
            repetition_penalty=settings.number("repetition_penalty", 1.0),
            min_length=0 if min_new_tokens else min_length,
            min_new_tokens=min_new_tokens,
            bad_words_ids=[word for word in words if word not in usual],
            suppress_tokens=[each for each in suppressed if each not in (PAD_ID, START_ID)],
            begin_suppress_tokens=our_ids(
                "begin_suppress_tokens", values.get("begin_suppress_tokens", [])
            ),
            forced_bos_token_id=None if first is None else our_id("forced_bos_token_id", first),
            **changes,
        )
    except ValueError as error:
        raise ConversionError(f"{settings.file}: {error}") from None
