"""Prepares text of any size once: cleans it, learns a tokenizer, writes token ids."""

import contextlib
import functools
import itertools
import logging
import os
import pathlib
import shutil

import numpy as np
import sentencepiece

from keras_transformer import tokenizers
from keras_transformer.arguments import check_integer, check_number
from keras_transformer.data.block_work import (
    DUPLICATE,
    KEPT,
    REASONS,
    RESERVED,
    Filters,
    portable,
    read_block,
    tokenise_block,
    tokenise_sentences,
)
from keras_transformer.data.documents import split_sentences
from keras_transformer.data.prepared import MANIFEST, Prepared, PreparedWriter
from keras_transformer.data.streams import DocumentStream, LabelledStream, PairStream
from keras_transformer.data.text_files import lines_of
from keras_transformer.data.token_ids import tokenizer_checksum
from keras_transformer.files import NotWritten, atomic_path
from keras_transformer.tokenizers.sentencepiece_training import learned_model
from keras_transformer.worker_pool import local_pool, ray_cluster, ray_pool

LOG = logging.getLogger(__name__)

HELD_OUT = PairStream.held_out

RUNNERS = ("local", "ray")
_BYTES_OF_WORKER = 2**30  # of memory that Ray sets aside for a worker
_BYTES_ON_DISK = 0.8  # that ids and places take, for each byte of text
_BYTES_OF_HASHES = 0.2  # likewise, while equal pairs are looked for
_NUM_BUCKETS = 64  # of hashes, each of which is in memory alone
_TOKENIZER = "tokenizer.model"
_SAMPLE, _SAMPLE_SIZE = "sample.txt", "sample_size.txt"
_FATES = "fates"  # the reason of each row, a byte; written last by the first reading
_NUM_HASHES = 2**64
_SLACK = 1.2  # how many more pairs than are needed may be in memory


def prepare(
    path,
    stream: PairStream | DocumentStream | LabelledStream,
    tokenizer=None,
    vocabulary_size: int = 32_000,
    sample_lines: int | None = None,
    held_out: float = 0,
    distinct: bool = False,
    max_ratio: float = 0.0,
    max_characters: int = 0,
    max_tokens: int = 0,
    drop_copies: bool = False,
    runner: str = "local",
    processes: int | None = None,
    seed: int = 1,
    progress=None,
) -> Prepared:
    """Writes a prepared folder of pairs of sentences, of documents, or of labelled texts.

    Memory does not depend on the size of the text. Text is read twice where a tokenizer must be
    learned, rows held out or duplicates found, otherwise once. A row is a pair or a text. The
    same arguments give the same bytes on any number of processes and machines, and after any
    interruption: begun again, it goes on.

    Rows with an empty side are left out, and further ones as the arguments say. The folder counts
    them by reason: "empty", "copies", "ratio", "characters", "duplicates", "held_out", "tokens".

    Args:
        path: the folder; with the same text and arguments in it, it is returned as it is.
        stream: the text.
        tokenizer: one of `keras_transformer.tokenizers`; None learns pieces shared by both sides,
            byte pairs of documents, or word pieces for pretraining.
        vocabulary_size: pieces to learn.
        sample_lines: rows from which they are learned: a sample drawn by their content; a smaller
            text is learned whole. None for 150,000 pairs or 20,000 documents.
        held_out: rows to hold out, drawn likewise: how many, or, below 1, about which share. They
            are in memory meanwhile, and written to the files `stream.held_out`, in the order of
            the text, each of equal ones once.
        distinct: whether to leave out all but the first of equal rows. They are told apart by
            64-bit hashes: of a billion different pairs, 0.03 are taken for equal ones.
        max_ratio: leaves out pairs of which one side has more than this times the words of the
            other; 0 for none.
        max_characters: leaves out rows with more characters on a side; 0 for none.
        max_tokens: leaves out rows with more tokens on a side, for pretraining sentences; 0 for
            none.
        drop_copies: whether to leave out pairs whose sides are equal.
        runner: "local" for processes of this machine, "ray" for actors on a Ray cluster: the one
            of the environment variable `RAY_ADDRESS`, or one of this machine alone.
        processes: how many work at once; None for one on each core.
        seed: integer that fixes the sample and what is held out.
        progress: function that is called after each block with the name of the pass, "reading" or
            "tokenising", the bytes of text read so far, and the rows.

    Returns:
        The folder. Its columns are "source" and "target", or "text": a row for each document or,
        for pretraining, for each sentence; the array "documents" then numbers their documents. The
        array "labels" is the matrix of labelled texts.

    Raises:
        ImportError: if Ray is to be used, and not installed.
        OSError: if a file cannot be read, the folder cannot be written, or a cluster cannot be
            reached.
        ValueError: if the text or an argument is invalid, the folder holds something else or was
            begun with other arguments, no pair is left, a file changes meanwhile, or workers die at
            the same block again and again.
    """
    if isinstance(held_out, float):
        check_number("held_out", held_out, least=0, below=1, reason=" A number of pairs is an int.")
    else:
        check_integer("held_out", held_out, 0)
    if held_out:
        stream.check_held_out()
    for name, value in (("max_characters", max_characters), ("max_tokens", max_tokens)):
        check_integer(name, value, 0)
    sample_lines = stream.sample if sample_lines is None else sample_lines
    check_integer("sample_lines", sample_lines)
    check_number("max_ratio", max_ratio, least=0)
    if runner not in RUNNERS:
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}. Received: {runner!r}.")
    settings = {
        "text": stream.states(), "kind": [stream.kind, *stream.format],
        "vocabulary_size": vocabulary_size,
        "held_out": held_out, "distinct": distinct, "max_ratio": max_ratio,
        "max_characters": max_characters, "max_tokens": max_tokens, "drop_copies": drop_copies,
        "seed": seed, "sample_lines": sample_lines,
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
    progress = progress or (lambda *_: None)
    size = vocabulary_size if tokenizer is None else tokenizer.vocabulary_size
    filters = Filters(max_ratio, max_characters, drop_copies)
    is_pretraining = stream.kind == "pretraining"
    given = tokenizer is not None
    if given:
        _check_tokenizer(tokenizer)
    if is_pretraining and given and not isinstance(tokenizer, tokenizers.WordPieceTokenizer):
        raise ValueError(
            "tokenizer must be a WordPieceTokenizer to prepare text for pretraining, which masks "
            f"its pieces. Received: a {type(tokenizer).__name__}."
        )
    arrays, more = None, {}
    if is_pretraining:
        arrays = {"documents": (np.uint32, ())}
    if stream.kind == "classification":
        arrays, more = {"labels": (np.float32, (len(stream.names) or 1,))}, {"names": stream.names}
    with (
        PreparedWriter(path, stream.columns, size, arrays, settings) as writer,
        _running_pool(runner, processes) as pool,
    ):
        if not writer.num_blocks and not any(writer.work.iterdir()):  # it does not go on
            _check_room(writer, stream, distinct or held_out)
        has_fates = tokenizer is None or bool(held_out) or distinct
        if has_fates and not (writer.work / _FATES).exists():
            # One that is left after those held out shows that there is text to learn from.
            wanted = held_out, sample_lines if tokenizer is None else 1
            read = functools.partial(read_block, filters, _key_of(seed))
            _read(writer, pool, stream, read, wanted, distinct, progress)
        if tokenizer is None:
            content = _learned(writer, stream.kind, vocabulary_size)
            if isinstance(content, bytes) and not is_pretraining:  # text may allow fewer
                learned = tokenizers.load_tokenizer(writer.draft / _TOKENIZER)
                writer.vocabulary_size = learned.vocabulary_size
            more["sample"] = int((writer.work / _SAMPLE_SIZE).read_text())
        else:
            if not (writer.draft / _TOKENIZER).exists():
                tokenizer.save(writer.draft / _TOKENIZER)
            content = portable(tokenizer)
        _check_unchanged(stream, settings)
        tokenise = tokenise_sentences if is_pretraining else tokenise_block
        tokenise = functools.partial(tokenise, filters, content, max_tokens)
        counts = _write(writer, pool, stream, tokenise, has_fates, progress)
        _check_unchanged(stream, settings)
        if is_pretraining:
            more["num_documents"] = counts["rows"]
        writer.finish({"kind": stream.kind, "counts": counts, **more})
    return Prepared(path)


@contextlib.contextmanager
def _running_pool(runner, processes):
    """Yields a `WorkerPool`, whose workers import TensorFlow only if their function does."""
    environment = {"KERAS_BACKEND": "numpy"}
    with contextlib.ExitStack() as stack:
        if runner == "local":
            pool = local_pool(processes or os.cpu_count(), [environment])
        else:
            quiet = {"log_to_driver": False, "logging_level": "error"}  # beside the progress
            ray = stack.enter_context(ray_cluster(processes, **quiet))
            count = processes or int(ray.cluster_resources().get("CPU", 1))
            runtime = {"env_vars": environment}
            pool = ray_pool(ray, count, memory=_BYTES_OF_WORKER, runtime_env=runtime)
        yield stack.enter_context(pool)


def _key_of(seed):
    return seed.to_bytes(8, "little", signed=True)


def _check_unchanged(stream, settings):
    """Raises ValueError if a file is no longer as it was at the beginning."""
    if stream.states() != settings["text"]:
        raise ValueError(
            "A file has changed while it was read. Begin again when the text stays as it is. "
            f"Received: {', '.join(map(str, stream.files[:3]))}."
        )


class _Drawn:
    """The rows of the smallest hashes among all that are added, each of equal ones once.

    Hashes do not depend on the order of the text, and are equal for equal rows. The rows of the
    smallest ones are held out; those of the next ones are the sample of the tokenizer.
    """

    def __init__(self, held_out, sample_lines):
        self._held_out, self._sample_lines = held_out, sample_lines
        self.largest, self._kept = _NUM_HASHES - 1, {}
        self._most = _SLACK * (self._num_held_out({}) + sample_lines)

    def add(self, rows, first):
        """Adds (hash, row, texts) of a block whose first row has this number."""
        for number, row, texts in rows:
            if number <= self.largest:
                self._kept.setdefault(number, (first + row, texts))
        if len(self._kept) > self._most:
            hashes = sorted(self._kept)
            count = self._num_held_out(hashes) + self._sample_lines
            if count < len(hashes):
                self.largest = hashes[count - 1]
                self._kept = {number: self._kept[number] for number in hashes[:count]}
            self._most = _SLACK * count

    def _num_held_out(self, hashes):
        if self._held_out >= 1:
            return self._held_out
        return sum(number < self._held_out * _NUM_HASHES for number in hashes)

    def parts(self):
        """The largest hash of what is held out, -1 for none; the rows held out; the sample.

        Rows are lists of their texts in the order of the text.
        """
        hashes = sorted(self._kept)
        count = self._num_held_out(hashes)
        if not hashes:
            raise ValueError("No row is left to read. Give more text, or filters that keep more.")
        if len(hashes) <= count:
            raise ValueError(
                f"held_out must leave pairs to learn from, of {len(hashes):,} different ones. "
                f"Received: held_out={self._held_out}."
            )
        rows = [self._kept[number] for number in hashes[: count + self._sample_lines]]
        held_out, sample = (
            [texts for _, texts in sorted(part)] for part in (rows[:count], rows[count:])
        )
        return hashes[count - 1] if count else -1, held_out, sample


def _read(writer, pool, stream, read, wanted, distinct, progress):
    """The first reading: writes the fate of each row, what is held out, and the sample."""
    work, draft = writer.work, writer.work / "fates.draft"
    drawn, num_rows = _Drawn(*wanted), 0
    with _Buckets(work) as buckets, open(draft, "wb") as file:
        blocks = ((block, (block, drawn.largest)) for block in stream.blocks())
        for block, (fates, hashes, of_labels, small) in pool.map(read, blocks):
            file.write(fates)
            drawn.add(small, num_rows)
            buckets.add(hashes, of_labels, num_rows + np.flatnonzero(fates == KEPT))
            num_rows += block.num_rows
            progress("reading", block.position, num_rows)
    largest, held_out, sample = drawn.parts()
    if held_out:
        if stream.kind == "pretraining":
            _check_measures(held_out)
        for name, lines in stream.held_out_lines(held_out):
            _write_text(writer.draft / name, lines)
    texts = itertools.chain.from_iterable(row[: len(stream.columns)] for row in sample)
    _write_text(work / _SAMPLE, map(stream.as_lines, texts))
    _write_text(work / _SAMPLE_SIZE, [str(len(sample))])
    fates = np.memmap(draft, np.uint8, "r+")
    for hashes, of_labels, rows in buckets.read():
        if distinct:
            _, first = np.unique(hashes ^ of_labels, return_index=True)
            fates[rows] = DUPLICATE
            hashes, rows = hashes[first], rows[first]
            fates[rows] = KEPT
        if held_out:
            fates[rows[hashes <= np.uint64(largest)]] = RESERVED
    fates.flush()
    del fates  # Windows renames no file that is mapped
    draft.replace(work / _FATES)


def _check_tokenizer(tokenizer):
    """Raises ValueError for a tokenizer that other processes would not have as it is given."""
    if getattr(tokenizer, "prefix", "") or getattr(tokenizer, "language", None) is not None:
        raise ValueError(
            "tokenizer must be without prefix and language, which a prepared folder does not keep. "
            "Put the prefix into the text, or tokenise in memory. "
            f"Received: prefix={getattr(tokenizer, 'prefix', '')!r}, "
            f"language={getattr(tokenizer, 'language', None)!r}."
        )
    are_pairs = isinstance(tokenizer, tokenizers.BytePairTokenizer)
    if are_pairs and not set(range(4)) <= set(tokenizer.control_ids):
        raise ValueError(
            "tokenizer must leave the ids below 4 to padding, start and end: give the "
            f"BytePairTokenizer first_id=4. Received: first_id={tokenizer.first_id}."
        )


def _check_measures(held_out):
    """Raises ValueError if documents are too few to measure pretraining on."""
    documents = split_sentences([text for text, *_ in held_out])
    usable = sum(len(sentences) > 1 for sentences in documents)
    if usable < 2:  # a random text comes from another document
        raise ValueError(
            "held_out must be at least two documents of two sentences for pretraining. "
            f"Received: {len(held_out)} documents, {usable} of them with two sentences."
        )


class _Buckets:
    """Hashes of texts and labels on disk with their rows; equal texts are read together."""

    def __init__(self, work):
        self._paths = [work / f"hashes-{number:02d}" for number in range(_NUM_BUCKETS)]

    def __enter__(self):
        self._files = [open(path, "wb") for path in self._paths]  # noqa: SIM115
        return self

    def __exit__(self, *_):
        for file in self._files:
            file.close()

    def add(self, hashes, of_labels, rows):
        entries = np.stack([hashes, of_labels, rows.astype(np.uint64)], axis=1)
        buckets = hashes // np.uint64(_NUM_HASHES // _NUM_BUCKETS)
        for bucket in np.unique(buckets).tolist():
            self._files[bucket].write(entries[buckets == bucket])

    def read(self):
        """Yields the hashes and the rows of one bucket after another, and deletes them."""
        for path in self._paths:
            hashes, of_labels, rows = np.fromfile(path, np.uint64).reshape(-1, 3).T
            yield hashes, of_labels, rows.astype(np.int64)
            path.unlink()


def _learned(writer, kind, vocabulary_size):
    """What `portable` makes of the tokenizer of an interrupted preparation, or of one that is
    learned from the sample. Of pieces, both are done without TensorFlow, which takes 0.5 GB."""
    path, lines = writer.draft / _TOKENIZER, lines_of(writer.work / _SAMPLE)
    are_pieces = kind in ("translation", "classification")
    if not path.exists():
        if are_pieces:
            with atomic_path(path) as draft:
                draft.write_bytes(learned_model(lines, vocabulary_size))
        elif kind == "pretraining":
            tokenizers.train_word_pieces(lines, vocabulary_size).save(path)
        else:
            lines = (f"{line}\n" for line in lines)
            tokenizers.train_byte_pairs(lines, vocabulary_size).save(path)
    content = path.read_bytes()
    return sentencepiece.SentencePieceProcessor(model_proto=content) if are_pieces else content


def _write(writer, pool, stream, tokenise, has_fates, progress):
    """The second reading, or the only one; returns the counts of rows and what is left out."""

    def blocks():
        first = 0
        for number, block in enumerate(stream.blocks()):
            part = None if fates is None else np.array(fates[first : first + block.num_rows])
            first += block.num_rows
            if part is not None and len(part) < block.num_rows:
                raise ValueError("A file has changed while it was read: it has more lines now.")
            if number >= num_written:
                yield block, (block, part)

    num_written = writer.num_blocks
    fates = np.memmap(writer.work / _FATES, np.uint8, "r") if has_fates else None
    counts = np.array(writer.notes.get("counts", [0] * len(REASONS)))
    for block, (ids, arrays, block_counts) in pool.map(tokenise, blocks()):
        if "documents" in arrays:  # numbered from 0 on in each block
            arrays["documents"] = arrays["documents"] + counts[KEPT].astype(np.uint32)
        counts += block_counts
        columns = dict(zip(stream.columns, ids, strict=True))
        writer.append(columns, arrays, {"counts": counts.tolist()})
        progress("tokenising", block.position, int(counts.sum()))
    return dict(zip(REASONS, counts.tolist(), strict=True))


def _write_text(path, texts):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(texts)


def _check_room(writer, stream, has_hashes):
    """Raises `NotWritten` if the disk has less room than the folder probably needs."""
    needed = int(stream.num_bytes * (_BYTES_ON_DISK + _BYTES_OF_HASHES * bool(has_hashes)))
    free = shutil.disk_usage(writer.draft).free
    if needed > free:
        shutil.rmtree(writer.draft)
        raise NotWritten(
            writer.path, f"it needs about {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        )
