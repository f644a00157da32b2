"""Reads texts from the columns of tables: Parquet files and Hugging Face's `datasets` folders.

A table is a `.parquet` or `.arrow` file; a folder of `.parquet` files; or the folder that
`save_to_disk` of Hugging Face's `datasets` has written for one split. A field of a column of
structures is named with a dot, e.g. `translation.en`. Reading needs pyarrow, and nothing else:
what `save_to_disk` writes are Arrow files.
"""

import json
import pathlib
import re

from keras_transformer.data.labelled_text import are_numbers, number_of

_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of `save_to_disk`
_SUFFIXES = (".parquet", ".arrow")
_SHARD = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # as on the Hugging Face hub
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow file


def table_rows(file, *names):
    """Yields the texts of columns with these names, row by row, of one of the `table_files`.

    Raises:
        ImportError: if pyarrow is not installed.
        ValueError: if a column is missing, holds null or no texts, or the file is damaged.
    """
    columns, _ = _read_columns(file, *names)
    texts = [_texts_of(file, *each) for each in zip(names, columns, strict=True)]
    yield from zip(*texts, strict=True)


def labelled_rows(file, text_column, label_column, names=None):
    """Yields the text and the labels of each row of one of the `table_files`.

    A label is a text, or an integer. Where the table says the names of the integers, as the
    `ClassLabel` of Hugging Face's `datasets` does, these are the labels. A list holds all labels
    of a text. With empty `names`, each label is one number.

    Raises:
        ImportError: if pyarrow is not installed.
        ValueError: if a column is missing, holds null or values of another type, an integer has
            no name, or the file is damaged.
    """
    columns, features = _read_columns(file, text_column, label_column)
    texts = _texts_of(file, text_column, columns[0])
    if are_numbers(names):
        labels = _numbers_of(file, label_column, columns[1])
    else:
        labels = _labels_of(file, label_column, columns[1], features.get(label_column))
    yield from zip(texts, labels, strict=True)


def is_table(path) -> bool:
    """Whether a path names a table by its suffix, or is the folder of one."""
    path = pathlib.Path(path)
    marks = ("*.parquet", _STATE, _SPLITS)
    return path.suffix in _SUFFIXES or any(any(path.glob(mark)) for mark in marks)


def _read_columns(file, *names):
    """The columns with these names of a file of a table, and the features that it declares.

    Features are what `datasets` notes about columns: {name: {"_type": ..., ...}}.
    """
    try:
        import pyarrow
    except ImportError:
        raise ImportError(
            "Reading Parquet files and folders of Hugging Face datasets needs pyarrow: "
            "pip install pyarrow."
        ) from None
    if len(set(names)) < len(names):
        raise ValueError(f"Two different columns are needed. Received: {names[0]!r} twice.")
    try:
        with open(file, "rb") as content:
            is_parquet = content.read(4) == b"PAR1"
        table = _flat(_read_parquet(file, names) if is_parquet else _read_arrow(file))
        existing = table.column_names
        _check_columns(file, existing, names)
        table = table.select([existing.index(name) for name in names])
        table.validate(full=True)  # a damaged file may point outside of itself
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"Expected a complete Parquet or Arrow file. Received: {file}: {reason}."
        ) from None
    return table.columns, _features_of(file, table.schema.metadata or {})


def table_files(path):
    """The files of a table, in order."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return [folder]
    if (folder / _SPLITS).exists():
        inside = sorted(each.parent.name for each in folder.glob(f"*/{_STATE}"))
        raise ValueError(
            f"Expected one split of the data set. Give one of its folders: {', '.join(inside)}. "
            f"Received: {path}."
        )
    if (folder / _STATE).exists():
        return _saved_files(folder)
    files = sorted(folder.glob("*.parquet"))
    splits = sorted({match[1] for file in files if (match := _SHARD.fullmatch(file.name))})
    if len(splits) > 1:
        raise ValueError(
            f"Expected the files of one split. Give a pattern such as {folder}/{splits[0]}-*"
            f".parquet. Received: {path}, with {', '.join(splits)}."
        )
    if not files:
        raise ValueError(
            "Expected a folder of .parquet files, or one that save_to_disk has written. "
            f"Received: {path}."
        )
    return files


def _saved_files(folder):
    """The files that `save_to_disk` lists; there may be others, of its cache."""
    try:
        state = json.loads((folder / _STATE).read_bytes())
        files = [folder / pathlib.Path(each["filename"]).name for each in state["_data_files"]]
        has_indices = bool(state.get("_indices_data_files"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / _STATE} is damaged: {error!r}.") from None
    if missing := [file.name for file in files if not file.exists()]:
        raise ValueError(f"{folder / _STATE} is damaged: it lists {missing[0]}, which is missing.")
    if has_indices:
        raise ValueError(
            "Expected a data set whose rows are all read, in order. Save it again with a newer "
            f"version of datasets. Received: {folder}, which has a file of indices."
        )
    return files


def _read_parquet(file, names):
    from pyarrow import parquet

    # Pages have checksums if the writer added them.
    with parquet.ParquetFile(file, page_checksum_verification=True) as reader:
        _check_columns(file, _flat(reader.schema_arrow.empty_table()).column_names, names)
        return reader.read(columns=list(names))


def _read_arrow(file):
    import pyarrow

    with pyarrow.memory_map(str(file)) as content:
        try:
            return pyarrow.ipc.open_file(content).read_all()
        except pyarrow.ArrowInvalid:  # a stream, as `save_to_disk` writes
            content.seek(0)
        table = pyarrow.ipc.open_stream(content).read_all()
        content.seek(max(0, content.size() - len(_END_OF_STREAM)))
        if content.read() != _END_OF_STREAM:  # pyarrow takes that for the end
            raise OSError("its end is missing")
        return table


def _flat(table):
    """The table with one column for each field of its structures, named with dots."""
    from pyarrow.types import is_struct

    while any(map(is_struct, table.schema.types)):
        table = table.flatten()
    return table


def _check_columns(file, existing, names):
    if missing := [name for name in names if name not in existing]:
        raise ValueError(
            f"The table must have a column {missing[0]}. Choose among: {', '.join(existing)}. "
            f"Received: {file}."
        )


def _features_of(file, metadata):
    """What `datasets` has noted about the columns of a file."""
    try:
        described = json.loads(metadata.get(b"huggingface", b"{}"))
        return described.get("info", {}).get("features") or {}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"The features of {file} are damaged: {error}.") from None


def _texts_of(file, name, column):
    """The texts of a column, a list."""
    if not _is_text(_value_type(column.type)):
        raise ValueError(
            f"The column {name} must hold texts. Received: {file}, where it holds {column.type}."
        )
    _check_no_null(file, name, column)
    return column.to_pylist()


def _labels_of(file, name, column, feature):
    """A tuple of the names of its labels for each row of a column."""
    from pyarrow import compute, types

    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    values = compute.list_flatten(column) if is_list else column
    class_names, kind = _class_names(feature), _value_type(values.type)
    if not _is_text(kind) and not types.is_integer(kind):
        raise ValueError(
            f"The column {name} must hold texts, integers, or lists of them. "
            f"Received: {file}, where it holds {column.type}."
        )
    _check_no_null(file, name, column)
    _check_no_null(file, name, values)
    rows = column.to_pylist() if is_list else ([value] for value in column.to_pylist())
    if types.is_integer(kind) and class_names:
        limits = compute.min_max(values).as_py()
        if len(values) and not 0 <= limits["min"] <= limits["max"] < len(class_names):
            raise ValueError(
                f"The integers of the column {name} must be from 0 to {len(class_names) - 1}, "
                f"those of the labels {class_names}. Received: {file} with {limits['min']} to "
                f"{limits['max']}."
            )
        rows = ([class_names[number] for number in row] for row in rows)
    return [tuple(dict.fromkeys(map(str, row))) for row in rows]


def _numbers_of(file, name, column):
    """A tuple of its number for each row of a column."""
    from pyarrow import types

    kind = _value_type(column.type)
    if not any(is_kind(kind) for is_kind in (types.is_floating, types.is_integer, _is_text)):
        raise ValueError(
            f"The column {name} must hold numbers. Received: {file}, where it holds {column.type}."
        )
    _check_no_null(file, name, column)
    rows = enumerate(column.to_pylist(), start=1)
    return [(number_of(value, f"row {row} of {file}"),) for row, value in rows]


def _class_names(feature):
    """The names of the classes of a column, or of the values of its lists; None if it has none."""
    while isinstance(feature, (dict, list)) and feature:
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            return feature["names"]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature")
    return None


def _value_type(kind):
    """The type of the values of a column, of a dictionary of values too."""
    from pyarrow.types import is_dictionary

    return kind.value_type if is_dictionary(kind) else kind


def _is_text(kind):
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _check_no_null(file, name, values):
    if count := values.null_count:
        raise ValueError(
            f"The column {name} must have a value in every row. Remove the rows without one. "
            f"Received: {file} with {count:,} null values."
        )
