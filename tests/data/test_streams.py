"""Rows are the same whatever holds them, in memory and in a prepared folder."""

import gzip
import itertools
import random

import numpy as np
import pytest

from keras_transformer.data import DocumentStream, LabelledStream, PairStream, prepare, tokenize
from keras_transformer.tokenizers import SymbolTokenizer

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
tfds = pytest.importorskip("tensorflow_datasets")

PARTS = ["a", "é. b", " ", "\x0b", "\x0c", "\x1c", "\x85", "\N{LINE SEPARATOR}", "\ufeff", "日本"]


def text(draw, parts):
    """A drawn text that holds at least one letter."""
    return "".join([*draw.choices(parts, k=draw.randrange(5)), "z", *draw.choices(parts, k=2)])


def texts(draw, parts=PARTS):
    return [text(draw, parts) for _ in range(draw.randint(2, 9))]


def marked(draw, content):
    """The content of a file, after a byte order mark or not."""
    return "\ufeff" * (content.startswith("\ufeff") or draw.random() < 0.5) + content


def write_lines(draw, path, lines):
    """Writes lines, packed or not, of which the last may have no end."""
    end = draw.choice(["\n", "\r\n"])
    content = marked(draw, end.join(lines) + draw.choice(["", end]))
    path = path.with_suffix(draw.choice([".txt", ".gz"]))
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def write_table(draw, folder, columns):
    """Writes a table as one file, as a folder of two files, or as an Arrow file."""
    table = pyarrow.table(columns)
    kind = draw.choice(["file", "folder", "arrow"])
    if kind == "file":
        parquet.write_table(table, folder / "table.parquet")
        return folder / "table.parquet"
    if kind == "arrow":
        with pyarrow.ipc.new_file(str(folder / "table.arrow"), table.schema) as writer:
            writer.write_table(table)
        return folder / "table.arrow"
    (folder / "table").mkdir()
    for number, part in enumerate((table.slice(0, 1), table.slice(1))):
        parquet.write_table(part, folder / "table" / f"train-{number}-of-2.parquet")
    return folder / "table"


def builder(folder, features, rows):
    """A data set of TensorFlow Datasets with these rows."""

    class Drawn(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate(rows)

    made = Drawn(data_dir=folder / "tfds")
    made.download_and_prepare()
    return made


def pairs(draw, folder, format):
    sources, targets = texts(draw), texts(draw)
    rows = list(zip(sources, targets, strict=False))
    if format == "lines":
        sides = [write_lines(draw, folder / str(i), [row[i] for row in rows]) for i in range(2)]
        return PairStream(*sides), rows
    if format == "tsv":
        return PairStream(tsv=write_lines(draw, folder / "a", map("\t".join, rows))), rows
    columns = dict(zip(("source", "target"), map(list, zip(*rows, strict=True)), strict=True))
    if format == "table":
        return PairStream(table=write_table(draw, folder, columns)), rows
    languages = {name: tfds.features.Text() for name in ("source", "target")}
    made = builder(folder, languages, [dict(zip(languages, row, strict=True)) for row in rows])
    return PairStream(dataset=made, columns=tuple(languages)), rows


def documents(draw, folder, format, kind):
    several = texts(draw, [*PARTS, "\n"])
    several = [each.strip("\n") for each in several]
    if format == "file":
        several = [each.replace("\n\n", "\n").replace("\n\n", "\n") for each in several]
        end = draw.choice(["\n", "\r\n", "\r"])
        rows = [each.replace("\n", end) + end * draw.randint(2, 3) for each in several]
        path = folder / draw.choice(["text.txt", "text.gz"])
        content = marked(draw, "".join(rows)).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return DocumentStream(path, kind=kind), rows
    if format == "folder":
        (folder / "texts").mkdir()
        for number, each in enumerate(several):
            (folder / "texts" / f"{number}.txt").write_bytes(each.encode())
        return DocumentStream(folder / "texts", kind=kind), [
            s.removeprefix("\ufeff") for s in several
        ]
    rows = [f"{each}\n" for each in several]
    if format == "table":
        return DocumentStream(write_table(draw, folder, {"text": several}), kind=kind), rows
    made = builder(folder, {"text": tfds.features.Text()}, [{"text": each} for each in several])
    return DocumentStream(dataset=made, kind=kind), rows


def labelled(draw, folder, format):
    several = texts(draw)
    labels = [f"label {number % 2}" for number in range(len(several))]
    rows = list(zip(several, labels, strict=True))
    if format == "tsv":
        stream = LabelledStream(write_lines(draw, folder / "a", map("\t".join, rows)))
    elif format == "folder":
        for number, (each, label) in enumerate(rows):
            (folder / "texts" / label).mkdir(parents=True, exist_ok=True)
            (folder / "texts" / label / f"{number}.txt").write_text(each, "utf-8")
        rows = [(each.removeprefix("\ufeff"), label) for each, label in rows]
        rows.sort(key=lambda row: row[1])  # which keeps the order of the files of a label
        stream = LabelledStream(folder=folder / "texts")
    elif format == "table":
        stream = LabelledStream(table=write_table(draw, folder, {"text": several, "label": labels}))
    else:
        classes = tfds.features.ClassLabel(names=["label 0", "label 1"])
        content = [{"text": each, "label": label} for each, label in rows]
        made = builder(folder, {"text": tfds.features.Text(), "label": classes}, content)
        stream = LabelledStream(dataset=made)
    return stream, rows


FORMATS = [
    *((pairs, format) for format in ("lines", "tsv", "table", "dataset")),
    *((labelled, format) for format in ("tsv", "folder", "table", "dataset")),
    *(
        (documents, format, kind)
        for format in ("file", "folder", "table", "dataset")
        for kind in ("language_model", "documents")
    ),
]


def check(draw, folder, make, *format):
    """Asserts that memory, blocks and a prepared folder hold the rows that were written."""
    folder.mkdir()
    stream, rows = make(draw, folder, *format)
    rows = sorted(rows) if "dataset" in format else rows  # whose order is that of its files
    columns = [list(column) for column in zip(*rows, strict=True)] if make is pairs else [rows]
    if make is labelled:
        columns = [[each for each, _ in rows]]

    read = stream.read()
    in_memory = {pairs: read, labelled: read[:1], documents: [read]}[make]
    blocks = [block.columns() for block in stream.blocks()]
    in_blocks = [list(itertools.chain.from_iterable(each)) for each in zip(*blocks, strict=True)]
    assert [list(column) for column in in_memory] == in_blocks
    prepared = prepare(folder / "prepared", stream, SymbolTokenizer(), processes=1)
    for name, column in zip(stream.columns, in_blocks, strict=True):
        ids = prepared.columns[name].take(np.arange(len(rows))).to_list()
        assert ids == tokenize(column, SymbolTokenizer()).to_list()
    if "dataset" in format:
        in_blocks = [list(c) for c in zip(*sorted(zip(*in_blocks, strict=True)), strict=True)]
    assert in_blocks == columns
    if make is labelled and "dataset" not in format:
        assert read.labels == [(label,) for _, label in rows]
        assert prepared.array("labels").tolist() == read.matrix().tolist()


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: "-".join(f[1:]) + f" {f[0].__name__}")
def test_memory_blocks_and_prepared_folders_hold_what_was_written(format, tmp_path):
    for seed in range(1 if "dataset" in format else 3):
        check(random.Random(seed), tmp_path / str(seed), *format)


@pytest.mark.soak
def test_drawn_files_of_every_format_are_the_same_everywhere(tmp_path):
    for seed in range(200):
        format = FORMATS[seed % len(FORMATS)]
        if "dataset" not in format:
            check(random.Random(seed), tmp_path / str(seed), *format)
