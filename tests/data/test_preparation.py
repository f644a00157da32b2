"""Prepares text as a plain loop would, whatever it is interrupted by."""

import gzip
import io
import itertools
import logging
import os
import random
import re

import numpy as np
import pytest
import zstandard

from keras_transformer.data import (
    DocumentStream,
    LabelledStream,
    PairStream,
    preparation,
    prepare,
    prepared,
    split_sentences,
    streams,
    tokenize,
)
from keras_transformer.data.documents import split_documents
from keras_transformer.data.preparation import HELD_OUT
from keras_transformer.data.text_files import with_line_feeds
from keras_transformer.tokenizers import (
    BytePairTokenizer,
    SymbolTokenizer,
    WordPieceTokenizer,
    train_byte_pairs,
    train_sentencepiece,
)
from train.lines import arriving_lines
from train.pretraining import read_documents

from . import dying_work

WORDS = ["ein", "der", "Hund", "läuft", "schnell", "und", "weit", "a", "dog", "runs", "4711", "🙂"]
EVERYTHING = {
    "held_out": 9, "distinct": True, "max_ratio": 2.5, "max_characters": 40, "drop_copies": True,
    "vocabulary_size": 300, "sample_lines": 60, "max_tokens": 20,
}  # fmt: skip


def drawn_pairs(count=300):
    """Pairs with everything that filters look for, many of them equal."""
    draw = random.Random(4)
    pairs = []
    for _ in range(count):
        sides = [" ".join(draw.choices(WORDS, k=draw.randint(0, 9))) for _ in range(2)]
        kind = draw.random()
        if kind < 0.1:
            sides[1] = sides[0]
        pairs.append(draw.choice(pairs) if kind > 0.8 and pairs else tuple(sides))
    return pairs


@pytest.fixture(scope="module")
def pairs():
    return drawn_pairs()


def written(folder, pairs, suffix=""):
    """A stream of two files."""
    folder.mkdir(exist_ok=True)
    opened = gzip.open if suffix == ".gz" else open
    for side, language in enumerate(("en", "de")):
        with opened(folder / f"text.{language}{suffix}", "wt", encoding="utf-8") as file:
            file.writelines(f"{pair[side]}\n" for pair in pairs)
    return PairStream(folder / f"text.en{suffix}", folder / f"text.de{suffix}")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # no processes but where a test says so
    monkeypatch.setattr(streams, "ROWS", 7)
    monkeypatch.setattr(streams, "_LINES_AT_A_TIME", 1)
    monkeypatch.setattr(prepared, "_SECONDS_BETWEEN_NOTES", 0.0)


def plainly(pairs, held_out):
    """Counts by reason and the pairs that are kept, one pair after another."""
    counts = dict.fromkeys(("empty", "copies", "characters", "ratio", "duplicates"), 0)
    kept, seen = [], set()
    for source, target in pairs:
        words = len(source.split()), len(target.split())
        if not source.strip() or not target.strip():
            counts["empty"] += 1
        elif source.strip() == target.strip():
            counts["copies"] += 1
        elif len(source) > 40 or len(target) > 40:
            counts["characters"] += 1
        elif max(words) > 2.5 * min(words):
            counts["ratio"] += 1
        elif (source, target) in seen:
            counts["duplicates"] += 1
        else:
            seen.add((source, target))
            if (source, target) not in held_out:
                kept.append((source, target))
    return counts, kept


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def held_out_of(folder):
    sides = [(folder / name).read_text("utf-8").splitlines() for name in HELD_OUT]
    return list(zip(*sides, strict=True))


def test_a_folder_holds_what_a_plain_loop_keeps(pairs, tmp_path):
    folder = prepare(tmp_path / "out", written(tmp_path / "in", pairs), **EVERYTHING)
    held_out = held_out_of(folder.path)
    counts, kept = plainly(pairs, set(held_out))
    assert all(counts.values()), "each reason occurs"
    assert len(held_out) == 9
    assert held_out == sorted(set(held_out), key=pairs.index), "in the order of the text"
    tokenizer = folder.tokenizer()
    ids = [tokenize(side, tokenizer).to_list() for side in zip(*kept, strict=True)]
    short = [pair for pair in zip(*ids, strict=True) if max(map(len, pair)) <= 20]
    tokens = len(kept) - len(short)
    assert tokens and short
    expected = {**counts, "rows": len(short), "held_out": 9, "tokens": tokens}
    assert folder.manifest["counts"] == expected
    for side, name in enumerate(("source", "target")):
        found = folder.columns[name].take(np.arange(len(folder))).to_list()
        assert found == [pair[side] for pair in short]
    folder.check()


def test_what_is_held_out_has_no_part_in_the_tokenizer(pairs, tmp_path, monkeypatch):
    learned = []
    original = preparation.lines_of

    def sample(path):
        learned.extend(original(path))
        return iter(learned)

    monkeypatch.setattr(preparation, "lines_of", sample)
    folder = prepare(tmp_path / "out", written(tmp_path / "in", pairs), **EVERYTHING)
    sampled = list(zip(learned[::2], learned[1::2], strict=True))
    assert len(sampled) == len(set(sampled)) == 60
    assert not set(sampled) & set(held_out_of(folder.path))
    assert set(sampled) < set(pairs)
    assert folder.manifest["sample"] == 60


@pytest.mark.slow
def test_processes_and_interruptions_change_no_byte(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    prepare(tmp_path / "whole", stream, **EVERYTHING)

    def stopping(after):
        """Progress that interrupts after so many blocks, and the list of its calls."""
        calls = []

        def progress(*call):
            calls.append(call)
            if len(calls) == after:
                raise KeyboardInterrupt

        return progress, calls

    for after in (1, 20, 44, 7, 10, 9):  # the first pass three times, of 43 blocks of 7 pairs
        with pytest.raises(KeyboardInterrupt):
            progress, _ = stopping(after)
            processes = 2 if after in (44, 9) else None
            prepare(tmp_path / "out", stream, **EVERYTHING, processes=processes, progress=progress)
        assert not (tmp_path / "out").exists()
    progress, calls = stopping(None)
    prepare(tmp_path / "out", stream, **EVERYTHING, progress=progress)
    assert {name for name, *_ in calls} == {"tokenising"}
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "whole"]


def check_that_deaths_change_no_byte(pairs, tmp_path, monkeypatch, dying, **flags):
    stream = written(tmp_path / "in", pairs)
    prepare(tmp_path / "whole", stream, **EVERYTHING)
    died = tmp_path / "died"
    died.mkdir()
    monkeypatch.setenv("DIED", str(died))
    for name in dying:
        monkeypatch.setattr(preparation, name, getattr(dying_work, name))
    prepare(tmp_path / "out", stream, **EVERYTHING, processes=2, **flags)
    assert sorted(os.listdir(died)) == dying
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


@pytest.mark.soak
def test_a_killed_process_changes_no_byte(pairs, tmp_path, monkeypatch):
    check_that_deaths_change_no_byte(pairs, tmp_path, monkeypatch, ["read_block", "tokenise_block"])


@pytest.mark.slow
def test_mistakes_in_other_processes_are_told(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    with open(tmp_path / "in" / "text.de", "ab") as file:
        file.write(b"\xff\n")
    with open(tmp_path / "in" / "text.en", "ab") as file:
        file.write(b"a\n")
    with pytest.raises(ValueError, match=r"must be UTF-8. Received: .*text\.de, line 301: "):
        prepare(tmp_path / "out", stream, **EVERYTHING, processes=2)


@pytest.mark.soak
def test_ray_writes_the_same_bytes_though_a_worker_is_killed(pairs, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    dying = ["tokenise_block"]  # a worker takes seconds to start
    check_that_deaths_change_no_byte(pairs, tmp_path, monkeypatch, dying, runner="ray")


@pytest.mark.oracle
def test_a_cluster_that_cannot_be_reached_is_one_line(pairs, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        ConnectionError, match=r"cluster that can be reached .*127.0.0.1:1: Connection refused\."
    ) as caught:
        prepare(tmp_path / "out", written(tmp_path / "in", pairs), **EVERYTHING, runner="ray")
    assert "\n" not in str(caught.value)


def test_a_share_is_held_out_by_content(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    folder = prepare(tmp_path / "out", stream, **{**EVERYTHING, "held_out": 0.25})
    held_out = held_out_of(folder.path)
    counts, kept = plainly(pairs, set(held_out))
    assert 0.15 < len(held_out) / (len(held_out) + len(kept)) < 0.35
    assert folder.manifest["counts"]["held_out"] == len(held_out)
    assert counts["duplicates"] == folder.manifest["counts"]["duplicates"]


def test_after_a_vocabulary_that_failed_other_settings_begin_anew(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    with pytest.raises(ValueError, match=r"at most [0-9]+ pieces"):
        prepare(tmp_path / "out", stream, vocabulary_size=9999)
    folder = prepare(tmp_path / "out", stream, vocabulary_size=300)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]
    different = {pair for pair in pairs if pair[0].strip() and pair[1].strip()}
    assert folder.manifest["sample"] == len(different), "fewer than sample_lines"


def test_rows_that_were_written_are_kept_from_other_settings(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)

    def stop(name, position, rows):
        if name == "tokenising" and rows > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "out", stream, vocabulary_size=300, progress=stop)
    with pytest.raises(ValueError, match=r"begun with other settings .*or delete .*\.prepare-out"):
        prepare(tmp_path / "out", stream, vocabulary_size=301)


def test_each_kind_of_file_holds_the_same_text(pairs, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zstandard = pytest.importorskip("zstandard")
    folder = tmp_path / "in"
    plain = written(folder, pairs)
    streams = [written(folder, pairs, ".gz")]
    for language in ("en", "de"):
        packed = zstandard.compress((folder / f"text.{language}").read_bytes())
        (folder / f"text.{language}.zst").write_bytes(packed)
    streams.append(PairStream(folder / "text.en.zst", [folder / "text.de.zst"]))
    for number in range(3):
        part = pairs[number * 100 : (number + 1) * 100]
        lines = "".join(f"{source}\t{target}\n" for source, target in part)
        (folder / f"part{number}.tsv").write_text(lines, "utf-8")
        columns = dict(zip(("en", "de"), map(list, zip(*part, strict=True)), strict=True))
        parquet.write_table(pyarrow.table(columns), folder / f"part{number}.parquet")
    streams.append(PairStream(tsv=f"{folder}/part*.tsv"))
    streams.append(PairStream(table=f"{folder}/part*.parquet", columns=("en", "de")))
    for stream in [plain, *streams]:
        blocks = list(stream.blocks())
        assert [row for block in blocks for row in zip(*block.columns(), strict=True)] == pairs
        assert blocks[-1].position <= stream.num_bytes


def test_other_columns_of_a_table_are_another_text(pairs, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = dict(zip(("en", "de"), map(list, zip(*pairs, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "text.parquet")
    table = tmp_path / "text.parquet"
    prepare(tmp_path / "out", PairStream(table=table, columns=("en", "de")), vocabulary_size=300)
    with pytest.raises(ValueError, match="was prepared from other texts or with other settings"):
        prepare(
            tmp_path / "out", PairStream(table=table, columns=("de", "en")), vocabulary_size=300
        )


def test_an_interruption_at_the_very_end_loses_nothing(pairs, tmp_path, monkeypatch):
    stream = written(tmp_path / "in", pairs)
    prepare(tmp_path / "whole", stream, **EVERYTHING)

    def interrupted(*_):
        raise KeyboardInterrupt

    for name in ("_checksums_of_file", "save_arrays", "flush_all"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(prepared, name, interrupted)
            prepare(tmp_path / "out", stream, **EVERYTHING)
    calls = []
    prepare(tmp_path / "out", stream, **EVERYTHING, progress=lambda *call: calls.append(call[0]))
    assert not calls, "both passes are kept"
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_blocks_end_before_long_lines_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "BYTES", 100)
    stream = written(tmp_path / "in", [("a" * 30, "b" * 30)] * 5)
    assert [block.num_rows for block in stream.blocks()] == [2, 2, 1]


def test_a_given_tokenizer_is_kept(pairs, tmp_path):
    tokenizer = train_sentencepiece([source for source, _ in pairs], 290)
    stream = written(tmp_path / "in", pairs)
    folder = prepare(tmp_path / "out", stream, tokenizer)
    assert folder.tokenizer().model == tokenizer.model
    assert folder.manifest["counts"]["rows"] == len(folder)
    assert sum(folder.manifest["counts"].values()) == len(pairs), "one pass"


def test_a_prepared_folder_is_not_prepared_again(pairs, tmp_path, caplog):
    stream = written(tmp_path / "in", pairs)
    settings = {"vocabulary_size": 300}
    before = content_of(prepare(tmp_path / "out", stream, **settings).path)
    with caplog.at_level(logging.WARNING):
        prepare(tmp_path / "out", stream, **settings, processes=2)
    assert "is already prepared: nothing to do" in caplog.text
    with pytest.raises(ValueError, match="was prepared from other texts or with other settings"):
        prepare(tmp_path / "out", stream, **settings, distinct=True)
    assert content_of(tmp_path / "out") == before


@pytest.mark.parametrize("during", ["reading", "tokenising"])
def test_a_text_that_changes_meanwhile_is_refused(pairs, tmp_path, during):
    stream = written(tmp_path / "in", pairs)

    def change(name, position, rows):
        if name == during:
            for language in ("en", "de"):
                with open(tmp_path / "in" / f"text.{language}", "a") as file:
                    file.write("one more\n")

    with pytest.raises(ValueError, match="A file has changed while it was read"):
        prepare(tmp_path / "out", stream, vocabulary_size=300, distinct=True, progress=change)
    assert not (tmp_path / "out").exists()


def test_sides_of_different_lengths_are_named_with_both(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    target = tmp_path / "in" / "text.de"
    target.write_text("".join(target.read_text("utf-8").splitlines(True)[:250]), "utf-8")
    with pytest.raises(ValueError, match=rf"en with {len(pairs)} lines, .*de with 250\."):
        prepare(tmp_path / "out", stream, vocabulary_size=300)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"held_out": 300}, "held_out must leave pairs to learn from, of 2[0-9][0-9] different"),
        ({"max_characters": 1}, "No row is left to write"),
        ({"held_out": -1}, "held_out must be an integer of at least 0"),
        ({"held_out": 2.5}, "held_out must be .*below 1. A number of pairs is an int"),
        ({"runner": "beam"}, "runner must be one of local, ray"),
        ({"max_ratio": float("nan")}, "max_ratio must be"),
        ({"sample_lines": 0}, "sample_lines must be an integer of at least 1"),
    ],
)
def test_mistakes_are_named(pairs, tmp_path, arguments, message):
    tokenizer = train_sentencepiece([source for source, _ in pairs], 290)
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "out", written(tmp_path / "in", pairs), tokenizer, **arguments)
    assert not (tmp_path / "out").exists()


def test_a_disk_without_room_is_said_before(pairs, tmp_path, monkeypatch):
    usage = preparation.shutil._ntuple_diskusage(10**9, 10**9, 100)
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"not be written: it needs about .* GB are free"):
        prepare(tmp_path / "out", written(tmp_path / "in", pairs))
    assert os.listdir(tmp_path) == ["in"]


def test_what_is_written_needs_no_room_again(pairs, tmp_path, monkeypatch):
    tokenizer = train_sentencepiece([source for source, _ in pairs], 290)
    stream = written(tmp_path / "in", pairs)

    def stop(name, position, rows):
        if rows > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "out", stream, tokenizer, progress=stop)
    usage = preparation.shutil._ntuple_diskusage(10**9, 10**9, 100)
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage)
    assert len(prepare(tmp_path / "out", stream, tokenizer)) > 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Give one kind of text"),
        ({"sources": "a"}, "Give files of sources and of targets"),
        ({"sources": "a", "targets": "b", "tsv": "c"}, "Give one kind of text"),
        ({"sources": "*.none", "targets": "b"}, r"Received: \*\.none, which does not exist"),
        ({"sources": [__file__], "targets": [__file__] * 2}, "Received: 1 and 2 files"),
    ],
)
def test_streams_name_what_is_missing(arguments, message):
    with pytest.raises((ValueError, OSError), match=message):
        PairStream(**arguments)


def test_a_truncated_zstandard_file_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.compress(b"".join(b"%d\n" % n for n in range(100_000)))
    (tmp_path / "text.zst").write_bytes(content[: len(content) // 2])
    stream = PairStream(tmp_path / "text.zst", tmp_path / "text.zst")
    with pytest.raises(ValueError, match=r"a complete Zstandard file. Received: .*end is missing"):
        list(stream.blocks())


DOCUMENTS = [
    "Ein Hund. Er läuft!\nEr läuft weit.\n\n",
    "A dog runs.\r\n\r\n\n",
    "A dog runs.\r\n\r\n\n",
    "Zwei Hunde. Zwei?\n",
]


def prepared_documents(tmp_path, kind, **settings):
    (tmp_path / "text.txt").write_bytes("".join(DOCUMENTS).encode())
    return prepare(tmp_path / kind, DocumentStream(tmp_path / "text.txt", kind=kind), **settings)


@pytest.mark.parametrize("kind", ["language_model", "documents"])
def test_documents_one_after_another_are_the_text(tmp_path, kind):
    folder = prepared_documents(tmp_path, kind, tokenizer=SymbolTokenizer())
    tokenizer = folder.tokenizer()
    ids = tokenize(DOCUMENTS, tokenizer).to_list()
    assert folder.kind == kind
    assert folder.columns["text"].take(np.arange(4)).to_list() == ids


def test_documents_are_held_out_with_empty_lines_between_them(tmp_path):
    settings = {"vocabulary_size": 280, "distinct": True, "held_out": 2, "seed": 1}
    folder = prepared_documents(tmp_path, "documents", **settings)
    held_out = DocumentStream(folder.path / "held_out.txt").read()
    different = [text.strip().replace("\r", "") for text in (*DOCUMENTS[:2], DOCUMENTS[3])]
    assert len(held_out) == 2 and {text.strip() for text in held_out} < set(different)
    counts = folder.manifest["counts"]
    assert (counts["rows"], counts["duplicates"], folder.manifest["sample"]) == (1, 1, 1)


@pytest.mark.parametrize("kind", ["language_model", "documents", "pretraining"])
def test_documents_with_empty_lines_are_held_out_whole(kind, tmp_path):
    texts = [f"{name} is. It\n\nof\r\n\r\n\r\rtwo\n \nlines\n\n" for name in "abc"]
    (tmp_path / "in").mkdir()
    for name, text in zip("abc", texts, strict=True):
        (tmp_path / "in" / f"{name}.txt").write_bytes(text.encode())
    stream = DocumentStream(tmp_path / "in", kind=kind)
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    tokenizer = tokenizer if kind == "pretraining" else SymbolTokenizer()
    folder = prepare(tmp_path / "out", stream, tokenizer, held_out=2, processes=1)
    if kind == "language_model":
        written = (folder.path / "held_out.txt").read_bytes().decode()
        assert sum(text.rstrip() in written for text in texts) == 2, "unchanged"
    else:
        [first, second] = DocumentStream(folder.path / "held_out.txt").read()
        assert first[1:].strip() == second[1:].strip() == "is. It\nof\ntwo\n \nlines"


def test_sentences_of_documents_are_numbered_for_pretraining(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "ROWS", 2)
    settings = {"vocabulary_size": 40, "processes": 1}
    folder = prepared_documents(tmp_path, "pretraining", **settings)
    sentences = split_sentences(DOCUMENTS)
    assert folder.array("documents").tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert folder.manifest["num_documents"] == 4
    ids = tokenize([each for document in sentences for each in document], folder.tokenizer())
    assert folder.columns["text"].take(np.arange(7)).to_list() == ids.to_list()


def test_files_of_a_folder_are_whole_documents_and_long_ones_are_cut(tmp_path, monkeypatch):
    (tmp_path / "in" / "inner").mkdir(parents=True)
    for name, text in (("inner/b.txt", "two\n\nthree\n"), ("a.txt", "one"), ("c.md", "four")):
        (tmp_path / "in" / name).write_text(text)
    texts = [block.columns()[0] for block in DocumentStream(tmp_path / "in").blocks()]
    assert texts == [["one", "two\n\nthree\n"]]
    (tmp_path / "more.txt").write_text("five\n\nsix\n")
    both = [["one", "two\n\nthree\n"], ["five\n\n", "six\n"]]
    for order in (1, -1):
        stream = DocumentStream([tmp_path / "in", tmp_path / "more.txt"][::order])
        [block] = stream.blocks()
        assert block.columns() == [[text for part in both[::order] for text in part]]
        assert stream.format == ["text", str(tmp_path / "in")]
    for alone in ("in", "more.txt"):
        assert DocumentStream(tmp_path / alone).format == ["text"]
    monkeypatch.setattr(streams, "_BYTES_OF_DOCUMENT", 7)
    (tmp_path / "long.txt").write_text("12345\n12345\n12\n\n1\n")
    [block] = DocumentStream(tmp_path / "long.txt").blocks()
    assert block.columns() == [["12345\n12345\n", "12\n\n", "1\n"]]


PARTS = ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"]
PARTS += ["One.", "é. Two", " ", "\t", "\ufeff", "x" * 8189]  # the last, as long as a buffer


def drawn_file(draw, path):
    """Writes a file of parts in a random encoding of its end and start; returns its text."""
    ends = draw.choice([["\n"], ["\r\n"], ["\r"], PARTS[:6], PARTS])
    parts = [draw.choice(ends if draw.random() < 0.6 else PARTS[11:]) for _ in range(30)]
    text = draw.choice(["", "x" * draw.randrange(8180, 8194)]) + "".join(parts).lstrip("\ufeff")
    packed = {".txt": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[path.suffix]
    path.write_bytes(packed((draw.choice(["", "\ufeff"]) + text).encode()))
    return text


def check_documents(draw, folder):
    """Documents are the same in memory, in streams and by lines of Python's text mode."""
    path = folder / f"text{draw.choice(['.txt', '.gz', '.zst'])}"
    text = drawn_file(draw, path)
    streamed = [each for block in DocumentStream(path).blocks() for each in block.columns()[0]]
    assert "".join(streamed) == text
    assert DocumentStream(path).read() == streamed or not text
    split = [each.decode() for each, _ in split_documents(io.BytesIO(text.encode()))]
    assert split == streamed
    expected, is_end = [""], False
    for line in io.StringIO(text, newline=None):
        expected += [""] * (is_end and line != "\n")
        expected[-1] += line
        is_end = line == "\n"
    assert [with_line_feeds(each) for each in streamed] == expected
    expected = [each.strip("\n") for each in expected if each.strip()]
    if len(expected) > 1:
        read = read_documents(path)
        assert [with_line_feeds(each).strip("\n") for each in read] == expected
    else:
        with pytest.raises(ValueError, match="at least two documents"):
            read_documents(path)


def check_lines(draw, folder):
    """Lines of sentences end in line feeds alone, in memory, in streams and in commands."""
    path = folder / f"lines{draw.choice(['.txt', '.gz', '.zst'])}"
    text = drawn_file(draw, path)
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    stream = PairStream(path, path).blocks()
    assert [each for block in stream for each in block.columns()[0]] == lines
    arrived = itertools.chain.from_iterable(arriving_lines(io.BytesIO(text.encode())))
    assert [line.decode() for line in arrived] == lines
    if any(map(str.strip, lines)):
        assert PairStream(path, path).read() == (lines, lines)
    tsv = folder / "lines.tsv"
    rows = [(line.replace("\t", ""), "ab"[i % 2]) for i, line in enumerate(["x", *lines, "y"])]
    tsv.write_bytes("".join(f"{line}\t{label}\n" for line, label in rows).encode())
    streamed = [each for block in LabelledStream(tsv).blocks() for each in block.columns()[0]]
    assert LabelledStream(tsv).read().texts == streamed == [line for line, _ in rows]
    [(_, held_out)] = LabelledStream(tsv).held_out_lines(rows)
    (folder / "again.tsv").write_bytes("".join(held_out).encode())
    again = LabelledStream(folder / "again.tsv").read().texts
    assert again == [re.sub(r"\r$", "", line).replace("\r", " ") for line, _ in rows]


def test_line_ends_mean_the_same_in_memory_and_in_streams(tmp_path):
    draw = random.Random(3)
    for _ in range(20):
        check_documents(draw, tmp_path)
        check_lines(draw, tmp_path)
    (tmp_path / "text.txt").write_bytes(b"one\rtwo\r\r\rthree\xff\r")
    with pytest.raises(ValueError, match=r"text\.txt, line 5: invalid start byte"):
        list(DocumentStream(tmp_path / "text.txt").blocks())
    for end in ("\n", "\r\n", "\r"):
        text = f"a. b{end}{end}c{end}{end}{end}a. b{end}"
        (tmp_path / "text.txt").write_bytes(text.encode())
        folder = prepare(
            tmp_path / f"out{ord(end[-1])}{len(end)}",
            DocumentStream(tmp_path / "text.txt"), SymbolTokenizer(), distinct=True, processes=1,
        )  # fmt: skip
        counts = dict(folder.manifest["counts"])
        assert (counts["rows"], counts["duplicates"]) == (2, 1)


@pytest.mark.soak
@pytest.mark.parametrize("check", [check_documents, check_lines])
def test_line_ends_of_drawn_files(check, tmp_path):
    for seed in range(1000):
        check(random.Random(seed), tmp_path)


@pytest.mark.soak
def test_sentences_of_drawn_files_are_the_same_in_memory_and_in_streams(tmp_path):
    in_memory, texts = [], []
    for seed in range(300):
        text = drawn_file(random.Random(seed), tmp_path / "text.txt")
        (tmp_path / "text.txt").write_text(f"One.\n\n{text}\n\nEnd.", newline="")
        in_memory += read_documents(tmp_path / "text.txt")
        for block in DocumentStream(tmp_path / "text.txt").blocks():
            texts += filter(str.strip, block.columns()[0])
    assert len(texts) == len(in_memory) > 600
    assert split_sentences(texts) == split_sentences(in_memory)
    sentences = [[*map(with_line_feeds, each)] for each in split_sentences(texts)]
    assert sentences == split_sentences(map(with_line_feeds, texts))


def test_a_data_set_of_tensorflow_datasets_is_read_in_blocks(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    for language in ("de", "en"):
        lines = "".join(f"{number} {language}\n" for number in range(9))
        (tmp_path / f"{language}.train.txt").write_text(lines)
    builder = tfds.folder_dataset.TranslateFolder(str(tmp_path))
    stream = PairStream(dataset=builder, columns=("en", "de"))
    blocks = list(stream.blocks())
    assert [block.num_rows for block in blocks] == [7, 2]
    assert blocks[1].columns() == [["7 en", "8 en"], ["7 de", "8 de"]]


LABELLED = [("a dog", "good"), ("ein Hund, gut", "good, old"), (" ", "bad"), ("a cat", "bad")]


def test_labelled_texts_have_a_matrix_of_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "ROWS", 2)
    lines = [f"{text}\t{labels}\n" for text, labels in LABELLED]
    (tmp_path / "text.tsv").write_text("".join(lines), "utf-8")
    stream = LabelledStream(tmp_path / "text.tsv")
    folder = prepare(tmp_path / "out", stream, SymbolTokenizer(), held_out=1, seed=2)
    expected = LabelledStream(tmp_path / "text.tsv").read()
    assert folder.kind == "classification"
    assert folder.manifest["names"] == expected.names == ["bad", "good", "old"]
    [held_out] = (folder.path / "held_out.tsv").read_text("utf-8").splitlines(True)
    kept = [row for row in (0, 1, 3) if lines[row] != held_out]
    assert len(kept) == 2 and held_out in lines
    np.testing.assert_array_equal(folder.array("labels"), expected.matrix()[kept])
    ids = tokenize([LABELLED[row][0] for row in kept], folder.tokenizer()).to_list()
    assert folder.columns["text"].take([0, 1]).to_list() == ids


@pytest.mark.parametrize("label", ["food, drink", " bad", "bad ", "a\tb", "a\nb", ""])
def test_labels_that_a_file_of_columns_cannot_hold_are_not_held_out(label, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"text": ["a cat", "a dog", "a rat"], "label": [label, "good", label]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "text.parquet")
    stream = LabelledStream(table=tmp_path / "text.parquet")
    with pytest.raises(ValueError, match="Labels must not be empty or hold a comma"):
        prepare(tmp_path / "out", stream, SymbolTokenizer(), held_out=1, processes=1)
    folder = prepare(tmp_path / "out", stream, SymbolTokenizer(), processes=1)
    assert folder.manifest["names"] == sorted([label, "good"]), "without, they are kept"


def test_labels_come_from_folders_and_tables_and_may_be_numbers(tmp_path):
    for name, text in (("bad/a.txt", "a cat"), ("good/b.txt", "a dog"), ("bad/c.txt", "a rat")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    [block] = LabelledStream(folder=tmp_path / "in").blocks()
    assert block.labels == LabelledStream(folder=tmp_path / "in").read()
    (tmp_path / "numbers.tsv").write_text("a dog\t2.5\na cat\t-1\n")
    [block] = LabelledStream(tmp_path / "numbers.tsv", names=[]).blocks()
    assert block.labels.matrix().tolist() == [[2.5], [-1.0]]
    with pytest.raises(ValueError, match="Labels must be among"):
        list(LabelledStream(tmp_path / "numbers.tsv", names=["a", "b"]).blocks())
    with pytest.raises(ValueError, match="Give one kind of text"):
        LabelledStream()


def test_a_tokenizer_that_would_be_another_there_is_refused(pairs, tmp_path):
    stream = written(tmp_path / "in", pairs)
    pieces = train_sentencepiece([source for source, _ in pairs], 290)
    with pytest.raises(ValueError, match="Received: prefix='summarize: ', language=None"):
        prepare(tmp_path / "out", stream, pieces.with_prefix("summarize: "))
    learned = train_byte_pairs(["a b"], 261)
    pieces = {piece: place for place, piece in enumerate(learned.pieces(range(4, 261)))}
    letters = BytePairTokenizer(pieces, learned.merges)
    with pytest.raises(ValueError, match="first_id=4"):
        prepare(tmp_path / "out", stream, letters)
    assert not (tmp_path / "out").exists()


def test_equal_documents_are_equal_whatever_follows_them(tmp_path):
    (tmp_path / "a.txt").write_text("The same\ntext.\n\nAnother.\n")
    (tmp_path / "b.txt").write_bytes(b"A third.\n\n\nThe same\r\ntext.\n")
    folder = prepare(
        tmp_path / "out", DocumentStream(str(tmp_path / "*.txt")), SymbolTokenizer(), distinct=True
    )
    assert dict(folder.manifest["counts"])["duplicates"] == 1 and len(folder.columns["text"]) == 3


def test_texts_that_are_their_own_labels_are_not_duplicates(tmp_path):
    words = [f"{first}{last}" for first in "abcdefghijklmno" for last in "abcdefghijklmno"]
    lines = [f"{word}\t{word}\n" for word in [*words, *words[:5]]]
    (tmp_path / "classes.tsv").write_text("".join(lines))
    folder = prepare(
        tmp_path / "out", LabelledStream(tmp_path / "classes.tsv"), SymbolTokenizer(), distinct=True
    )
    assert dict(folder.manifest["counts"])["duplicates"] == 5


def test_texts_of_one_label_are_counted_and_their_file_is_named(tmp_path):
    (tmp_path / "one.tsv").write_text("good\tpos\n" * 7)
    with pytest.raises(ValueError, match=r"one\.tsv with 7 texts, labels \['pos'\]"):
        list(LabelledStream(tmp_path / "one.tsv").blocks())


def test_lists_beside_labelled_folders_are_no_documents(tmp_path):
    for name in ("pos/1.txt", "neg/1.txt", "unsup/1.txt", "urls_pos.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    [block] = DocumentStream(tmp_path).blocks()
    assert block.columns() == [DocumentStream(tmp_path).read()]
    assert sorted(block.columns()[0]) == ["neg/1.txt", "pos/1.txt", "unsup/1.txt"]


def test_as_many_pieces_are_told_as_the_documents_allow(tmp_path):
    folder = prepared_documents(tmp_path, "documents", vocabulary_size=5000, processes=1)
    assert folder.vocabulary_size == folder.tokenizer().vocabulary_size < 5000
