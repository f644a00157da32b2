"""Learns the vocabulary of a SentencePiece model, without TensorFlow."""

import io
import re

import sentencepiece

from keras_transformer.arguments import read_texts
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID

CONTROL_PIECES = ["<pad>", "<unk>", "<s>", "</s>"]

# Characters beyond this share of the text (a stray Greek letter in English) are left to byte
# fallback instead of each using a row of the vocabulary.
_CHARACTER_COVERAGE = 0.9999

LONGEST_SENTENCE = 2**20  # bytes; longer ones would be ignored

TRAINER_OPTIONS = {
    "pieces": {
        "model_type": "bpe",
        "byte_fallback": True,
        "split_digits": True,  # so that a number is copied digit by digit, however long
    },
    "words": {
        "model_type": "word",
        "normalization_rule_name": "nmt_nfkc_cf",  # which folds upper into lower case
        "hard_vocab_limit": False,
    },
}

# SentencePiece's default, and one that keeps every character.
NORMALIZATIONS = {
    "nmt_nfkc": {},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}


def learned_model(sentences, vocabulary_size, tokens="pieces", normalization="nmt_nfkc") -> bytes:
    """The serialised model for `SentencePieceTokenizer`; arguments of `train_sentencepiece`."""
    if tokens not in TRAINER_OPTIONS:
        raise ValueError(f"tokens must be pieces or words. Received: tokens={tokens!r}.")
    allowed = [*NORMALIZATIONS] if tokens == "pieces" else ["nmt_nfkc"]
    if normalization not in allowed:
        raise ValueError(
            f"normalization of {tokens} must be {' or '.join(allowed)}. "
            f"Received: normalization={normalization!r}."
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocabulary_size,
            character_coverage=_CHARACTER_COVERAGE,
            max_sentence_length=LONGEST_SENTENCE,
            **TRAINER_OPTIONS[tokens],
            **NORMALIZATIONS[normalization],
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            pad_piece=CONTROL_PIECES[PAD_ID],
            minloglevel=2,  # its progress report would go to the terminal
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), vocabulary_size)) from None
    return model.getvalue()


def texts_to_learn(texts):
    """The texts, each in UTF-8; refuses a string in their place: each letter would be one text."""
    if isinstance(texts, (str, bytes)):
        raise ValueError(
            "A vocabulary is learned from several texts, such as a list of strings. "
            f"Received: one string, {texts[:20]!r}."
        )
    return _in_utf8(read_texts(texts, kinds=(str, bytes)))


def _in_utf8(texts):
    for row, text in enumerate(texts):
        try:
            yield text.decode() if isinstance(text, bytes) else text
        except UnicodeDecodeError as error:
            raise ValueError(f"texts[{row}] must be UTF-8. Received: {error}.") from None


def _explain(message: str, vocabulary_size: int) -> str:
    """Turns a refusal of the SentencePiece trainer into one clear line."""
    if refused := re.match("INTERNAL: ValueError: (.*)", message):  # of `texts_to_learn`
        return refused[1]
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "A vocabulary needs text to learn from. Received: no sentence with any text."
    if most := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"The text allows a vocabulary of at most {most[1]} pieces. Choose a smaller "
            f"vocabulary or give more text. Received: vocabulary_size={vocabulary_size}."
        )
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"The vocabulary must have at least {least[1]} pieces: 4 control ids, 256 bytes and "
            f"each character of the text. Received: vocabulary_size={vocabulary_size}."
        )
    return (
        f"SentencePiece could not train a vocabulary: {message}. "
        f"Received: vocabulary_size={vocabulary_size}."
    )
