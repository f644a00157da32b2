"""The languages of a multilingual translation model."""


def in_languages(tokenizer, target_tokenizer, config, source_language=None, target_language=None):
    """The tokenizers of a multilingual model, which begin every text with their language's token.

    Args:
        tokenizer: tokenizer of the sources. One without `languages` is returned unchanged.
        target_tokenizer: tokenizer of the translations; None if it is `tokenizer`.
        config: settings with the default "source_language" and "target_language", a dictionary.
        source_language: one of `tokenizer.languages`; None for the default.
        target_language: likewise a language of the target tokenizer.

    Raises:
        ValueError: if a language is missing or unknown.
    """
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
