"""Between the text of a language model and its tokens."""

from keras_transformer.tokenizers import SymbolTokenizer, train_byte_pairs

LONGEST_CHARACTER = 4  # bytes of UTF-8


def tokenizer_of(config, text):
    """The vocabulary of a text, which holds all of its characters or all bytes."""
    if config.tokens == "bytes":
        return SymbolTokenizer()
    if config.tokens == "pieces":
        lines = text.decode(errors="replace").splitlines(keepends=True)
        return train_byte_pairs(lines, config.vocabulary_size)
    try:
        return SymbolTokenizer("".join(set(text.decode())))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Characters need a text in UTF-8; otherwise take --tokens bytes. Received: {error}."
        ) from None


def token_ids(tokenizer, text):
    return tokenizer.tokenize([text]).flat_values.numpy()


def texts_of(tokenizer, ids):
    """The text of each token that arrives, held back while bytes of a character are missing."""
    pending = []
    for token_id in ids:
        pending.append(token_id)
        text = tokenizer.detokenize([pending]).numpy()[0].decode()
        if not text.endswith("\ufffd"):
            yield text
            pending = []
        elif len(pending) == LONGEST_CHARACTER:  # the first of them begins no character
            yield tokenizer.detokenize([pending[:1]]).numpy()[0].decode()
            pending = pending[1:]
    if pending:
        yield tokenizer.detokenize([pending]).numpy()[0].decode()
