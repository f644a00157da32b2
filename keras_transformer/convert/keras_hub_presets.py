"""KerasHub's BERT and GPT-2: their table, preset folders, and models in memory.

Presets are read with h5py, which Keras itself needs, and without KerasHub.
"""

import logging
import re
import tempfile

import h5py
import ml_dtypes
import numpy as np

from keras_transformer.convert import bert, gpt2
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.settings import Settings, pieces_of
from keras_transformer.convert.tables import ConversionError, Row, assign, check_dtype
from keras_transformer.convert.tokenizer_json import merges_of
from keras_transformer.convert.weights import Weights
from keras_transformer.files import in_one_line
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models import bert_models, gpt2_model
from keras_transformer.serving.settings import SamplingSettings, usual_max_tokens

BACKBONE_WEIGHTS, HEAD_WEIGHTS = "model.weights.h5", "task.weights.h5"
VOCABULARY, MERGES, WORD_PIECES = (
    f"assets/tokenizer/{name}" for name in ("vocabulary.json", "merges.txt", "vocabulary.txt")
)
BERT_EPSILON, GPT2_EPSILON, HEAD_EPSILON = 1e-12, 1e-5, 1e-5

# Keys of a serialized Keras object that do not affect its numbers.
_OBJECT = ("module", "registered_name", "build_config", "name", "trainable", "dtype")
# What KerasHub calls the layers that the tables of `bert` and `gpt2` name, by the last parts of
# these names: within a block, and elsewhere.
_ATTENTION, _HEAD = "_self_attention_layer/", f"{HEAD_WEIGHTS}/layers/"
_QUERY_KEY_VALUE = tuple(f"{_ATTENTION}{part}_dense" for part in ("query", "key", "value"))
_IN_BLOCK = {
    "attention.self.query": _QUERY_KEY_VALUE[:1],
    "attention.self.key": _QUERY_KEY_VALUE[1:2],
    "attention.self.value": _QUERY_KEY_VALUE[2:],
    "attn.c_attn": _QUERY_KEY_VALUE,
    **dict.fromkeys(("attention.output.dense", "attn.c_proj"), (f"{_ATTENTION}output_dense",)),
    **dict.fromkeys(("attention.output.LayerNorm", "ln_1"), ("_self_attention_layer_norm",)),
    **dict.fromkeys(("intermediate.dense", "mlp.c_fc"), ("_feedforward_intermediate_dense",)),
    **dict.fromkeys(("output.dense", "mlp.c_proj"), ("_feedforward_output_dense",)),
    **dict.fromkeys(("output.LayerNorm", "ln_2"), ("_feedforward_layer_norm",)),
}
_ELSEWHERE = {
    **dict.fromkeys(("embeddings.word_embeddings", "wte"), "layers/reversible_embedding"),
    **dict.fromkeys(("embeddings.position_embeddings", "wpe"), "layers/position_embedding"),
    "embeddings.token_type_embeddings": "layers/embedding",
    **dict.fromkeys(("embeddings.LayerNorm", "ln_f"), "layers/layer_normalization"),
    "pooler.dense": "layers/dense",
    "classifier": f"{_HEAD}dense",
    "cls.predictions.transform.dense": f"{_HEAD}masked_lm_head/_intermediate_dense",
    "cls.predictions.transform.LayerNorm": f"{_HEAD}masked_lm_head/_intermediate_layer_norm",
}


def rows(model):
    """The table of BERT or GPT-2 with the names in KerasHub's weight files.

    KerasHub keeps the kernels of queries, keys and values as (input, heads, head width) and that of
    the output as (heads, head width, output), and has no next-sentence head.
    """
    family, stack = (
        (bert, "encoder") if isinstance(model, bert_models.BertModel) else (gpt2, "decoder")
    )
    heads = model.get_layer(stack).num_heads
    for row in family.rows(model):
        if row.names[0].startswith("cls.seq_relationship"):
            continue
        names = tuple(name for theirs in row.names for name in _names(theirs, stack))
        yield Row(row.variable, names, **_layout(row.variable, names, heads))


def _names(name, stack):
    """Where KerasHub keeps an array: one place, or three for queries, keys and values."""
    if name == "cls.predictions.bias":
        return [f"{_HEAD}masked_lm_head/vars/0"]
    layer, _, kind = name.rpartition(".")
    block = re.fullmatch(r"(?:encoder\.layer|h)\.(\d+)\.(.+)", layer)
    if block:
        number = "" if block[1] == "0" else f"_{block[1]}"
        places = [f"layers/transformer_{stack}{number}/{place}" for place in _IN_BLOCK[block[2]]]
    else:
        places = [_ELSEWHERE[layer]]
    places = [p if p.startswith(_HEAD) else f"{BACKBONE_WEIGHTS}/{p}" for p in places]
    return [f"{place}/vars/{int(kind == 'bias')}" for place in places]


def _layout(variable, names, heads):
    shape, is_kernel = variable.shape, "/transformer_" in names[0] and len(variable.shape) == 2
    if f"/{_ATTENTION}output_dense" in names[0] and is_kernel:
        return {
            "to_ours": lambda array: array.reshape(-1, shape[0]).T,
            "to_theirs": lambda array: array.T.reshape(heads, -1, shape[0]),
        }
    if len(names) == 1:
        return {"transpose": is_kernel}
    if not is_kernel:
        return {
            "to_ours": lambda array: array.reshape(-1),
            "to_theirs": lambda array: array.reshape(3 * heads, -1),
        }
    dim = shape[1]
    return {
        "to_ours": lambda array: array.reshape(3, dim, -1).swapaxes(1, 2).reshape(-1, dim),
        "to_theirs": lambda array: (
            array.reshape(3, -1, dim).swapaxes(1, 2).reshape(3 * dim, heads, -1)
        ),
    }


def read(folder: ModelFolder, with_tokenizer=True):
    """Reads a preset: a BertBackbone, with the head of its task, or a GPT2Backbone."""
    kind = folder.settings.text("class_name")
    if kind not in ("BertBackbone", "GPT2Backbone"):
        raise ConversionError(
            f"{folder.path} must hold a BertBackbone or a GPT2Backbone of KerasHub. "
            f"Received: {kind}."
        )
    config = folder.settings.part("config")
    for settings in (folder.settings, config):
        settings.without_effect(_OBJECT)
    if kind == "GPT2Backbone":
        return _read_gpt2(folder, config, with_tokenizer)
    config.one_of("num_segments", 2)
    dimensions, longest = _dimensions(config), config.count("max_sequence_length", least=3)
    size, weights = config.count("vocabulary_size"), _arrays(folder)
    _check(weights, "KerasHub's BERT", "encoder", size, longest, dimensions)
    tokenizer = _word_pieces(folder, size) if with_tokenizer else None
    model = bert_models.bert(
        size,
        max_sequence_length=longest,
        activation=gelu_tanh,
        norm_epsilon=BERT_EPSILON,
        **dimensions,
    )
    model, labels = _with_head(model, folder, weights)
    assign(rows(model), weights, "KerasHub's BERT")
    config.warn_of_unread()
    return bert.converted(model, tokenizer, labels, longest, dimensions)


def _with_head(model, folder, weights):
    """The model with the head of a BertTextClassifier or BertMaskedLM, and its labels."""
    if not folder.has("task.json"):
        return model, ()
    task = Settings(folder.json("task.json"), folder.path / "task.json")
    kind, config = task.text("class_name"), task.part("config")
    if kind == "BertTextClassifier":
        labels, dropout = config.count("num_classes", least=2), config.share("dropout", 0.1)
        name = f"{_HEAD}dense/vars/0"
        hidden_dim = model.get_layer("token_embedding").hidden_dim
        weights.check({name: (hidden_dim, labels)}, "KerasHub's BERT")
        config.one_of("activation", "linear", "softmax", None)
        model = bert_models.bert_classifier(model, labels, dropout=dropout)
        return model, tuple(map(str, range(labels)))
    if kind == "BertMaskedLM":  # its head has the exact GELU and a different epsilon
        model = bert_models.bert_pretraining(model, activation="gelu")
        model.get_layer("masked_token_norm").epsilon = HEAD_EPSILON
        logging.getLogger(__name__).warning(
            "%s has no head for the next sentence: it starts with random weights.", folder.path
        )
        return model, ()
    return model, ()  # e.g. TextEmbedder, which adds nothing


def _read_gpt2(folder, config, with_tokenizer):
    size, context = config.count("vocabulary_size"), config.count("max_sequence_length", least=2)
    dimensions, tokenizer, weights = _dimensions(config), None, _arrays(folder)
    _check(weights, "KerasHub's GPT-2", "decoder", size, context, dimensions)
    if with_tokenizer:
        _check_tokenizer(folder, add_prefix_space=False)
        file, merges = folder.file(VOCABULARY), folder.file(MERGES)
        tokenizer = gpt2.byte_pairs_of(
            file, lambda: (folder.json(VOCABULARY), merges_of(merges)), size
        )
    model = gpt2_model.gpt2(
        vocabulary_size=size, max_sequence_length=context, norm_epsilon=GPT2_EPSILON, **dimensions
    )
    assign(rows(model), weights, "KerasHub's GPT-2")
    config.warn_of_unread()
    sampling = SamplingSettings(context=context, max_tokens=usual_max_tokens(context))
    return gpt2.converted(model, tokenizer, sampling, dimensions)


def _check(weights, family, stack, size, longest, dimensions):
    """Compares the dimensions with the arrays, before a model is built."""
    hidden_dim, last = dimensions["hidden_dim"], dimensions["num_layers"] - 1
    block = f"layers/transformer_{stack}{f'_{last}' if last else ''}"
    inner = f"{block}/_feedforward_intermediate_dense/vars/0"
    shapes = {
        inner: (hidden_dim, dimensions["intermediate_dim"]),
        "layers/reversible_embedding/vars/0": (size, hidden_dim),
        "layers/position_embedding/vars/0": (longest, hidden_dim),
    }
    weights.check({f"{BACKBONE_WEIGHTS}/{name}": shapes[name] for name in shapes}, family)


def _dimensions(config):
    dropout = config.share("dropout", 0.1)
    return {
        **{name: config.count(name) for name in ("num_layers", "intermediate_dim")},
        **config.heads_of("hidden_dim", "num_heads"),
        **{"dropout": dropout, "attention_dropout": dropout},
    }


def _word_pieces(folder, size):
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

    config = _check_tokenizer(folder, split=True, suffix_indicator="##", oov_token="[UNK]")
    lowercase, file = config.flag("lowercase", False), folder.file(WORD_PIECES)
    strips = config.flag("strip_accents", False)
    try:
        tokenizer = WordPieceTokenizer.load(file, lowercase)
    except ValueError as error:
        raise ConversionError(f"{file} is a tokenizer that ours cannot be: {error}") from None
    pieces_of(file, tokenizer.vocabulary_size, size)
    if strips is not lowercase:
        logging.getLogger(__name__).warning(
            "%s: the tokenizer has strip_accents=%s, ours %s accents.",
            folder.path, strips, "strips" if lowercase else "keeps",
        )  # fmt: skip
    return tokenizer


def _check_tokenizer(folder, **allowed):
    file = folder.path / "tokenizer.json"
    config = Settings(folder.json("tokenizer.json"), file).part("config")
    for name, value in allowed.items():
        config.one_of(name, value)
    config.without_effect([*_OBJECT, "config_file", "lowercase", "strip_accents"])
    config.usual(special_tokens_in_strings=False)
    config.warn_of_unread()
    return config


def _arrays(folder):
    """The `Weights` of both weight files, by file and place in it."""
    arrays = {}
    for name in (BACKBONE_WEIGHTS, HEAD_WEIGHTS):
        if name == HEAD_WEIGHTS and not folder.has(name):
            continue
        path = folder.file(name)

        def collect(place, entry, name=name, path=path):
            if isinstance(entry, h5py.Dataset):
                if place.startswith("optimizer/") or "/seed_generator/" in place:
                    return
                # Numbers elsewhere, or fewer than the shape says: compressed or never written.
                stored = entry.id.get_storage_size()
                if entry.is_virtual or entry.external or stored < entry.nbytes:
                    raise ConversionError(
                        f"{path} must hold its arrays whole and uncompressed, as Keras writes "
                        f"them. Received: {place}, {stored} of {entry.nbytes} bytes."
                    )
                dtype = ml_dtypes.bfloat16 if entry.attrs.get("dtype") == "bfloat16" else None
                check_dtype(f"{path}: {place}", (np.dtype(dtype) if dtype else entry.dtype).name)
                # Older versions of Keras have other names for these.
                place = place.replace("_layer_checkpoint_dependencies", "layers")
                place = re.sub("/_(query|key|value|output)_dense/", r"/\1_dense/", place)
                arrays[f"{name}/{place}"] = np.array(entry, dtype)

        try:
            with h5py.File(path) as weights:
                weights.visititems(collect)
        except ConversionError:
            raise
        except Exception as error:  # h5py raises many types for a damaged file
            raise ConversionError(f"{path} is damaged: {in_one_line(error)}") from None
    return Weights.of(arrays)


def read_keras_hub(model, tokenizer=None):
    """Converts a KerasHub model that is in memory.

    Args:
        model: a `keras_hub.models` BertBackbone, BertTextClassifier, BertMaskedLM, GPT2Backbone
            or GPT2CausalLM.
        tokenizer: a BertTokenizer or GPT2Tokenizer; None to use the one of the model's
            preprocessor, if it has one.

    Returns:
        `Converted`, as from `read`; its tokenizer is None if there is none.

    Raises:
        ConversionError: a ValueError, if the model or its tokenizer is not supported.
    """
    if not hasattr(model, "save_to_preset"):
        raise ConversionError(f"The model must be one of KerasHub's. Received: {model!r}.")
    with tempfile.TemporaryDirectory() as path:
        model.save_to_preset(path)
        if tokenizer is not None:
            tokenizer.save_to_preset(path)
        folder = ModelFolder(path)
        return read(folder, with_tokenizer=folder.has("tokenizer.json"))
