"""The languages between which one model translates."""


def in_languages(tokenizer, target_tokenizer, config, source_language=None, target_language=None):
    """The tokenizers of a model of many languages, each with the language of its side.

    Args:
        tokenizer: of the sources. One that knows no `languages` comes back as it is.
        target_tokenizer: of the translations; None if it is `tokenizer`.
        config: settings with "source_language" and "target_language", a dictionary.
        source_language: one of `tokenizer.languages`; None for that of `config`.
        target_language: one of those of the target.

    Returns:
        The pair of tokenizers, which put the token of their language before every text.

    Raises:
        ValueError: if a language is missing or unknown.
    """
    given = {"source_language": source_language, "target_language": target_language}
    if not _languages(tokenizer):
        if any(given.values()):
            raise ValueError(
                "Only models of many languages, such as M2M100, take source_language and "
                "target_language. Received: a model that translates what it was trained for."
            )
        return tokenizer, target_tokenizer
    sides = zip(given.items(), (tokenizer, target_tokenizer or tokenizer), strict=True)
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
    """Refuses a tokenizer of many languages without a language, which no model was trained for."""
    if _languages(tokenizer) and tokenizer.language is None:
        raise ValueError(
            "A tokenizer of many languages needs one: tokenizer.with_language(name), one of "
            f"{', '.join(_languages(tokenizer))}."
        )


def _languages(tokenizer):
    return getattr(tokenizer, "languages", {})
