"""Answers standard input line by line, in order, while it is still being written."""

import codecs
import itertools
import sys

FEWEST, MOST = 64, 1024  # lines answered together
LARGEST_READ = 2**18  # bytes
NAMED = 5  # truncated texts to name


class FirstPlaces:
    """Places in files, a list of which only the first are kept, and all are counted."""

    def __init__(self):
        self._first, self._count = [], 0

    def add(self, places):
        for place in places:
            self._count += 1
            if self._count <= NAMED:
                self._first.append(place)

    def __len__(self):
        return self._count

    def __iter__(self):
        return iter(self._first)


def answer_lines(answer, max_length, how="truncated at the end"):
    """Writes the answer to each line of standard input to standard output, in the same order.

    Reports on standard error which lines were truncated and, after Ctrl-C, how many were answered.

    Args:
        answer: a function from a list of texts to the pair of a list of their answers and a list
            of whether each text was truncated.
        max_length: longest text in tokens that is not truncated.
        how: how texts are truncated, in words.
    """
    count, cut = 0, FirstPlaces()
    try:
        for lines in arriving_lines(sys.stdin.buffer):
            # Bytes that are not UTF-8 become U+FFFD.
            answers, is_cut = answer([line.decode(errors="replace") for line in lines])
            rows = (text.replace("\n", " ").encode() + b"\n" for text in answers)
            sys.stdout.buffer.write(b"".join(rows))
            sys.stdout.buffer.flush()
            numbered = enumerate(is_cut, count + 1)
            cut.add(f"{line:,}" for line, was_cut in numbered if was_cut)
            count += len(lines)
    except KeyboardInterrupt:
        print(f"Stopped after {count:,} lines.", file=sys.stderr)
        report_cut_texts(cut, count, max_length, how)
        raise
    report_cut_texts(cut, count, max_length, how)


def report_cut_texts(places, count, max_length, how="truncated at the end", word="lines"):
    """Prints one line to standard error if texts were truncated.

    Args:
        places: the lines or files of these texts, strings, a list or `FirstPlaces`.
        count: number of all texts.
        max_length: longest text in tokens that is not truncated.
        how: how they were truncated, in words.
        word: the plural noun for the places.
    """
    if not places:
        return
    print(
        f"{len(places):,} of {count:,} texts are longer than {max_length} tokens and were {how}: "
        f"{word} {first_of(places)}.",
        file=sys.stderr,
    )


def first_of(places):
    """The first of some places in words, and how many more there are."""
    more = f" and {len(places) - NAMED:,} more" if len(places) > NAMED else ""
    return ", ".join(itertools.islice(places, NAMED)) + more


def arriving_lines(stream):
    """Yields lists of the lines that have arrived on a binary stream, without "\\n" or "\\r\\n".

    Waits only while there are none. The lists are short at first, so that answers come soon, and
    grow, so that lines of similar lengths can be answered together. Only a line feed ends a line.
    A byte order mark before the first is left out.
    """
    most, rest, is_first = FEWEST, b"", True
    while some := stream.read1(LARGEST_READ):
        *lines, rest = (rest + some).split(b"\n")
        lines = [line.removesuffix(b"\r") for line in lines]
        if lines and is_first:
            lines[0], is_first = lines[0].removeprefix(codecs.BOM_UTF8), False
        while lines:
            yield lines[:most]
            lines, most = lines[most:], min(2 * most, MOST)
    if rest:
        yield [rest.removesuffix(b"\r").removeprefix(codecs.BOM_UTF8 if is_first else b"")]
