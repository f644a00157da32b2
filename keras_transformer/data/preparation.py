"""Prepares parallel text of any size once: cleans it, learns a tokenizer, writes token ids."""

import hashlib
import itertools
import logging
import pathlib
import shutil

import numpy as np

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.data.corpora import lines_of
from keras_transformer.data.pair_streams import PairStream
from keras_transformer.data.prepared import MANIFEST, Prepared, PreparedWriter
from keras_transformer.data.token_ids import tokenized, tokenizer_checksum
from keras_transformer.files import NotWritten

LOG = logging.getLogger(__name__)

HELD_OUT = "held_out.source.txt", "held_out.target.txt"
SAMPLE_LINES = 150_000

_BYTES_ON_DISK = 0.8  # that ids and places take, for each byte of text
_BYTES_OF_HASHES = 0.2  # likewise, while equal pairs are looked for
_NUM_BUCKETS = 64  # of hashes, each of which is in memory alone
_TOKENIZER = "tokenizer.model"
_SAMPLE = "sample.txt"
_LARGEST_HELD_OUT = "largest_held_out.txt"  # written last by the first pass
_LARGEST_HASH = 2**64 - 1
_SLACK = 1.2  # how many more pairs than are needed may be in memory


def prepare(
    path,
    stream: PairStream,
    tokenizer=None,
    vocabulary_size: int = 32_000,
    sample_lines: int = SAMPLE_LINES,
    held_out: int = 0,
    distinct: bool = False,
    max_ratio: float = 0.0,
    max_characters: int = 0,
    drop_copies: bool = False,
    threads: int | None = None,
    seed: int = 1,
    progress=None,
) -> Prepared:
    """Writes a prepared folder of sentences and their translations.

    Memory does not depend on the size of the text. Text is read twice where a tokenizer must be
    learned, pairs held out or duplicates found, otherwise once. The same arguments give the same
    bytes on any number of threads, and after any interruption: begun again, it goes on.

    Pairs with an empty side are left out, and further ones as the arguments say. The folder counts
    them by reason: "empty", "copies", "ratio", "characters", "duplicates", "held_out".

    Args:
        path: the folder; with the same text and arguments in it, it is returned as it is.
        stream: the text.
        tokenizer: one of `keras_transformer.tokenizers`; None learns pieces shared by both sides.
        vocabulary_size: pieces to learn.
        sample_lines: pairs from which they are learned: a sample drawn by the content of pairs.
        held_out: pairs to hold out, drawn likewise; they are written to the files `HELD_OUT`, in
            the order of the text, each of equal ones once.
        distinct: whether to leave out all but the first of equal pairs. They are told apart by
            64-bit hashes: of a billion different pairs, 0.03 are taken for equal ones.
        max_ratio: leaves out pairs of which one side has more than this times the words of the
            other; 0 for none.
        max_characters: leaves out pairs with more characters on a side; 0 for none.
        drop_copies: whether to leave out pairs whose sides are equal.
        threads: threads that tokenise; None for one on each core.
        seed: integer that fixes the sample and what is held out.
        progress: function that is called after each block with the name of the pass, "reading" or
            "tokenising", the bytes of text read so far, and the rows.

    Returns:
        The folder. Its columns are "source" and "target".

    Raises:
        OSError: if a file cannot be read, or the folder cannot be written.
        ValueError: if the text or an argument is invalid, the folder holds something else or was
            begun with other arguments, no pair is left, or a file changes meanwhile.
    """
    for name, value in (("held_out", held_out), ("max_characters", max_characters)):
        check_integer(name, value, 0)
    check_integer("sample_lines", sample_lines)
    check_number("max_ratio", max_ratio, least=0)
    settings = {
        "text": stream.states(), "kind": stream.kind, "vocabulary_size": vocabulary_size,
        "held_out": held_out, "distinct": distinct, "max_ratio": max_ratio,
        "max_characters": max_characters, "drop_copies": drop_copies, "seed": seed,
        "sample_lines": sample_lines,
        "tokenizer": None if tokenizer is None else tokenizer_checksum(tokenizer),
    }  # fmt: skip
    path = pathlib.Path(path)
    if (path / MANIFEST).exists():
        existing = Prepared(path)
        if existing.manifest["settings"] == settings:
            LOG.warning("%s is already prepared: nothing to do.", path)
            return existing
        raise ValueError(
            f"{path} was prepared from other texts or with other settings. Choose another folder, "
            "or delete it."
        )
    kept = _Filters(max_ratio, max_characters, drop_copies)
    progress = progress or (lambda *_: None)
    size = vocabulary_size if tokenizer is None else tokenizer.vocabulary_size
    with PreparedWriter(path, ("source", "target"), size, settings=settings) as writer:
        if not writer.num_blocks and not any(writer.work.iterdir()):  # it does not go on
            _check_room(writer, stream, distinct)
        hashes = None
        if tokenizer is None or held_out or distinct:
            # One that is left after those held out shows that there is text to learn from.
            sampled = sample_lines if tokenizer is None else 1
            hashes = _Hashes(writer, seed, held_out, sampled, distinct)
            if not hashes.exist():
                hashes.read(stream, kept, progress)
        if tokenizer is None:
            tokenizer = _learned(writer.draft / _TOKENIZER, hashes, vocabulary_size)
        elif not (writer.draft / _TOKENIZER).exists():
            tokenizer.save(writer.draft / _TOKENIZER)
        _check_unchanged(stream, settings)
        counts = _write(writer, stream, kept, hashes, tokenizer, threads, progress)
        _check_unchanged(stream, settings)
        writer.finish({"kind": "translation", "counts": counts})
    return Prepared(path)


def _check_unchanged(stream, settings):
    """Raises ValueError if a file is no longer as it was at the beginning."""
    if stream.states() != settings["text"]:
        raise ValueError(
            "A file has changed while it was read. Begin again when the text stays as it is. "
            f"Received: {', '.join(map(str, stream.files[:3]))}."
        )


class _Filters:
    """Why a pair is left out by itself, in the order in which reasons are tried."""

    def __init__(self, max_ratio, max_characters, drop_copies):
        self._max_ratio, self._max_characters = max_ratio, max_characters
        self._drop_copies = drop_copies

    def reason(self, source, target):
        """A word, or None for a pair that is kept."""
        if not source.strip() or not target.strip():
            return "empty"
        if self._drop_copies and source.strip() == target.strip():
            return "copies"
        if self._max_characters and max(len(source), len(target)) > self._max_characters:
            return "characters"
        if self._max_ratio:
            words = sorted((len(source.split()), len(target.split())))
            if words[1] > self._max_ratio * words[0]:
                return "ratio"
        return None


class _Hashes:
    """What the first pass learns: 64-bit hashes of pairs, and the pairs of the smallest ones.

    Hashes do not depend on the order of the text, and are equal for equal pairs. The pairs of the
    smallest ones are held out; those of the next ones are the sample of the tokenizer.
    """

    def __init__(self, writer, seed, held_out, sample_lines, distinct):
        self._work, self._draft = writer.work, writer.draft
        self._key = seed.to_bytes(8, "little", signed=True)
        self._held_out, self._sample_lines, self._distinct = held_out, sample_lines, distinct

    def exist(self):
        """Whether an interrupted preparation has come to the end of its first pass."""
        return (self._work / _LARGEST_HELD_OUT).exists()

    def of(self, sources, targets):
        """The hash of each pair, uint64."""
        digests = b"".join(
            hashlib.blake2b(
                b"%s\0%s" % (source.encode(), target.encode()), digest_size=8, key=self._key
            ).digest()
            for source, target in zip(sources, targets, strict=True)
        )
        return np.frombuffer(digests, "<u8")

    def read(self, stream, filters, progress):
        count, smallest = 0, _Smallest(self._held_out + self._sample_lines)
        with _Buckets(self._work) as buckets:
            for sources, targets, position in stream.blocks():
                pairs = zip(sources, targets, strict=True)
                pairs = [pair for pair in pairs if filters.reason(*pair) is None]
                hashes = self.of(*zip(*pairs, strict=True)) if pairs else np.zeros(0, np.uint64)
                smallest.add(hashes, pairs, count)
                if self._distinct:
                    buckets.add(hashes, count)
                count += len(pairs)
                progress("reading", position, count)
        found = smallest.ordered()
        if len(found) <= self._held_out:
            raise ValueError(
                f"held_out must leave pairs to learn from, of {len(found):,} different ones. "
                f"Received: held_out={self._held_out}."
            )
        held_out, sample = found[: self._held_out], found[self._held_out :]
        if self._held_out:
            held_out_in_order = sorted(held_out, key=lambda each: each[1])
            for side, name in enumerate(HELD_OUT):
                _write_lines(self._draft / name, (pair[side] for _, _, pair in held_out_in_order))
        largest = int(held_out[-1][0]) if held_out else -1
        if self._distinct:
            buckets.find_first(count)
        sample = (pair for _, _, pair in sorted(sample, key=lambda each: each[1]))
        _write_lines(self._work / _SAMPLE, itertools.chain.from_iterable(sample))
        draft = self._work / "largest.draft"
        draft.write_text(f"{largest}\n")
        draft.replace(self._work / _LARGEST_HELD_OUT)

    def sample(self):
        """The sentences to learn a tokenizer from, of both sides."""
        return lines_of(self._work / _SAMPLE)

    @property
    def largest_held_out(self):
        """Pairs with a hash up to this one are held out; -1 for none."""
        return int((self._work / _LARGEST_HELD_OUT).read_text())

    def are_first(self):
        """For each pair that the filters keep whether it is the first of equal ones."""
        if not self._distinct:
            return None
        return np.load(self._work / "first.npy", mmap_mode="r")


class _Smallest:
    """The pairs of the smallest hashes among all that are added, each of equal ones once."""

    def __init__(self, count):
        self._count, self._limit, self._kept = count, _LARGEST_HASH, {}

    def add(self, hashes, pairs, first):
        for place in np.flatnonzero(hashes <= np.uint64(self._limit)).tolist():
            self._kept.setdefault(int(hashes[place]), (first + place, pairs[place]))
        if len(self._kept) > _SLACK * self._count:
            self._cut()

    def _cut(self):
        hashes = sorted(self._kept)[: self._count]
        self._limit = hashes[-1]
        self._kept = {number: self._kept[number] for number in hashes}

    def ordered(self):
        """A list of (hash, place, pair), the smallest hash first."""
        if len(self._kept) > self._count:
            self._cut()
        return [(number, *self._kept[number]) for number in sorted(self._kept)]


class _Buckets:
    """Finds equal hashes on disk, one bucket of them at a time in memory."""

    def __init__(self, work):
        self._work, self._files = work, []

    def __enter__(self):
        names = (self._work / f"hashes-{number:02d}" for number in range(_NUM_BUCKETS))
        self._files = [open(name, "wb") for name in names]  # noqa: SIM115
        return self

    def __exit__(self, *_):
        for file in self._files:
            file.close()

    def add(self, hashes, first):
        rows = np.stack([hashes, first + np.arange(len(hashes), dtype=np.uint64)], axis=1)
        buckets = hashes // np.uint64(2**64 // _NUM_BUCKETS)
        for bucket in np.unique(buckets).tolist():
            self._files[bucket].write(rows[buckets == bucket].tobytes())

    def find_first(self, count):
        """Writes which of `count` rows are the first with their hash, `first.npy`."""
        self.__exit__()
        first = np.lib.format.open_memmap(self._work / "first.npy", "w+", bool, (count,))
        for number in range(_NUM_BUCKETS):
            path = self._work / f"hashes-{number:02d}"
            rows = np.fromfile(path, np.uint64).reshape(-1, 2)
            _, places = np.unique(rows[:, 0], return_index=True)
            first[rows[places, 1].astype(np.int64)] = True
            path.unlink()
        first.flush()


def _learned(path, hashes, vocabulary_size):
    """The tokenizer of an interrupted preparation, or one that is learned from the sample."""
    from keras_transformer.tokenizers import load_tokenizer, train_sentencepiece

    if not path.exists():
        train_sentencepiece(hashes.sample(), vocabulary_size).save(path)
    return load_tokenizer(path)


def _write(writer, stream, filters, hashes, tokenizer, threads, progress):
    """The second pass; returns the counts of rows, ids and what is left out."""
    counts = dict.fromkeys(
        ("rows", "empty", "copies", "characters", "ratio", "duplicates", "held_out"), 0
    )
    first = largest_held_out = None
    if hashes is not None:
        first, largest_held_out = hashes.are_first(), hashes.largest_held_out
    skipped, num_kept = writer.num_blocks, 0
    for number, (sources, targets, position) in enumerate(stream.blocks()):
        pairs = []
        for pair in zip(sources, targets, strict=True):
            if (reason := filters.reason(*pair)) is None:
                pairs.append(pair)
            else:
                counts[reason] += 1
        before, num_kept = num_kept, num_kept + len(pairs)
        is_kept = np.ones(len(pairs), bool)
        if first is not None:
            if num_kept > len(first):
                raise ValueError("A file has changed while it was read: it has more lines now.")
            is_kept &= first[before:num_kept]
            counts["duplicates"] += int((~is_kept).sum())
        if pairs and largest_held_out is not None and largest_held_out >= 0:
            is_held_out = is_kept & (
                hashes.of(*zip(*pairs, strict=True)) <= np.uint64(largest_held_out)
            )
            counts["held_out"] += int(is_held_out.sum())
            is_kept &= ~is_held_out
        if number < skipped:
            progress("tokenising", position, num_kept)
            continue
        pairs = list(itertools.compress(pairs, is_kept))
        sides = zip(*pairs, strict=True) if pairs else ((), ())
        ids = [tokenized(side, tokenizer, threads) for side in map(list, sides)]
        # Some texts have no tokens: of characters that the tokenizer drops.
        full = np.flatnonzero(np.minimum(*(side.lengths for side in ids)))
        empty = writer.notes.get("empty", 0) + len(pairs) - len(full)
        source, target = (side.take(full) for side in ids)
        writer.append({"source": source, "target": target}, notes={"empty": empty})
        progress("tokenising", position, num_kept)
    counts["empty"] += writer.notes.get("empty", 0)
    counts["rows"] = writer.num_rows
    return counts


def _write_lines(path, texts):
    """Writes one text a line; those of a table may hold line breaks."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(text.replace("\n", " ") + "\n" for text in texts)


def _check_room(writer, stream, distinct):
    """Raises `NotWritten` if the disk has less room than the folder probably needs."""
    needed = int(stream.num_bytes * (_BYTES_ON_DISK + _BYTES_OF_HASHES * distinct))
    free = shutil.disk_usage(writer.draft).free
    if needed > free:
        shutil.rmtree(writer.draft)
        raise NotWritten(
            writer.path, f"it needs about {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        )
