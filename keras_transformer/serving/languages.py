"""What comes before a text: the languages of a multilingual model, and the prefix of a task."""


def in_languages(
    tokenizer,
    target_tokenizer,
    config,
    source_language=None,
    target_language=None,
    source_prefix=None,
):
    """The tokenizers of a model, set to the languages and the source prefix.

    Args:
        tokenizer: tokenizer of the sources.
        target_tokenizer: tokenizer of the translations; None if it is `tokenizer`.
        config: settings with the default "source_language", "target_language" and "source_prefix",
            a dictionary.
        source_language: one of `tokenizer.languages`; None for the default.
        target_language: likewise a language of the target tokenizer.
        source_prefix: text before each source; None for the default.

    Raises:
        ValueError: if a language is missing or unknown, or the tokenizer takes no prefix.
    """
    if source_prefix is None:
        source_prefix = config.get("source_prefix") or ""
    if source_prefix:
        target_tokenizer = target_tokenizer or tokenizer
        if not hasattr(tokenizer, "with_prefix"):
            raise ValueError(
                "source_prefix needs a SentencePieceTokenizer. "
                f"Received: a {type(tokenizer).__name__}."
            )
        tokenizer = tokenizer.with_prefix(source_prefix)
    requested = {"source_language": source_language, "target_language": target_language}
    if not _languages(tokenizer):
        if any(requested.values()):
            raise ValueError(
                "Only multilingual models, such as M2M100, accept source_language and "
                "target_language. Received: a model of one pair of languages."
            )
        return tokenizer, target_tokenizer
    sides = zip(requested.items(), (tokenizer, target_tokenizer or tokenizer), strict=True)
    tokenizers = []
    for (name, language), side in sides:
        language = language or config.get(name)
        if language not in _languages(side):
            raise ValueError(
                f"{name} must be one of {', '.join(_languages(side))}. "
                f"Received: {language or 'none'}."
            )
        tokenizers.append(side.with_language(language))
    return tuple(tokenizers)


def check_language(tokenizer):
    """Raises ValueError for a multilingual tokenizer whose language is not chosen."""
    if _languages(tokenizer) and tokenizer.language is None:
        raise ValueError(
            "A multilingual tokenizer needs a language: tokenizer.with_language(name), one of "
            f"{', '.join(_languages(tokenizer))}."
        )


def _languages(tokenizer):
    return getattr(tokenizer, "languages", {})
