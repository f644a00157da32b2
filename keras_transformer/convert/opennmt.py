"""Transformers of OpenNMT-tf 2, from the folders of its training runs."""

import ast
import contextlib
import pathlib

from keras_transformer.convert.blocks import ACTIVATIONS
from keras_transformer.convert.folder import Converted, Settings, check_words
from keras_transformer.convert.sentencepiece import LANGUAGE, read_model, rearranged
from keras_transformer.convert.tables import (
    ConversionError,
    VocabularyPermutation,
    assign,
    name_in_array_errors,
    our_order,
    rows_of,
)
from keras_transformer.convert.tokenizers import name_in_errors
from keras_transformer.decoding import BeamSearch, GNMTScoring
from keras_transformer.files import in_one_line
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving.settings import SearchSettings, kept_search

DESCRIPTION = "model_description.py"
# The heads of each model in the catalog, and whether its own data settings end a source.
MODELS = {
    "Transformer": (8, False),
    "TransformerBase": (8, False),
    "TransformerBaseSharedEmbeddings": (8, False),
    "TransformerBig": (16, False),
    "TransformerBigSharedEmbeddings": (16, False),
    "TransformerTiny": (2, False),
    "ScalingNmtEnDe": (16, True),
    "ScalingNmtEnFr": (16, True),
}
OUR_ACTIVATIONS = ("relu", "gelu", "silu", "swish")
SINES = "SinusoidalPositionEncoder"
# What model_description.py may give; the checkpoint says most of it again.
_READ = (
    "dropout embedding_size ffn_activation ffn_inner_dim mha_bias name num_heads num_layers "
    "num_units output_layer_bias position_encoder_class pre_norm share_embeddings source_inputter "
    "target_inputter".split()
)
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SOURCE, _TARGET = (f"examples_inputter/{side}_inputter/embedding" for side in
                    ("features", "labels"))  # fmt: skip
_OUTPUT = "decoder/output_layer"
_ENDINGS = {name: f"/{name}" for name in ("kernel", "bias", "gamma", "beta")}
_ATTENTION = {
    "self_attention.query_key_value": (
        "self_attention/layer/linear_queries self_attention/layer/linear_keys "
        "self_attention/layer/linear_values"
    ),
    "self_attention.output_projection": "self_attention/layer/linear_output",
    "cross_attention.query": "attention/0/layer/linear_queries",
    "cross_attention.key_value": "attention/0/layer/linear_keys attention/0/layer/linear_values",
    "cross_attention.output_projection": "attention/0/layer/linear_output",
}
_FEED_FORWARD = {
    "feed_forward.widen": "ffn/layer/inner",
    "feed_forward.narrow": "ffn/layer/outer",
}
_NORMS = {
    "around_self_attention.norm": "self_attention",
    "around_cross_attention.norm": "attention/0",
    "around_feed_forward.norm": "ffn",
}
_FINAL_NORMS = {f"{side}.norm": f"{side}/layer_norm" for side in ("encoder", "decoder")}
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


def is_run(path):
    """Whether a folder holds TensorFlow checkpoints and no config.json."""
    path = pathlib.Path(path)
    has_checkpoints = (path / "checkpoint").is_file() or any(path.glob("*ckpt-*.index"))
    return has_checkpoints and not (path / "config.json").is_file()


def order_of(size):
    """The order of a table: <blank>, <s>, </s>, the words, and the unknown token, on no line."""
    return VocabularyPermutation(our_order(size, 0, size - 1, 1, 2))


def rows(model, source_order, target_order):
    """The table of a translation model, with OpenNMT-tf's names below `model/`.

    Args:
        model: of `translation`.
        source_order: the `VocabularyPermutation` of the source.
        target_order: that of the target.
    """
    source, target, output = model.source_embedding, model.target_embedding, model.output_projection
    if source is not target:
        yield source_order.row(source.embeddings, _SOURCE)
    yield target_order.row(target.embeddings, _SOURCE if source is target else _TARGET)
    if output is not target:
        yield target_order.row(output.embeddings, f"{_OUTPUT}/kernel", transpose=True)
    if model.output_bias is not None:
        yield target_order.row(model.output_bias.bias, f"{_OUTPUT}/bias")
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, block in enumerate(stack.blocks):
            prefix = f"{side}/layers/{index}/"
            norm = (
                "input_layer_norm"
                if block.around_feed_forward.normalize_first
                else "output_layer_norm"
            )
            norms = {path: f"{name}/{norm}" for path, name in _NORMS.items()}
            yield from rows_of(block, norms | _FEED_FORWARD, prefix, _ENDINGS, transpose=True)
            for row in rows_of(block, _ATTENTION, prefix, _ENDINGS, transpose=True):
                # Attention may have no biases (`mha_bias=False`).
                yield row if row.transpose else row._replace(missing=0.0)
    yield from rows_of(model, _FINAL_NORMS, endings=_ENDINGS)


def read(path):
    """Reads a run of OpenNMT-tf: its last checkpoint, vocabularies and SentencePiece models.

    Args:
        path: path of the folder of the run, or of an average below it. It holds checkpoints and
            model_description.py; its YAML file is in the same folder or above it.

    Returns:
        `Converted`.

    Raises:
        ConversionError: if something is missing, or the model is not supported.
    """
    path = pathlib.Path(path)
    arrays = _arrays(path)
    num_heads, dropout, activation, ends = _description(path)
    settings = OpenNMTSettings(path)
    shared, tied = _TARGET not in arrays, f"{_OUTPUT}/kernel" not in arrays
    words = [
        settings.words(side, arrays, name)
        for side, name in (("source", _SOURCE), ("target", _SOURCE if shared else _TARGET))
    ]
    if shared and words[0] != words[1]:
        raise ConversionError(
            f"{settings.file}: source_vocabulary and target_vocabulary must be the same, because "
            f"{path} has one table for both."
        )
    orders = [order_of(len(side) + 1) for side in words]
    hidden_dim = arrays[_SOURCE].shape[-1]
    if arrays[_SOURCE].ndim != 2 or hidden_dim < 4 or hidden_dim % 2:
        raise ConversionError(
            f"{path}: {_SOURCE} must have one row a word, at least 4 wide and even, for sines and "
            f"cosines. Received: {arrays[_SOURCE].shape}."
        )
    dimensions = {
        "num_layers": _num_layers("encoder", arrays),
        "num_decoder_layers": _num_layers("decoder", arrays),
        "hidden_dim": hidden_dim,
        "intermediate_dim": arrays["encoder/layers/0/ffn/layer/inner/bias"].shape[0],
        "num_heads": num_heads,
        "dropout": dropout,
        "normalize_first": "encoder/layer_norm/gamma" in arrays,
        "activation": activation,
    }
    if num_heads < 1 or hidden_dim % num_heads:
        raise ConversionError(
            f"{path / DESCRIPTION} must give num_heads that divide {hidden_dim}. "
            f"Received: {num_heads}."
        )
    model = translation(
        len(words[0]) + 1,
        None if shared else len(words[1]) + 1,
        tie_output=tied,
        output_bias=f"{_OUTPUT}/bias" in arrays,
        # Sines before cosines, from position 1, the last rate 1 / 10000.
        positions={
            "interleaved": False,
            "first_position": 1,
            "max_wavelength": 10000 ** (hidden_dim / (hidden_dim - 2)),
        },
        source_end=settings.source_end(ends),
        norm_epsilon=1e-3,
        **dimensions,
    )
    with name_in_array_errors(path):
        assign(rows(model, *orders), arrays, "OpenNMT-tf")
    tokenizers = [
        settings.tokenizer(*pair) for pair in zip(("source", "target"), words, strict=True)
    ]
    search = settings.search()
    run = dimensions | kept_search(search)
    return Converted("translation", model, *tokenizers, settings=search, config=run)


def _arrays(path):
    """The arrays of the last checkpoint, by their names below `model/`."""
    import tensorflow as tf

    try:
        file = tf.train.latest_checkpoint(path)
    except Exception as error:  # of a damaged file it raises several kinds
        message = f"{path / 'checkpoint'} cannot be read: {in_one_line(error)}"
        raise ConversionError(message) from None
    # The file `checkpoint` may name another folder, or be missing.
    if file is None or pathlib.Path(file).resolve().parent != path.resolve():
        files = {int(f.stem.split("-")[-1]): f for f in path.glob("ckpt-*.index")}
        file = str(files[max(files)].with_suffix("")) if files else None
    if file is None or not pathlib.Path(file).name.startswith("ckpt-"):
        raise ConversionError(f"{path} must hold checkpoints of OpenNMT-tf 2, ckpt-NUMBER.index.")
    try:
        reader = tf.train.load_checkpoint(file)
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
        arrays = {
            name.removeprefix("model/").removesuffix(_VALUE): reader.get_tensor(name)
            for name in names
            if name.endswith(_VALUE) and "/.OPTIMIZER_SLOT/" not in name
        }
    except Exception as error:  # TensorFlow raises many kinds for a damaged file
        raise ConversionError(f"{file} cannot be read: {in_one_line(error)}") from None
    first = [f"{side}/layers/0/ffn/layer/inner/bias" for side in ("encoder", "decoder")]
    if missing := [name for name in (_SOURCE, *first) if name not in arrays]:
        raise ConversionError(
            f"{file} must hold a Transformer of OpenNMT-tf 2 with one source. "
            f"Received: {len(arrays)} arrays, none of them model/{missing[0]}."
        )
    others = [name for name in arrays if "relative_position" in name or "position_encoder" in name]
    if others:
        raise ConversionError(
            f"{file} must have sinusoidal positions; nothing else is supported. "
            f"Received: {others[0]}."
        )
    return arrays


def _num_layers(side, arrays):
    start = f"{side}/layers/"
    return len({name.split("/")[2] for name in arrays if name.startswith(start)})


def _description(path):
    """Heads, dropout, activation and whether sources end by default, from the Python file."""
    file = next((p / DESCRIPTION for p in (path, path.parent) if (p / DESCRIPTION).is_file()), None)
    if file is None:
        raise ConversionError(f"{path} must hold {DESCRIPTION}, which OpenNMT-tf writes.")
    try:
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        keywords = [node for node in nodes if isinstance(node, ast.keyword)]
        arguments = {node.arg: ast.unparse(node.value) for node in keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConversionError(f"{file} must be Python. Received: {error}") from None
    names = {
        getattr(node, field)
        for kind, field in ((ast.Attribute, "attr"), (ast.Name, "id"), (ast.Constant, "value"))
        for node in nodes
        if isinstance(node, kind)
    }
    kinds = sorted(names & MODELS.keys())
    if len(kinds) != 1:
        raise ConversionError(
            f"{file} must describe one of {', '.join(MODELS)}. "
            f"Received: {', '.join(kinds) or None}."
        )
    settings = Settings(arguments, file)
    settings.ignore(_READ)
    settings.warn_of_unread()
    values = {"dropout": "0.1", "ffn_activation": "relu", "position_encoder_class": SINES}
    heads, ends = MODELS[kinds[0]]
    values |= {"num_heads": str(heads)} | arguments
    activation = values["ffn_activation"].split(".")[-1]
    by_place = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 2]
    if by_place or not values["num_heads"].isdigit():
        raise ConversionError(
            f"{file} must give sizes as numbers and by keyword, such as num_heads=8."
        )
    if activation not in OUR_ACTIVATIONS or not values["position_encoder_class"].endswith(SINES):
        raise ConversionError(
            f"{file} must have sinusoidal positions and one of {', '.join(OUR_ACTIVATIONS)}. "
            f"Received: {values['position_encoder_class']}, {activation}."
        )
    try:
        dropout = float(values["dropout"])
    except ValueError:
        dropout = 0.1
    return int(values["num_heads"]), dropout, ACTIVATIONS[activation], ends


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
        named = next(((file, config) for file in files if (config := _data_of(file))), None)
        if named is None:
            found = ", ".join(str(file) for folder in folders for file in folder.glob("*.y*ml"))
            raise ConversionError(
                f"{path} must hold the YAML file it was trained with, which names "
                "source_vocabulary and target_vocabulary under data. Copy it there. Received: "
                f"{found or None}."
            )
        self.file, self._config = named
        self._data = Settings(self._config["data"], self.file)

    def words(self, side, arrays, table):
        """The words of the "source" or "target" in the order of their ids, without <unk>.

        Args:
            arrays: the arrays of the checkpoint.
            table: the name of the embeddings.
        """
        file = self._file_named(self._data.text(f"{side}_vocabulary"))
        lines = file.read_bytes().decode("utf-8", "replace").split("\n")
        words = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
        check_words(file, words)
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
        controls = self._data.raw("source_sequence_controls") or {"end": default}
        controls = Settings(controls, self.file)
        controls.one_of("start", False, None)
        return bool(controls.raw("end"))

    def search(self):
        params = Settings(self._config.get("params") or {}, self.file)
        params.ignore(SEARCH + TRAINING)
        params.warn_of_unread()
        scoring = GNMTScoring(float(params.number("length_penalty", 0)))
        return SearchSettings(
            BeamSearch(params.count("beam_width", 4), scoring=scoring),
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
        has_languages = any(map(LANGUAGE.fullmatch, words))
        with name_in_errors(file):
            return rearranged(model, ["<blank>", "<unk>", "<s>", "</s>", *words[3:]], has_languages)

    def _sentencepiece_file(self, side):
        name = f"{side}_tokenization"
        tokenization = self._data.raw(name)
        if isinstance(tokenization, str):
            tokenization = _yaml(self._file_named(tokenization))
        if tokenization and not isinstance(tokenization, dict):
            self._data.refuse(name, "a mapping or a file with one", tokenization)
        if not tokenization:  # texts were tokenised beforehand
            files = sorted(self.file.parent.glob("*.model"))
            if len(files) == 1:
                return files[0]
            raise ConversionError(
                f"{self.file} must name a SentencePiece model under data: {name}, or "
                f"one file *.model must be next to it. Received: {len(files)} of them."
            )
        settings = Settings(tokenization, self.file)
        kind = settings.text("type", "OpenNMTTokenizer")
        params = settings.part("params") if settings.has("params") else settings
        if kind == "SentencePieceTokenizer" and params.has("model"):
            return self._file_named(params.text("model"))
        plain = {"mode": "none", "spacer_annotate": True}
        others = [key for key, value in params.values.items() if value != plain.get(key)]
        if kind != "OpenNMTTokenizer" or not params.has("mode") or others != ["sp_model_path"]:
            supported = "a SentencePieceTokenizer, or an OpenNMTTokenizer with mode none"
            self._data.refuse(name, f"{supported} and sp_model_path alone", tokenization)
        return self._file_named(params.text("sp_model_path"))

    def _file_named(self, name):
        """The path of a file that the settings name."""
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
