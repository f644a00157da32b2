"""Splits text into documents, and documents into sentences."""

import codecs
import io
import math
import pathlib
from collections.abc import Iterator, Sequence

from keras_transformer.arguments import read_texts
from keras_transformer.data.labelled_text import labelled_files

_AT_A_TIME = 1000  # texts


def documents_in(folder):
    """The `.txt` files of a folder and its subfolders, in the order of their names.

    Of a folder of labels only the `labelled_files`, then those in `unsup`, but no other files,
    such as the URL lists of the Large Movie Review Dataset.
    """
    folder = pathlib.Path(folder)
    labelled = labelled_files(folder)
    unlabelled = folder.glob("unsup/*.txt") if labelled else folder.rglob("*.txt")
    return [*labelled, *sorted(unlabelled)]


def split_documents(file, is_one=False, longest=math.inf) -> Iterator[tuple[bytes, int]]:
    """Yields the documents of a binary file, each with the number of its first line.

    Documents are separated by empty lines, which belong to the one before; lines end in "\\n",
    "\\r\\n" or "\\r". A byte order mark is left out.

    Args:
        file: the file, opened in binary mode.
        is_one: whether the whole file is one document.
        longest: number of bytes after which a document is cut at the end of a line.
    """
    document, first, number, is_end = bytearray(), 1, 0, False
    # Latin-1 has a character for each byte, and `newline=""` keeps the line ends as they are.
    read = io.TextIOWrapper(file, "latin-1", newline="")
    try:
        for number, line in enumerate(read, start=1):
            line = line.encode("latin-1")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            is_empty = line in (b"\n", b"\r\n", b"\r")
            is_next = is_end and not is_empty and not is_one
            if document and (is_next or len(document) >= longest):
                yield bytes(document), first
                document, first = bytearray(), number
            document += line
            is_end = is_empty
        if document or (is_one and first == 1):  # which may be empty
            yield bytes(document), first
    finally:
        read.detach()  # otherwise it would close the file


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
