"""A folder of a released model: config.json, weights and tokenizer files. Nothing is downloaded."""

import json
import pathlib

from keras_transformer.convert.tables import ConversionError

SAFETENSORS_INDEX, TORCH_FILE = "model.safetensors.index.json", "pytorch_model.bin"


class ModelFolder:
    """Reads a folder as Hugging Face saves them.

    Args:
        path: of the folder.

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
        self.config = self.json("config.json")

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
            return dict(json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise ConversionError(f"{path} must hold a JSON object. Received: {error}") from None

    def setting(self, name, *allowed):
        """A setting of config.json for which only some values are supported.

        Args:
            name: name of the setting; a missing one has the first value.
            *allowed: the supported values.

        Raises:
            ConversionError: if it has another value.
        """
        value = self.config.get(name, allowed[0])
        if value not in allowed:
            supported = " or ".join(map(repr, allowed))
            raise ConversionError(
                f"{self.path / 'config.json'}: {name} must be {supported}; nothing else is "
                f"supported. Received: {value!r}."
            )
        return value

    def arrays(self):
        """The weights, {name: array}, of *.safetensors, or of pytorch_model.bin by torch.

        Raises:
            ConversionError: if there are none, a file is damaged, or torch is needed and not
                installed.
        """
        files = self._safetensors()
        if not files and self.has(TORCH_FILE):
            return self._torch_arrays()
        if not files:
            raise ConversionError(f"{self.path} must hold *.safetensors or {TORCH_FILE}.")
        from safetensors import SafetensorError, numpy

        arrays = {}
        for file in files:
            try:
                arrays |= numpy.load_file(file)
            except (SafetensorError, OSError) as error:
                raise ConversionError(f"{file} is damaged or missing: {error}") from None
        return arrays

    def _safetensors(self):
        if self.has(SAFETENSORS_INDEX):
            names = set(self.json(SAFETENSORS_INDEX).get("weight_map", {}).values())
            return [self.path / name for name in sorted(names)]
        return sorted(self.path.glob("*.safetensors"))

    def _torch_arrays(self):
        path = self.path / TORCH_FILE
        try:
            import torch
        except ImportError:
            raise ConversionError(
                f"Reading {path} needs torch. Install it, or save the model as safetensors."
            ) from None
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
            return {name: tensor.float().numpy() for name, tensor in tensors.items()}
        except Exception as error:  # it raises many kinds for a damaged file
            raise ConversionError(f"{path} is damaged: {error}") from None
