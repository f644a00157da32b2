"""A folder of a released model: config.json, weights and tokenizer files. Nothing is downloaded."""

import logging
import pathlib

import ml_dtypes  # noqa: F401  with which safetensors knows bfloat16

from keras_transformer.convert.settings import Settings, json_object
from keras_transformer.convert.tables import ConversionError, lines_of
from keras_transformer.convert.weights import Entry, Weights

SAFETENSORS, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
# What safetensors calls the dtypes that weights may have; any other keeps its name.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


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
        except (OSError, RuntimeError, ValueError) as error:
            raise ConversionError(f"{self.path / name!r} is no file: {error}") from None
        roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
        if not any(target.is_relative_to(one) for one in roots):
            raise ConversionError(
                f"{self.path / name} must be a file in this folder; a path or link that leads out "
                f"of it is not followed. Copy the file there. Received: {target}."
            )
        return target.is_file()

    def file(self, *names):
        """The path of the first of some files that exists.

        Raises:
            ConversionError: if none of them exists.
        """
        for name in names:
            if self.has(name):
                return self.path / name
        raise ConversionError(f"{self.path} must hold {' or '.join(names)}.")

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

    def arrays(self):
        """The weights, {name: array}, of *.safetensors, or of pytorch_model.bin by torch.

        As in Hugging Face's library, one whole file comes before the parts that an index names.

        Returns:
            `Weights`, whose arrays are read when they are asked for.

        Raises:
            ConversionError: if there are none, a file is damaged, lies outside of the folder or has
                an array that another one has, or torch is needed and not installed.
        """
        others = sorted(path.name for path in self.path.glob("*.safetensors"))
        if files := self._files(SAFETENSORS) or others:
            if unread := sorted(set(others) - set(files)):
                logging.getLogger(__name__).warning(
                    "%s: only %s is read. Not read: %s.",
                    self.path, " and ".join(files), ", ".join(unread),
                )  # fmt: skip
            return self._joined(files, safetensors_of)
        if files := self._files(TORCH_FILE):
            return self._joined(files, _torch_arrays)
        raise ConversionError(f"{self.path} must hold *.safetensors or {TORCH_FILE}.")

    def _files(self, whole):
        """The names of the files with all weights: one, or those that its index names."""
        index = f"{whole}.index.json"
        if self.has(whole) or not self.has(index):
            return [whole] * self.has(whole)
        names = Settings(self.json(index), self.path / index).part("weight_map").values.values()
        for name in names:
            if not isinstance(name, str) or pathlib.PurePath(name).name != name:
                raise ConversionError(
                    f"{self.path / index} must name files in its folder. Received: {name!r:.80}."
                )
        return sorted(set(names))

    def _joined(self, files, read):
        weights = Weights({})
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
        raise ConversionError(f"{file} is damaged or missing: {lines_of(error)[0]}") from None


def _entry_of(tensor):
    # A tensor may repeat its numbers without storing them.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor stores fewer numbers than it has")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(tuple(tensor.shape), dtype, lambda: tensor.float().numpy())
