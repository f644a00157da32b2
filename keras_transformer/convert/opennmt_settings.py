"""The YAML file of an OpenNMT-tf run, and the vocabularies and tokenizers that it names."""

import contextlib
import pathlib

from keras_transformer.convert import settings
from keras_transformer.convert.sentencepiece import read_model, rearranged
from keras_transformer.convert.tables import ConversionError
from keras_transformer.files import in_one_line
from keras_transformer.serving.settings import SearchSettings

CONTROL_WORDS = ["<blank>", "<s>", "</s>"]
FILLER = "averyunlikelytoken"  # begins the words that pad a vocabulary to a round size
SEARCH = ["beam_width", "length_penalty", "maximum_decoding_length"]
TRAINING = (
    "average_loss_in_time batch_size contrastive_learning decay_params decay_step_duration "
    "decay_type freeze_layers gradients_accum guided_alignment_type guided_alignment_weight "
    "label_smoothing learning_rate loss_scale max_margin_eta mixed_precision optimizer "
    "optimizer_params regularization scheduled_sampling_k scheduled_sampling_read_probability "
    "scheduled_sampling_type start_decay_steps".split()
)
MAX_SOURCE_LENGTH = 512  # in tokens; OpenNMT-tf has no limit


class OpenNMTSettings:
    """The settings with which a run was trained.

    Args:
        path: path of the folder of the run. The YAML file is in it or, for an average, above it.
            The files that it names are looked up relative to its folder, relative to the working
            directory, and next to it.

    Raises:
        ConversionError: if there is no such file.
    """

    def __init__(self, path):
        path = pathlib.Path(path)
        folders = [path, path.absolute().parent]
        files = (file for folder in folders for file in sorted(folder.glob("*.y*ml")))
        found = next(((file, config) for file in files if (config := _data_of(file))), None)
        if found is None:
            raise ConversionError(
                f"{path} must hold the YAML file it was trained with, which names "
                "source_vocabulary and target_vocabulary under data. Copy it there."
            )
        self.file, self._config = found
        self._data = self._config["data"]

    def words(self, side, arrays, table):
        """The words of the "source" or "target" in the order of their ids, without <unk>.

        Args:
            arrays: the arrays of the checkpoint.
            table: the name of the embeddings.
        """
        file = self._file_named(self._data[f"{side}_vocabulary"])
        lines = file.read_bytes().decode("utf-8", "replace").split("\n")
        words = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
        rows = len(arrays[table])
        if words[:3] != CONTROL_WORDS or len(set(words)) != len(words) or len(words) != rows - 1:
            raise ConversionError(
                f"{file} must hold {rows - 1} distinct words for the {rows} rows of {table}, "
                f"{', '.join(CONTROL_WORDS)} first. Received: {len(words)}, "
                f"{words[:3]!r:.200} first."
            )
        return words

    def source_end(self, default):
        """Whether sources end with </s>."""
        controls = self._data.get("source_sequence_controls") or {"end": default}
        controls = settings.Settings(controls, self.file).values
        if controls.get("start"):
            raise ConversionError(
                f"{self.file}: source_sequence_controls must not have start; it is not supported."
            )
        return bool(controls.get("end"))

    def search(self):
        params = settings.Settings(self._config.get("params") or {}, self.file)
        params.without_effect(SEARCH + TRAINING)
        params.warn_of_unread()
        return SearchSettings(
            num_beams=params.count("beam_width", 4),
            length_penalty=float(params.number("length_penalty", 0)),
            max_source_length=MAX_SOURCE_LENGTH,
            max_target_length=params.count("maximum_decoding_length", 250, least=2),
        )

    def tokenizer(self, side, words):
        """The tokenizer of a side, with the ids of our model.

        Args:
            side: "source" or "target".
            words: the words of the vocabulary.
        """
        file = self._sentencepiece_file(side)
        model = read_model(file)
        pieces = {word for word in words[3:] if not word.startswith(FILLER)}
        missing = pieces - {piece.piece for piece in model.pieces}
        if 2 * len(missing) > len(pieces):
            raise ConversionError(
                f"{file} must have the pieces of {side}_vocabulary. Received: a model without "
                f"{len(missing)} of {len(pieces)}."
            )
        return rearranged(model, ["<blank>", "<unk>", "<s>", "</s>", *words[3:]])

    def _sentencepiece_file(self, side):
        given = self._data.get(f"{side}_tokenization")
        if isinstance(given, str):
            given = _yaml(self._file_named(given))
        if given and not isinstance(given, dict):
            raise ConversionError(
                f"{self.file}: {side}_tokenization must be a mapping or a file with one. "
                f"Received: {given!r:.80}."
            )
        if not given:  # texts were tokenised beforehand
            files = sorted(self.file.parent.glob("*.model"))
            if len(files) == 1:
                return files[0]
            raise ConversionError(
                f"{self.file} must name a SentencePiece model under data: {side}_tokenization, or "
                f"one file *.model must be next to it. Received: {len(files)} of them."
            )
        kind, params = given.get("type", "OpenNMTTokenizer"), given.get("params", given)
        if kind == "SentencePieceTokenizer" and "model" in params:
            return self._file_named(params["model"])
        plain = {"mode": "none", "spacer_annotate": True}
        others = {name: value for name, value in params.items() if value != plain.get(name)}
        if kind != "OpenNMTTokenizer" or "mode" not in params or [*others] != ["sp_model_path"]:
            raise ConversionError(
                f"{self.file}: {side}_tokenization must be a SentencePieceTokenizer, or an "
                "OpenNMTTokenizer with mode none and sp_model_path alone; no other is supported. "
                f"Received: {kind} with {params}."
            )
        return self._file_named(params["sp_model_path"])

    def _file_named(self, name):
        """The path of a file that the settings name."""
        if not isinstance(name, str):
            raise ConversionError(f"{self.file} must name files by texts. Received: {name!r:.80}.")
        places = [
            self.file.parent / name,
            pathlib.Path(name),
            self.file.parent / pathlib.Path(name).name,
        ]
        for place in places:
            with contextlib.suppress(OSError):  # of a name that is too long for a file
                if place.is_file():
                    return place
        raise ConversionError(
            f"{self.file} names {in_one_line(name)}, which is missing. Put it next to it."
        )


def _data_of(file):
    """The content of a YAML file, or None if it names no vocabularies."""
    config = _yaml(file)
    data = config.get("data") if isinstance(config, dict) else None
    if isinstance(data, dict) and {"source_vocabulary", "target_vocabulary"} <= data.keys():
        return config
    return None


def _yaml(file):
    try:
        import yaml
    except ImportError:
        raise ConversionError(f"Reading {file} needs PyYAML. Install it.") from None
    try:
        return yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise ConversionError(f"{file} must hold YAML. Received: {line}") from None
