"""A folder of a released model: config.json, weights and tokenizer files. Nothing is downloaded."""

import pathlib

from keras_transformer.convert.settings import Settings
from keras_transformer.convert.tables import ConversionError, lines_of
from keras_transformer.files import read_json

SAFETENSORS_INDEX, TORCH_FILE = "model.safetensors.index.json", "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"


class ModelFolder:
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
        self.path = pathlib.Path(path)
        if not (self.path / "config.json").is_file():
            raise ConversionError(
                f"{self.path} is not a folder with config.json. Nothing is downloaded: give the "
                "path of a released model."
            )
        self.settings = Settings(self.json("config.json"), self.path / "config.json")

    def has(self, name):
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

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
        path = self.file(name)
        try:
            return dict(read_json(path))
        except (ValueError, TypeError) as error:
            raise ConversionError(f"{path} must hold a JSON object. Received: {error}") from None

    def arrays(self):
        """The weights, {name: array}, of *.safetensors, or of pytorch_model.bin by torch.

        Raises:
            ConversionError: if there are none, a file is damaged, or torch is needed and not
                installed.
        """
        if files := self._files(SAFETENSORS_INDEX) or sorted(self.path.glob("*.safetensors")):
            return _joined(files, _safetensors)
        if files := self._files(TORCH_INDEX) or [self.path / TORCH_FILE] * self.has(TORCH_FILE):
            return _joined(files, _torch_arrays)
        raise ConversionError(f"{self.path} must hold *.safetensors or {TORCH_FILE}.")

    def _files(self, index):
        """The files that an index names, if there is one."""
        if not self.has(index):
            return []
        settings = Settings(self.json(index), self.path / index)
        names = settings.part("weight_map").values.values()
        return [self.path / name for name in sorted(set(map(str, names)))]


def _joined(files, read):
    arrays = {}
    for file in files:
        arrays |= read(file)
    return arrays


def _safetensors(file):
    from safetensors import SafetensorError, numpy

    try:
        return numpy.load_file(file)
    except (SafetensorError, OSError) as error:
        raise ConversionError(f"{file} is damaged or missing: {error}") from None


def _torch_arrays(file):
    try:
        import torch
    except ImportError:
        raise ConversionError(
            f"Reading {file} needs torch. Install it, or save the model as safetensors."
        ) from None
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except Exception as error:  # of a damaged file it raises many kinds
        raise ConversionError(f"{file} is damaged or missing: {lines_of(error)[0]}") from None
