"""KerasHub's BERT and GPT-2: preset folders read and written, and models in memory.

Presets are read and written with h5py, which Keras itself needs, and without KerasHub.
"""

import json
import logging
import re
import tempfile

import h5py
import keras
import ml_dtypes
import numpy as np

from keras_transformer.convert import bert, gpt2
from keras_transformer.convert.blocks import (
    check_dense,
    check_equal,
    check_output,
    read_dimensions,
    written_dimensions,
)
from keras_transformer.convert.examples import (
    answers,
    drawn_inputs,
    float32_model,
    texts_and_ids,
)
from keras_transformer.convert.folder import (
    ModelFolder,
    Settings,
    num_padding_rows,
    write_json,
)
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    Weights,
    arrays_of,
    assign,
    layer_at,
    rows_of,
)
from keras_transformer.convert.tokenizers import check_merges, name_in_errors
from keras_transformer.files import in_one_line
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.layers.positions import PositionEmbedding
from keras_transformer.models import bert_models, gpt2_model
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.serving.settings import SamplingSettings
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer, merges_of
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

BACKBONE_WEIGHTS, HEAD_WEIGHTS = "model.weights.h5", "task.weights.h5"
VOCABULARY, MERGES, WORD_PIECES = (
    f"assets/tokenizer/{name}" for name in ("vocabulary.json", "merges.txt", "vocabulary.txt")
)
BERT_EPSILON, GPT2_EPSILON, HEAD_EPSILON = 1e-12, 1e-5, 1e-5
LEARNING_RATE = 5e-5  # of a BertTextClassifier as KerasHub compiles it
NUM_SPECIAL_TOKENS = 2  # [CLS], [SEP]
END_OF_TEXT = "<|endoftext|>"  # KerasHub's tokenizer must have it

# Keys of a serialized Keras object that do not affect its numbers.
_OBJECT = ("module", "registered_name", "build_config", "name", "trainable", "dtype")
# Of a backbone: it has our names.
_SETTINGS = {
    name: name
    for name in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim",
                 "dropout", "max_sequence_length")
}  # fmt: skip
_ENDINGS = {
    **dict.fromkeys(("kernel", "gamma", "embeddings"), "/vars/0"),
    **dict.fromkeys(("bias", "beta"), "/vars/1"),
}
_BACKBONE = {
    **dict.fromkeys(("token_embedding", "embedding"), "reversible_embedding"),
    "positions": "position_embedding",
    "segment_embedding": "embedding",
    **dict.fromkeys(("embedding_norm", "decoder.norm"), "layer_normalization"),
    "pooler": "dense",
}
_HEAD = {
    "head": "dense",
    "masked_token_dense": "masked_lm_head/_intermediate_dense",
    "masked_token_norm": "masked_lm_head/_intermediate_layer_norm",
}
_MASKED_TOKEN_BIAS = f"{HEAD_WEIGHTS}/layers/masked_lm_head/vars/0"
_BLOCK = {
    "self_attention.query_key_value": (
        "_self_attention_layer/query_dense _self_attention_layer/key_dense "
        "_self_attention_layer/value_dense"
    ),
    "self_attention.output_projection": "_self_attention_layer/output_dense",
    "around_self_attention.norm": "_self_attention_layer_norm",
    "feed_forward.widen": "_feedforward_intermediate_dense",
    "feed_forward.narrow": "_feedforward_output_dense",
    "around_feed_forward.norm": "_feedforward_layer_norm",
}


def rows(model):
    """The table of BERT or GPT-2 with the names in KerasHub's weight files.

    KerasHub keeps the kernels of queries, keys and values as (input, heads, head width) and that of
    the output as (heads, head width, output), and has no next-sentence head.
    """
    name, stack = _stack(model)
    yield from rows_of(model, _BACKBONE, f"{BACKBONE_WEIGHTS}/layers/", _ENDINGS)
    yield from rows_of(model, _HEAD, f"{HEAD_WEIGHTS}/layers/", _ENDINGS)
    if (bias := layer_at(model, "masked_token_bias.bias")) is not None:
        yield Row(bias, (_MASKED_TOKEN_BIAS,))
    for index, block in enumerate(stack.blocks):
        prefix = f"{BACKBONE_WEIGHTS}/{_block_name(name, index)}/"
        for row in rows_of(block, _BLOCK, prefix, _ENDINGS, transpose=True):
            yield row._replace(shape=_shape_with_heads(row, stack.num_heads))


def _stack(model):
    """The name and the layer of a model's blocks."""
    if isinstance(model, bert_models.BertModel):
        return "encoder", model.encoder
    return "decoder", model.decoder


def _block_name(stack, index):
    return f"layers/transformer_{stack}{f'_{index}' if index else ''}"


def _shape_with_heads(row, heads):
    """The shape of KerasHub's arrays for a row of attention, which have an axis of heads."""
    size, *inputs = row.variable.shape
    if row.names[0].endswith("/output_dense/vars/0"):
        return heads, inputs[0] // heads, size
    if len(row.names) == 1:
        return None
    return *inputs, heads, size // (len(row.names) * heads)


def read(folder: ModelFolder, with_tokenizer=True):
    """Reads a preset: a BertBackbone, with the head of its task, or a GPT2Backbone."""
    kind, config = folder.settings.text("class_name"), folder.settings.part("config")
    if kind not in ("BertBackbone", "GPT2Backbone"):
        raise ConversionError(
            f"{folder.path} must hold a BertBackbone or a GPT2Backbone of KerasHub. "
            f"Received: {kind}."
        )
    for settings in (folder.settings, config):
        settings.ignore(_OBJECT)
    is_bert = kind == "BertBackbone"
    family = f"KerasHub's {'BERT' if is_bert else 'GPT-2'}"
    dimensions = read_dimensions(config, _SETTINGS | {"attention_dropout": "dropout"})
    size = config.count("vocabulary_size")
    longest = config.count("max_sequence_length", least=3 if is_bert else 2)
    weights, tokenizer, labels = _arrays(folder), None, ()
    hidden_dim, last = dimensions["hidden_dim"], dimensions["num_layers"] - 1
    block = _block_name("encoder" if is_bert else "decoder", last)
    shapes = {
        f"{block}/_feedforward_intermediate_dense": (hidden_dim, dimensions["intermediate_dim"]),
        "layers/reversible_embedding": (size, hidden_dim),
        "layers/position_embedding": (longest, hidden_dim),
    }
    weights.check({f"{BACKBONE_WEIGHTS}/{n}/vars/0": shapes[n] for n in shapes}, family)
    if with_tokenizer:
        tokenizer = (_word_pieces if is_bert else _byte_pairs)(folder, size)
    if is_bert:
        config.one_of("num_segments", 2)
        model = bert_models.bert(
            size,
            max_sequence_length=longest,
            activation=gelu_tanh,
            norm_epsilon=BERT_EPSILON,
            **dimensions,
        )
        model, labels = _with_head(model, folder, weights)
    else:
        model = gpt2_model.gpt2(
            vocabulary_size=size,
            max_sequence_length=longest,
            norm_epsilon=GPT2_EPSILON,
            **dimensions,
        )
    assign(rows(model), weights, family)
    config.warn_of_unread()
    if is_bert:
        return bert.converted(model, tokenizer, labels, longest, dimensions)
    sampling = SamplingSettings(context=longest)
    return gpt2.converted(model, tokenizer, sampling, dimensions)


def _with_head(model, folder, weights):
    """The model with the head of a BertTextClassifier or BertMaskedLM, and its labels."""
    if not folder.has("task.json"):
        return model, ()
    task = Settings(folder.json("task.json"), folder.path / "task.json")
    kind, config = task.text("class_name"), task.part("config")
    if kind == "BertTextClassifier":
        labels = config.count("num_classes", least=2)
        dropout = config.number("dropout", 0.1, below=1)
        name = f"{HEAD_WEIGHTS}/layers/dense/vars/0"
        hidden_dim = model.token_embedding.hidden_dim
        weights.check({name: (hidden_dim, labels)}, "KerasHub's BERT")
        config.one_of("activation", "linear", "softmax", None)
        model = bert_models.bert_classifier(model, labels, dropout=dropout)
        return model, tuple(map(str, range(labels)))
    if kind == "BertMaskedLM":  # its head has the exact GELU and a different epsilon
        model = bert_models.bert_pretraining(model, activation="gelu")
        model.masked_token_norm.epsilon = HEAD_EPSILON
        logging.getLogger(__name__).warning(
            "%s has no head for the next sentence: it starts with random weights.", folder.path
        )
        return model, ()
    return model, ()  # e.g. TextEmbedder, which adds nothing


def _word_pieces(folder, size):
    config = _check_tokenizer(folder, split=True, suffix_indicator="##", oov_token="[UNK]")
    lowercase, file = config.flag("lowercase", False), folder.file(WORD_PIECES)
    strips = config.flag("strip_accents", False)
    with name_in_errors(file):
        tokenizer = WordPieceTokenizer.load(file, lowercase)
    num_padding_rows(file, tokenizer.vocabulary_size, size)
    if strips is not lowercase:
        logging.getLogger(__name__).warning(
            "%s: the tokenizer has strip_accents=%s, ours %s accents.",
            folder.path, strips, "strips" if lowercase else "keeps",
        )  # fmt: skip
    return tokenizer


def _byte_pairs(folder, size):
    _check_tokenizer(folder, add_prefix_space=False)
    file, merges = folder.file(VOCABULARY), folder.file(MERGES)
    with name_in_errors(merges):
        pairs = merges_of(merges)
    vocabulary = folder.json(VOCABULARY)
    check_merges(merges, vocabulary, pairs)
    with name_in_errors(file):
        return gpt2.padded_byte_pairs(file, vocabulary, pairs, size)


def _check_tokenizer(folder, **allowed):
    file = folder.path / "tokenizer.json"
    config = Settings(folder.json("tokenizer.json"), file).part("config")
    for name, value in allowed.items():
        config.one_of(name, value)
    config.ignore([*_OBJECT, "config_file", "lowercase", "strip_accents"])
    config.expect(special_tokens_in_strings=False)
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


def write(text_model, draft):
    """Writes a preset of a BertBackbone, BertTextClassifier or GPT2CausalLM.

    The backbone of BERT may come from anything with `model` and `tokenizer`, such as `Converted`.
    Of a model of `bert_pretraining` only the backbone is written, without the heads.
    """
    model, tokenizer = text_model.model, text_model.tokenizer
    config = _config(model, tokenizer)
    (draft / "assets/tokenizer").mkdir(parents=True)
    if isinstance(model, bert_models.BertModel):
        tokenizer.save_vocabulary(draft / WORD_PIECES)
        options = dict.fromkeys(("lowercase", "strip_accents"), tokenizer.lowercase)
        tokenizer_object = _object("BertTokenizer", **options)
        backbone, task = _object("BertBackbone", **config, num_segments=2), "BertTextClassifier"
    else:
        _save_byte_pairs(tokenizer, config["vocabulary_size"], draft)
        tokenizer_object = _object("GPT2Tokenizer")
        backbone, task = _object("GPT2Backbone", **config), "GPT2CausalLM"
    is_classifier = isinstance(model, bert_models.BertClassifierModel)
    if is_classifier and (getattr(text_model, "multi_label", False) or model.output_shape[-1] == 1):
        raise ConversionError(
            "KerasHub's BertTextClassifier gives each text one of several labels. "
            "Received: a model of several labels per text, or of numbers."
        )
    if is_classifier or task == "GPT2CausalLM":
        longest = config["max_sequence_length"]
        if is_classifier and hasattr(text_model, "max_length"):
            longest = text_model.max_length + NUM_SPECIAL_TOKENS
        preprocessor = _object(
            f"{task}Preprocessor", tokenizer=tokenizer_object, sequence_length=longest
        )
        write_json(draft / "preprocessor.json", preprocessor)
    if is_classifier:
        write_json(draft / "task.json", _object(
            task, backbone=backbone, preprocessor=preprocessor, activation="linear",
            num_classes=model.output_shape[-1], dropout=model.head_dropout.rate,
        ))  # fmt: skip
    write_json(draft / "config.json", backbone)
    write_json(draft / "tokenizer.json", tokenizer_object)
    write_json(draft / "metadata.json", {
        "keras_version": keras.version(), "parameter_count": model.count_params(),
    })  # fmt: skip
    _write_weights(model, draft)


def _write_weights(model, draft):
    arrays = arrays_of(rows(model))
    if isinstance(model, bert_models.BertClassifierModel):
        # A new optimizer, without which loading warns.
        optimizer = f"{HEAD_WEIGHTS}/optimizer/vars"
        arrays |= {f"{optimizer}/0": np.int64(0), f"{optimizer}/1": np.float32(LEARNING_RATE)}
    else:
        arrays = {name: a for name, a in arrays.items() if HEAD_WEIGHTS not in name}
    for name, array in arrays.items():
        file, place = name.split("/", 1)
        with h5py.File(draft / file, "a") as weights:
            weights[place] = array


def example(text_model):
    """Texts with their ids, and ids with our model's answers, for the check of a folder."""
    model = float32_model(text_model)
    is_bert = isinstance(model, bert_models.BertModel)
    if is_bert and not isinstance(model, bert_models.BertClassifierModel):
        model = bert_models.bert_backbone(model)
    inputs, names = drawn_inputs(model), {"vectors": "sequence_output", "pooled": "pooled_output"}
    mask = {"padding_mask": np.ones_like(inputs["token_ids"])}
    return {
        **texts_and_ids(text_model.tokenizer),
        **{f"input.{name}": array for name, array in (inputs | mask).items()},
        **{f"output.{names.get(n, n)}": array for n, array in answers(model, inputs).items()},
    }


def _config(model, tokenizer):
    """The settings of KerasHub's backbone; raises if none describes ours."""
    is_bert = isinstance(model, bert_models.BertModel)
    if not is_bert and not isinstance(model, LanguageModel):
        raise ConversionError(
            f"Only bert() and gpt2() can be written for KerasHub. Received: {model!r}."
        )
    _, stack = _stack(model)
    table = model.token_embedding if is_bert else model.embedding
    check_dense(stack, "KerasHub")
    if not is_bert:
        check_output(model, "KerasHub's GPT-2")
    pools = getattr(model, "pooling", None) is not None
    labels_tokens = isinstance(model, bert_models.BertTokenLabellerModel)
    check_equal(f"KerasHub's {'BERT' if is_bert else 'GPT-2'}", {
        "tokenizer": (type(tokenizer), WordPieceTokenizer if is_bert else BytePairTokenizer),
        "activation": (stack.activation, gelu_tanh),
        "norm_epsilon": (stack.norm_epsilon, BERT_EPSILON if is_bert else GPT2_EPSILON),
        "normalize_first": (stack.normalize_first, not is_bert),
        "learned positions": (isinstance(model.positions, PositionEmbedding), True),
        "pooler of": (bert.pooler_of(model) if is_bert else "tanh", "tanh"),
        "pooling": ("mean or max" if pools else "first", "first"),
        "labels of": ("tokens" if labels_tokens else "texts", "texts"),
        "answers": (isinstance(model, bert_models.BertQuestionAnsweringModel), False),
        "scale_embedding": (bool(not is_bert and table.scale), False),
    })  # fmt: skip
    return written_dimensions(model, stack, table, _SETTINGS)


def _save_byte_pairs(tokenizer, size, draft):
    tokenizer.save_files(draft / VOCABULARY, draft / MERGES)
    pieces = json.loads((draft / VOCABULARY).read_text("utf-8"))
    if len(pieces) != size:
        raise ConversionError(f"The tokenizer must have {size} pieces. Received: {len(pieces)}.")
    if END_OF_TEXT not in pieces:  # the texts of models trained here end with </s>
        pieces = {END_OF_TEXT if p == "</s>" else p: index for p, index in pieces.items()}
        (draft / VOCABULARY).write_text(json.dumps(pieces, ensure_ascii=False), "utf-8")


def _object(name, **config):
    """An object as Keras serialises it."""
    registered = f"keras_hub>{name}"
    return {"module": "keras_hub.models", "class_name": name, "config": config,
            "registered_name": registered}  # fmt: skip
