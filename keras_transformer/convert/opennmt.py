"""Transformers of OpenNMT-tf 2, from the folders of its training runs."""

import ast
import pathlib

from keras_transformer.convert.loading import Converted
from keras_transformer.convert.marian import Ids, run_settings
from keras_transformer.convert.opennmt_settings import OpenNMTSettings
from keras_transformer.convert.sentencepiece import our_order
from keras_transformer.convert.settings import Settings
from keras_transformer.convert.tables import ConversionError, Row, assign, lines_of
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.models.functions import layer_names

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
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
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


def is_run(path):
    """Whether a folder holds TensorFlow checkpoints and no config.json."""
    path = pathlib.Path(path)
    has_checkpoints = (path / "checkpoint").is_file() or any(path.glob("*ckpt-*.index"))
    return has_checkpoints and not (path / "config.json").is_file()


def ids_of(size):
    """The `Ids` of a table: <blank>, <s>, </s>, the words, and the unknown token, on no line."""
    return Ids(our_order(size, 0, size - 1, 1, 2))


def rows(model, source_ids, target_ids):
    """The table of a translation model, with OpenNMT-tf's names below `model/`."""
    names = layer_names(model)
    target = model.get_layer("target_embedding").embeddings
    if "source_embedding" in names:
        source = model.get_layer("source_embedding").embeddings
        yield Row(source, (_SOURCE,), to_ours=source_ids.rows, to_theirs=source_ids.rows_back)
    name = _TARGET if "source_embedding" in names else _SOURCE
    in_order = {"to_ours": target_ids.rows, "to_theirs": target_ids.rows_back}
    yield Row(target, (name,), **in_order)
    if "output_projection" in names:
        table = model.get_layer("output_projection").embeddings
        yield Row(table, (f"{_OUTPUT}/kernel",), transpose=True, **in_order)
    if "output_bias" in names:
        yield Row(model.get_layer("output_bias").bias, (f"{_OUTPUT}/bias",), **in_order)
    for side in ("encoder", "decoder"):
        stack = model.get_layer(side)
        for index, block in enumerate(stack.blocks):
            yield from _rows_of_block(block, f"{side}/layers/{index}", side == "decoder")
        if stack.norm is not None:
            yield from _norm(stack.norm, f"{side}/layer_norm")


def _rows_of_block(block, name, has_source):
    parts = [("self_attention", block.around_self_attention)]
    if has_source:
        parts.append(("attention/0", block.around_cross_attention))
    parts.append(("ffn", block.around_feed_forward))
    for part, around in parts:
        norm = "input_layer_norm" if around.pre_norm else "output_layer_norm"
        yield from _norm(around.norm, f"{name}/{part}/{norm}")
    own = block.self_attention
    yield from _attention(own.query_key_value, f"{name}/self_attention", "queries keys values")
    yield from _attention(own.output_projection, f"{name}/self_attention", "output")
    if has_source:
        own = block.cross_attention
        for projection, theirs in (
            (own.query, "queries"),
            (own.key_value, "keys values"),
            (own.output_projection, "output"),
        ):
            yield from _attention(projection, f"{name}/attention/0", theirs)
    yield from _projection(block.feed_forward.widen, [f"{name}/ffn/layer/inner"])
    yield from _projection(block.feed_forward.narrow, [f"{name}/ffn/layer/outer"])


def _attention(projection, name, parts):
    """The projections of attention, which in OpenNMT-tf may have no bias (`mha_bias=False`)."""
    names = [f"{name}/layer/linear_{part}" for part in parts.split()]
    return _projection(projection, names, missing=0.0)


def _projection(projection, names, missing=None):
    kernel, bias = projection
    yield Row(kernel, tuple(f"{name}/kernel" for name in names), transpose=True)
    yield Row(bias, tuple(f"{name}/bias" for name in names), missing=missing)


def _norm(norm, name):
    yield Row(norm.gamma, (f"{name}/gamma",))
    yield Row(norm.beta, (f"{name}/beta",))


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
    ids = [ids_of(len(side) + 1) for side in words]
    hidden_dim = arrays[_SOURCE].shape[-1]
    if arrays[_SOURCE].ndim != 2 or hidden_dim < 4 or hidden_dim % 2:
        raise ConversionError(
            f"{path}: {_SOURCE} must have one row a word, at least 4 wide and even, for sines and "
            f"cosines. Received: {arrays[_SOURCE].shape}."
        )
    dimensions = {
        "num_layers": _num_layers(path, arrays),
        "hidden_dim": hidden_dim,
        "intermediate_dim": arrays["encoder/layers/0/ffn/layer/inner/bias"].shape[0],
        "num_heads": num_heads,
        "dropout": dropout,
        "pre_norm": "encoder/layer_norm/gamma" in arrays,
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
    assign(rows(model, *ids), arrays, "OpenNMT-tf")
    tokenizers = [
        settings.tokenizer(*pair) for pair in zip(("source", "target"), words, strict=True)
    ]
    search = settings.search()
    run = run_settings(search, len(words[0]) + 1) | dimensions
    return Converted("translation", model, *tokenizers, settings=search, config=run)


def _arrays(path):
    """The arrays of the last checkpoint, by their names below `model/`."""
    import tensorflow as tf

    file = tf.train.latest_checkpoint(path)
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
        raise ConversionError(f"{file} cannot be read: {lines_of(error)[0]}") from None
    if _SOURCE not in arrays or "encoder/layers/0/ffn/layer/inner/bias" not in arrays:
        raise ConversionError(
            f"{file} must hold a Transformer of OpenNMT-tf 2 with one source. "
            f"Received: {len(arrays)} arrays, none of them model/{_SOURCE}."
        )
    others = [name for name in arrays if "relative_position" in name or "position_encoder" in name]
    if others:
        raise ConversionError(
            f"{file} must have sinusoidal positions; nothing else is supported. "
            f"Received: {others[0]}."
        )
    return arrays


def _num_layers(path, arrays):
    counts = [
        len({name.split("/")[2] for name in arrays if name.startswith(f"{side}/layers/")})
        for side in ("encoder", "decoder")
    ]
    if counts[0] != counts[1]:
        raise ConversionError(
            f"{path}: encoder and decoder must have equally many layers. Received: {counts}."
        )
    return counts[0]


def _description(path):
    """Heads, dropout, activation and whether sources end by default, from the Python file."""
    file = next((p / DESCRIPTION for p in (path, path.parent) if (p / DESCRIPTION).is_file()), None)
    if file is None:
        raise ConversionError(f"{path} must hold {DESCRIPTION}, which OpenNMT-tf writes.")
    try:
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        keywords = [node for node in nodes if isinstance(node, ast.keyword)]
        given = {node.arg: ast.unparse(node.value) for node in keywords}
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
    settings = Settings(given, file)
    settings.without_effect(_READ)
    settings.warn_of_unread()
    values = {"dropout": "0.1", "ffn_activation": "relu", "position_encoder_class": SINES}
    heads, ends = MODELS[kinds[0]]
    values |= {"num_heads": str(heads)} | given
    activation = values["ffn_activation"].split(".")[-1]
    by_place = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 2]
    if by_place or not values["num_heads"].isdigit():
        raise ConversionError(
            f"{file} must give sizes as numbers and by keyword, such as num_heads=8."
        )
    if activation not in ACTIVATIONS or not values["position_encoder_class"].endswith(SINES):
        raise ConversionError(
            f"{file} must have sinusoidal positions and one of {', '.join(ACTIVATIONS)}. "
            f"Received: {values['position_encoder_class']}, {activation}."
        )
    try:
        dropout = float(values["dropout"])
    except ValueError:
        dropout = 0.1
    return int(values["num_heads"]), dropout, ACTIVATIONS[activation], ends
