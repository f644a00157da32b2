"""A folder of a released model: its settings and weights, and the model that they become.

Nothing is downloaded.
"""

import dataclasses
import json
import logging
import math
import numbers
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  with which safetensors knows bfloat16

from keras_transformer.convert.tables import ConversionError, Entry, Weights
from keras_transformer.files import in_one_line, read_json

SAFETENSORS, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
# What safetensors calls the dtypes that weights may have; any other keeps its name.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
MAX_JSON_BYTES = 2**28  # ten times the largest tokenizer.json that we know


@dataclasses.dataclass(frozen=True)
class Converted:
    """A released model, converted to ours.

    Args:
        command: the command of `train/` whose runs hold such models: "translation",
            "language_model", "classification", or "pretraining" for a backbone.
        model: the Keras model with its weights; for BERT, the backbone with the folder's heads.
        tokenizer: one of `tokenizers`.
        target_tokenizer: the tokenizer of translations; None if it is `tokenizer`.
        settings: `SearchSettings`, `SamplingSettings`, or None.
        labels: the names of a classifier's labels; empty if it predicts a number.
        multi_label: whether a text may have any number of labels instead of exactly one.
        config: the settings of the command that describe the model, e.g. its dimensions.
    """

    command: str
    model: Any
    tokenizer: Any
    target_tokenizer: Any = None
    settings: Any = None
    labels: tuple = ()
    multi_label: bool = False
    config: dict = dataclasses.field(default_factory=dict)


def json_object(path):
    """The content of a JSON file, a dictionary.

    Raises:
        ConversionError: if it is not JSON, too large, or nested too deeply.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"{content!r:.80}")
    except (ValueError, OSError) as error:
        raise ConversionError(f"{path} must hold a JSON object. Received: {error}") from None
    return content


def write_json(path, content):
    """Writes what `json` can hold, in UTF-8."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


class Settings:
    """What config.json says of a model, or a part of what it says.

    Null counts as a setting that is missing, except for `one_of`, and a missing one has its
    default, if it has one.

    Args:
        values: the content, a dictionary.
        file: path of the file, for messages.

    Examples:
        >>> Settings({"layers": "3"}, "bert/config.json").count("layers")
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ConversionError: bert/config.json: layers must be a whole \
number, at least 1. Received: '3'.
    """

    def __init__(self, values, file):
        if not isinstance(values, dict):
            raise ConversionError(f"{file} must hold a JSON object. Received: {values!r:.80}.")
        self.values, self.file = values, file
        self._known, self._expected = set(), {}

    def ignore(self, names):
        """Marks settings as known that change no number here."""
        self._known.update(names)

    def expect(self, **values):
        """Marks settings as known at these values; others get a warning."""
        self._expected.update(values)

    def unread(self):
        """The settings that no reader has asked for, {name: value}; null is no setting."""
        return {
            name: value
            for name, value in self.values.items()
            if value is not None
            and name not in self._known
            and not (name in self._expected and self._expected[name] == value)
        }

    def warn_of_unread(self):
        """Logs one warning that names the settings that no reader has asked for."""
        if unread := self.unread():
            logging.getLogger(__name__).warning(
                "%s has settings that are not supported and have no effect here: %s.",
                self.file, ", ".join(f"{name}={value!r:.80}" for name, value in unread.items()),
            )  # fmt: skip

    def raw(self, name):
        """A setting as it is, unchecked; None if it is missing."""
        self._known.add(name)
        return self.values.get(name)

    def has(self, name):
        return self.values.get(name) is not None

    def one_of(self, name, *allowed):
        """A setting of which only some values are supported; a missing one has the first."""
        value = self.raw(name)
        value = value if name in self.values else allowed[0]
        # 1 == True in Python, but not here.
        is_bool = isinstance(value, bool)
        if not any(value == one and is_bool == isinstance(one, bool) for one in allowed):
            supported = " or ".join(map(repr, allowed))
            self.refuse(name, f"{supported}; nothing else is supported", value)
        return value

    def check(self, allowed):
        """Raises ConversionError unless `one_of` supports all settings, {name: values}."""
        for name, values in allowed.items():
            self.one_of(name, *values)

    def count(self, name, default=None, least=1):
        """A whole number, required unless there is a default."""
        return self._checked(
            name, default, f"a whole number, at least {least}",
            lambda value: type(value) is int and value >= least,
        )  # fmt: skip

    def number(self, name, default, below=math.inf):
        """A number, at least 0 and below a limit."""
        return self._checked(
            name, default, "a number, at least 0" + f" and below {below}" * (below < math.inf),
            lambda value: isinstance(value, numbers.Real)
            and not isinstance(value, bool)
            and 0 <= value < below,
        )  # fmt: skip

    def flag(self, name, default):
        return self._checked(name, default, "true or false", lambda v: isinstance(v, bool))

    def text(self, name, default=None):
        return self._checked(name, default, "a string", lambda value: isinstance(value, str))

    def part(self, name):
        """The settings of an object inside of this one."""
        value = self._checked(name, None, "a JSON object", lambda value: isinstance(value, dict))
        return Settings(value, self.file)

    def items(self, name):
        """The values of a list or of an object, none if it is missing."""
        value = self.raw(name)
        if value is not None and not isinstance(value, (list, dict)):
            self.refuse(name, "a list or a JSON object", value)
        return list(value.values() if isinstance(value, dict) else value or [])

    def refuse(self, name, allowed, value):
        """Raises ConversionError for a setting, with what it must be and the value it has."""
        raise ConversionError(f"{self.file}: {name} must be {allowed}. Received: {value!r:.80}.")

    def heads_of(self, hidden, heads):
        """The width of a model and its number of heads, which must divide it.

        Args:
            hidden: name of the setting of the width.
            heads: name of that of the heads.
        """
        width, count = self.count(hidden), self.count(heads)
        if width % count:
            self.refuse(heads, f"a divisor of {hidden}, {width}", count)
        return {"hidden_dim": width, "num_heads": count}

    def _checked(self, name, default, allowed, is_allowed):
        """A setting or, if it is null or missing, its default; raises if it is not allowed."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if name not in self.values:
            raise ConversionError(f"{self.file} must have {name!r}.")
        if not is_allowed(value):
            self.refuse(name, allowed, value)
        return value


class Folder:
    """The files of a folder, none of which may lie outside of it.

    Args:
        path: of the folder.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def has(self, name):
        """Whether there is a file of this name.

        Raises:
            ConversionError: if the name or a link leads out of the folder. The links of Hugging
                Face's cache, from `snapshots` to `blobs`, may.
        """
        try:
            root, target = self.path.resolve(), (self.path / name).resolve()
            found = target.is_file()
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConversionError(f"{self.path} has no file {name!r:.80}: {reason}") from None
        roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
        if not any(target.is_relative_to(one) for one in roots):
            raise ConversionError(
                f"{self.path / name} must be a file in this folder; a path or link that leads out "
                f"of it is not followed. Copy the file there. Received: {target}."
            )
        return found

    def file(self, name):
        """The path of a file.

        Raises:
            ConversionError: if it does not exist.
        """
        if not self.has(name):
            raise ConversionError(f"{self.path} must hold {name}.")
        return self.path / name

    def json(self, name):
        """The content of a JSON file, a dictionary.

        Raises:
            ConversionError: if it is missing or not JSON.
        """
        return json_object(self.file(name))


class ModelFolder(Folder):
    """Reads a folder as Hugging Face saves them.

    Args:
        path: of the folder.

    Attributes:
        settings: the `Settings` of config.json.
        weights_file: for messages, the path of the file with the arrays, or of the first two of
            several, once `arrays` has found them; before, that of the folder.

    Raises:
        ConversionError: if there is no such folder, or it has no readable config.json.

    Examples:
        >>> ModelFolder("no such folder")
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ConversionError: no such folder is not a folder with \
config.json. Nothing is downloaded: give the path of a released model.
    """

    def __init__(self, path):
        super().__init__(path)
        if not self.has("config.json"):
            raise ConversionError(
                f"{self.path} is not a folder with config.json. Nothing is downloaded: give the "
                "path of a released model."
            )
        self.settings = Settings(self.json("config.json"), self.path / "config.json")
        self.weights_file = self.path

    def head(self, heads):
        """The value of the head that config.json names in a dictionary, without one the first.

        Args:
            heads: {name of the head: what it stands for}.

        Raises:
            ConversionError: if it names another one.
        """
        names = self.settings.raw("architectures") or [*heads][:1]
        if not isinstance(names, list) or names[0] not in [*heads]:
            self.settings.refuse("architectures", f"a list of one of {', '.join(heads)}", names)
        return heads[names[0]]

    def arrays(self):
        """The weights, {name: array}, of *.safetensors, or of pytorch_model.bin by torch.

        As in Hugging Face's library, a single file takes precedence over the parts of an index.

        Returns:
            `Weights`, whose arrays are read when they are asked for.

        Raises:
            ConversionError: if there are none, a file is damaged, lies outside of the folder or has
                an array that another one has, or torch is needed and not installed.
        """
        all_files = sorted(path.name for path in self.path.glob("*.safetensors"))
        if files := self._files(SAFETENSORS) or all_files:
            if unread := sorted(set(all_files) - set(files)):
                logging.getLogger(__name__).warning(
                    "%s: only %s is read. Not read: %s.",
                    self.path, " and ".join(files), ", ".join(unread),
                )  # fmt: skip
            return self._joined(files, safetensors_of)
        if files := self._files(TORCH_FILE):
            return self._joined(files, _torch_arrays)
        raise ConversionError(
            f"{self.path} must hold {SAFETENSORS}, other *.safetensors, or {TORCH_FILE}."
        )

    def _files(self, single):
        """The names of the files with all weights: one, or those that its index names."""
        index = f"{single}.index.json"
        if self.has(single) or not self.has(index):
            return [single] * self.has(single)
        names = Settings(self.json(index), self.path / index).part("weight_map").values.values()
        for name in names:
            if not isinstance(name, str) or pathlib.PurePath(name).name != name:
                raise ConversionError(
                    f"{self.path / index} must name files in its folder. Received: {name!r:.80}."
                )
        return sorted(set(names))

    def _joined(self, files, read):
        weights = Weights({})
        self.weights_file = self.path / (" and ".join(files[:2]) + " …" * (len(files) > 2))
        for file in files:
            if not self.has(file):
                raise ConversionError(f"{self.path / file} is damaged or missing: no such file.")
            weights = weights.joined(read(self.path / file))
        return weights


def safetensors_of(file):
    """The `Weights` of a *.safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(file, "numpy")
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConversionError(f"{file} is damaged or missing: {error}") from None
    return Weights({
        name: Entry(
            tuple(part.get_shape()), DTYPES.get(part.get_dtype(), part.get_dtype()),
            lambda name=name: opened.get_tensor(name),
        )
        for name, part in slices.items()
    })  # fmt: skip


def _torch_arrays(file):
    try:
        import torch
    except ImportError:
        raise ConversionError(
            f"Reading {file} needs torch. Install it, or save the model as safetensors."
        ) from None
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        return Weights({name: _entry_of(tensor) for name, tensor in tensors.items()})
    except Exception as error:  # of a damaged file it raises many kinds
        raise ConversionError(f"{file} is damaged or missing: {in_one_line(error)}") from None


def _entry_of(tensor):
    # A tensor may repeat its numbers without storing them.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor stores fewer numbers than it has")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(tuple(tensor.shape), dtype, lambda: tensor.float().numpy())


def pieces_in_order(file, vocabulary):
    """The pieces of a vocabulary, {piece: id}, in the order of their ids.

    Raises:
        ConversionError: if the ids are not 0, 1, 2 and so on.
    """
    ids = list(vocabulary.values())
    if not all(type(index) is int for index in ids) or sorted(ids) != list(range(len(ids))):
        raise ConversionError(
            f"{file}: the ids must be 0, 1, 2 and so on. Received: {len(ids)} pieces with other "
            "ids."
        )
    return sorted(vocabulary, key=vocabulary.get)


def check_words(file, words):
    """Raises ConversionError if a line of a vocabulary has no word, or a "\\r" in it."""
    for number, word in enumerate(words, 1):
        if not word.strip(" \t") or "\r" in word:
            raise ConversionError(
                f'{file}: line {number} must be a word, without "\\r". Received: {word!r:.80}.'
            )


def num_padding_rows(file, count, rows):
    """How many rows of a table of embeddings have no piece of the vocabulary.

    Args:
        file: of the vocabulary, or its folder, for messages.
        count: pieces of the vocabulary.
        rows: of the table.

    Raises:
        ConversionError: if the table has no row for some of the pieces.
    """
    if count > rows:
        raise ConversionError(
            f"{file}: the vocabulary must have at most {rows} pieces, one for each row of the "
            f"table of embeddings. Received: {count} pieces."
        )
    return rows - count
