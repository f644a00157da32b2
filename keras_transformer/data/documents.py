"""Reads documents and splits them into sentences."""

import pathlib
from collections.abc import Sequence

from keras_transformer.arguments import read_texts
from keras_transformer.data.labelled_text import labelled_files, text_of

_AT_A_TIME = 1000  # texts


def read_documents(path) -> list[str]:
    """Reads documents: the `.txt` files of a folder and its subfolders, or the parts of a file.

    In a file, `.gz` or not, documents are separated by empty lines; lines end in "\\n", "\\r\\n" or
    "\\r". Files are read in the order of their names. Of a folder of labels only the
    `labelled_files` are read, then those in `unsup`, but no other files, such as the URL lists of
    the Large Movie Review Dataset.

    Raises:
        OSError: if there is nothing at the path, or a file cannot be read.
        ValueError: if there are fewer than two documents, or one is not UTF-8.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        documents = [text_of(file) for file in documents_in(path)]
    else:
        documents = [part for part in text_of(path).split("\n\n") if part.strip()]
    if len(documents) < 2:
        raise ValueError(
            "Expected at least two documents: a folder of .txt files, or a file with an empty line "
            f"between them. Received: {path} with {len(documents)}."
        )
    return documents


def documents_in(folder):
    """The files of a folder that `read_documents` reads, in order, a list of paths."""
    folder = pathlib.Path(folder)
    labelled = labelled_files(folder)
    unlabelled = folder.glob("unsup/*.txt") if labelled else folder.rglob("*.txt")
    return [*labelled, *sorted(unlabelled)]


def split_sentences(texts: Sequence[str]) -> list[list[str]]:
    """Splits each text into sentences, with tensorflow-text's rules for punctuation.

    Spaces around a sentence are left out; one of another kind within it becomes a plain space.

    Examples:
        >>> split_sentences(["Once more? Once more!", "No"])
        [['Once more?', 'Once more!'], ['No']]
        >>> split_sentences(["  10\\u00a0km.  So  far!"])
        [['10 km.', 'So  far!']]
    """
    import tensorflow as tf
    import tensorflow_text

    breaker = tensorflow_text.StateBasedSentenceBreaker()
    sentences = []
    texts = list(read_texts(texts))
    for start in range(0, len(texts), _AT_A_TIME):
        # The breaker splits a multi-byte space, such as NEL, in two.
        spaced = tf.strings.regex_replace(texts[start : start + _AT_A_TIME], r"[\p{Z}\x{85}]", " ")
        broken = tf.strings.strip(breaker.break_sentences(spaced))
        sentences += [[sentence.decode() for sentence in text] for text in broken.to_list()]
    return sentences
