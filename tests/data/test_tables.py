"""Texts from the columns of Parquet files and of folders that Hugging Face's datasets writes."""

import json

import pytest

from keras_transformer.data import DocumentStream, LabelledStream, PairStream, ParallelText

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PAIRS = {"en": ["a dog", "two\ncats", "ü"], "de": ["ein Hund", "zwei Katzen", "日本"]}
EXPECTED = ParallelText(PAIRS["en"], PAIRS["de"])


def read_table(path, *columns):
    return PairStream(table=path, columns=columns).read()


def read_labelled_table(path, names=None):
    return LabelledStream(table=path, names=names).read()


def with_features(table, features):
    """A table that notes its features as `datasets` does."""
    described = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": described})


def save_to_disk(folder, *tables):
    """Writes what `Dataset.save_to_disk` does, with files whose order is not that of their names.

    Source: datasets 4.0, `arrow_dataset.py`; beside its files lies one of the cache.
    """
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(tables):05d}.arrow" for number in range(len(tables))][::-1]
    for name, table in zip([*names, "cache-1.arrow"], [*tables, tables[0]], strict=True):
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def nested():
    return pyarrow.table({
        "id": [1, 2, 3],
        "translation": [{"en": en, "de": de} for en, de in zip(*PAIRS.values(), strict=True)],
    })  # fmt: skip


NESTED = ("translation.en", "translation.de")


def test_pairs_are_two_columns_or_two_fields_of_one(tmp_path):
    table = pyarrow.table({"n": [1, 2, 3], **PAIRS})
    parquet.write_table(table, tmp_path / "pairs.parquet")
    assert read_table(tmp_path / "pairs.parquet", "en", "de") == EXPECTED
    reverse = read_table(str(tmp_path / "pairs.parquet"), "de", "en")
    assert reverse == ParallelText(*EXPECTED[::-1])
    parquet.write_table(nested(), tmp_path / "nested.parquet")
    assert read_table(tmp_path / "nested.parquet", *NESTED) == EXPECTED
    saved = save_to_disk(tmp_path / "saved", nested())
    assert read_table(saved, *NESTED) == EXPECTED
    with pyarrow.ipc.new_file(str(tmp_path / "file.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert read_table(tmp_path / "file.arrow", "en", "de") == EXPECTED


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.string_view(), "dictionary"])
def test_texts_may_be_kept_in_any_way(kind, tmp_path):
    columns = {name: pyarrow.array(texts) for name, texts in PAIRS.items()}
    is_dictionary = kind == "dictionary"
    columns = {
        name: column.dictionary_encode() if is_dictionary else column.cast(kind)
        for name, column in columns.items()
    }
    saved = save_to_disk(tmp_path / "saved", pyarrow.table(columns))
    assert read_table(saved, "en", "de") == EXPECTED


def test_several_files_are_read_in_the_order_of_the_data_set(tmp_path):
    parts = nested().slice(0, 1), nested().slice(1)
    assert read_table(save_to_disk(tmp_path / "saved", *parts), *NESTED) == EXPECTED
    folder = tmp_path / "hub"
    folder.mkdir()
    for number, part in enumerate(parts):
        parquet.write_table(part, folder / f"train-{number:05d}-of-00002.parquet")
    assert read_table(folder, *NESTED) == EXPECTED
    parquet.write_table(nested(), folder / "test-00000-of-00001.parquet")
    assert read_table(f"{folder}/train-*.parquet", *NESTED) == EXPECTED
    with pytest.raises(ValueError, match=r"one split\. .*hub/test-\*\.parquet.*with test, train\."):
        read_table(folder, *NESTED)


def test_a_folder_of_splits_names_them(tmp_path):
    for split in ("train", "validation"):
        save_to_disk(tmp_path / "saved" / split, nested())
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    with pytest.raises(ValueError, match=r"Give one of its folders: train, validation\."):
        read_table(tmp_path / "saved")
    assert read_table(tmp_path / "saved" / "validation", *NESTED) == EXPECTED


CLASSES = {"names": ["bad", "good"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
    ("labels", "feature", "expected"),
    [
        ([1, 0, 1], CLASSES, [("good",), ("bad",), ("good",)]),
        ([1, 0, 1], {"dtype": "int64", "_type": "Value"}, [("1",), ("0",), ("1",)]),
        (["b", "a, c", "b"], None, [("b",), ("a, c",), ("b",)]),
        ([[1, 0, 1], []], {"feature": CLASSES, "_type": "List"}, [("good", "bad"), ()]),
        ([[1], [], [0]], [CLASSES], [("good",), (), ("bad",)]),
        ([["a", "b"], [], ["b"]], None, [("a", "b"), (), ("b",)]),
    ],
)  # fmt: skip
def test_labels_have_the_names_of_the_classes(labels, feature, expected, tmp_path):
    texts = PAIRS["en"][: len(labels)]
    table = pyarrow.table({"text": texts, "label": labels})
    table = with_features(table, {"label": feature}) if feature else table
    parquet.write_table(table, tmp_path / "labelled.parquet")
    for path in (tmp_path / "labelled.parquet", save_to_disk(tmp_path / "saved", table)):
        text = read_labelled_table(path)
        assert (text.texts, text.labels) == (texts, expected)
        assert text.names == sorted({name for row in expected for name in row})
    with pytest.raises(ValueError, match=r"must be among \['x', 'y'\]"):
        read_labelled_table(path, names=["x", "y"])


def test_a_class_without_a_name_is_refused(tmp_path):
    table = pyarrow.table({"text": ["a", "b"], "label": [-1, 1]})
    parquet.write_table(with_features(table, {"label": CLASSES}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"from 0 to 1, those of .*Received: .* with -1 to 1\."):
        read_labelled_table(tmp_path / "a.parquet")


def test_documents_are_the_rows_of_a_table(tmp_path):
    saved = save_to_disk(tmp_path / "saved", nested())
    stream = DocumentStream(saved, "translation.en")
    assert stream.read() == ["a dog\n", "two\ncats\n", "ü\n"]
    assert stream.read_bytes() == [text.encode() for text in stream.read()]


WRONG = [
    ({"a": ["x"], "b": ["y"]}, r"column text\. Choose among: a, b\. Received: .*\.parquet\.$"),
    ({"text": ["x"], "b": [{"c": "y", "d": 1}]}, r"column label\. Choose among: text, b\.c, b\.d"),
    ({"text": ["x", None, None], "label": ["y"] * 3}, r"column text .* with 2 null values"),
    ({"text": ["x", "y"], "label": [None, "a"]}, r"column label .* with 1 null values"),
    ({"text": ["x", "y"], "label": [["a", None], ["b"]]}, r"column label .* with 1 null values"),
    ({"text": [1, 2], "label": ["y"] * 2}, r"column text must hold texts\. .*it holds int64"),
    ({"text": [["x"]], "label": ["y"]}, r"column text must hold texts\. .*it holds list<"),
    ({"text": [b"x"], "label": ["y"]}, r"column text must hold texts\. .*it holds binary"),
    ({"text": ["x", "y"], "label": [0.5, 1]}, r"column label must hold texts, .* holds double"),
    ({"text": ["x"], "label": [True]}, r"column label must hold texts, integers, .* holds bool"),
    ({"text": ["x"], "label": ["y"]}, r"at least two different labels"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG)
def test_a_wrong_column_is_told_in_one_line(columns, message, tmp_path):
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", save_to_disk(tmp_path / "saved", table)):
        with pytest.raises(ValueError, match=message.replace(r"\.parquet", "")) as caught:
            read_labelled_table(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"Two different columns are needed\. Received: 'a' twice"):
        read_table(path, "a", "a")


def test_texts_that_are_empty_and_paths_of_nothing_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"source": [" "], "target": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"their translations.*, whose sources have no"):
        read_table(tmp_path / "a.parquet")
    nothing = save_to_disk(tmp_path / "saved", pyarrow.table({"text": pyarrow.array([], "string")}))
    with pytest.raises(ValueError, match=r"a text\. .* which is empty"):
        DocumentStream(nothing).read()
    for name in ("b.parquet", "b-*.parquet", "b"):
        with pytest.raises(FileNotFoundError, match=r"b.*, which does not exist"):
            read_table(tmp_path / name)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"folder of \.parquet files, or one that save_to_disk"):
        read_table(tmp_path / "none")


def test_damaged_files_are_refused_or_read_whole(tmp_path):
    table = pyarrow.table({"source": ["a dog"] * 99, "target": ["ein Hund"] * 99})
    whole = {}
    for compression in ("none", "zstd"):
        path = tmp_path / f"{compression}.parquet"
        parquet.write_table(table, path, compression=compression, write_page_checksum=True)
        whole[path] = path.read_bytes()
    [path] = [save_to_disk(tmp_path / "saved", table) / "data-00000-of-00001.arrow"]
    whole[path] = path.read_bytes()
    expected = read_table(path)
    for path, content in whole.items():
        for end in (*range(0, len(content), 37), len(content) - 8):  # all rows, but no end
            path.write_bytes(content[:end])
            with pytest.raises(ValueError, match=r"a complete Parquet or Arrow file.*Received: "):
                read_table(path)
        if path.suffix == ".parquet":
            for place in range(4, len(content), 41):
                changed = bytearray(content)
                changed[place] ^= 255
                path.write_bytes(changed)
                try:
                    assert read_table(path) == expected
                except ValueError as error:
                    assert "\n" not in str(error)
        path.write_bytes(content)


def test_a_text_that_is_not_utf_8_is_refused(tmp_path):
    broken = pyarrow.array([b"a", b"\xff"]).view(pyarrow.string())
    saved = save_to_disk(tmp_path / "saved", pyarrow.table({"text": broken}))
    with pytest.raises(ValueError, match=r"complete Parquet or Arrow file.*UTF"):
        DocumentStream(saved).read()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"_data_files": [{}]}', "is damaged"),
        ('{"_data_files": [], "_indices_data_files": [{"filename": "i"}]}', "a file of indices"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', r"gone\.arrow"),
    ],
)
def test_a_damaged_state_is_refused(state, message, tmp_path):
    saved = save_to_disk(tmp_path / "saved", nested())
    (saved / "state.json").write_text(state)
    with pytest.raises(ValueError, match=message):
        read_table(saved, *NESTED)


def test_a_missing_pyarrow_is_told_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install pyarrow\.$"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize("values", [[1.5, -2.0], [3, 4], ["0.25", "7"]], ids=str)
def test_a_column_of_numbers_is_read_for_regression(values, tmp_path):
    file = tmp_path / "ratings.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": values}), file)
    expected = [(float(value),) for value in values]
    assert read_labelled_table(file, names=[]) == (["a", "b"], expected, [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None], "with 1 null values"),
        ([1.0, float("nan")], r"Received: nan, row 2 of .*ratings\.parquet"),
        (["1", "good"], r"Received: 'good', row 2 of .*ratings\.parquet"),
        ([True, False], "The column label must hold numbers. .* it holds bool"),
    ],
)
def test_a_column_that_is_not_of_numbers_is_told_in_one_line(values, message, tmp_path):
    file = tmp_path / "ratings.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": values}), file)
    with pytest.raises(ValueError, match=message):
        read_labelled_table(file, names=[])
