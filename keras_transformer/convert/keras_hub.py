"""Our BERT and GPT-2 as preset folders of KerasHub."""

import json

import h5py
import keras
import numpy as np

from keras_transformer.convert import bert
from keras_transformer.convert import keras_hub_presets as presets
from keras_transformer.convert.graphs import in_float32
from keras_transformer.convert.tables import ConversionError, arrays_of
from keras_transformer.layers.embedding import PositionEmbedding
from keras_transformer.models import bert_models
from keras_transformer.models.functions import layer_names

LIBRARIES = ("keras_hub",)
TEXTS = ("A dog runs.", "it is ten past 6", "12,50")
LEARNING_RATE = 5e-5  # of a BertTextClassifier as KerasHub compiles it
NUM_SPECIAL_TOKENS = 2  # [CLS], [SEP]
NUM_EXAMPLES, EXAMPLE_LENGTH = 3, 7
END_OF_TEXT = "<|endoftext|>"  # KerasHub's tokenizer must have it


def write(text_model, draft, dtype="float32"):
    """Writes a preset of a BertBackbone, BertTextClassifier or GPT2CausalLM.

    Args:
        text_model: a `serving.Generator` or `Classifier`; for the backbone of BERT anything with
            `model` and `tokenizer`, such as `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    Of a model of `bert_pretraining` only the backbone is written, without the heads.

    Raises:
        ConversionError: if KerasHub has no such model.
    """
    if dtype != "float32":
        raise ConversionError(f"dtype must be float32. Received: {dtype!r}.")
    model, tokenizer = text_model.model, text_model.tokenizer
    if isinstance(model, bert_models.BertModel):
        bert.check_word_pieces(text_model)
    config = _config(model)
    (draft / "assets/tokenizer").mkdir(parents=True)
    if isinstance(model, bert_models.BertModel):
        tokenizer.save(draft / presets.WORD_PIECES)
        lowercase = tokenizer.lowercase
        cutter = _object("BertTokenizer", lowercase=lowercase, strip_accents=lowercase)
        backbone = _object("BertBackbone", **config, num_segments=2)
        if "head" in layer_names(model):
            longest = config["max_sequence_length"]
            if hasattr(text_model, "module"):
                longest = text_model.max_length + NUM_SPECIAL_TOKENS
            feeder = _object("BertTextClassifierPreprocessor",
                             tokenizer=cutter, sequence_length=longest)  # fmt: skip
            _write_json(draft / "preprocessor.json", feeder)
            _write_json(draft / "task.json", _object(
                "BertTextClassifier", backbone=backbone, preprocessor=feeder,
                num_classes=model.output_shape[-1], activation="linear",
                dropout=model.get_layer("head_dropout").rate,
            ))  # fmt: skip
    else:
        _save_byte_pairs(tokenizer, config["vocabulary_size"], draft)
        cutter = _object("GPT2Tokenizer")
        backbone = _object("GPT2Backbone", **config)
        longest = config["max_sequence_length"]
        feeder = _object("GPT2CausalLMPreprocessor", tokenizer=cutter, sequence_length=longest)
        _write_json(draft / "preprocessor.json", feeder)
    _write_json(draft / "config.json", backbone)
    _write_json(draft / "tokenizer.json", cutter)
    _write_json(draft / "metadata.json", {
        "keras_version": keras.version(), "parameter_count": model.count_params(),
    })  # fmt: skip
    _write_weights(model, draft)


def _write_weights(model, draft):
    arrays = arrays_of(presets.rows(model))
    if "head" in layer_names(model):  # a new optimizer, without which loading warns
        optimizer = f"{presets.HEAD_WEIGHTS}/optimizer/vars"
        arrays |= {f"{optimizer}/0": np.int64(0), f"{optimizer}/1": np.float32(LEARNING_RATE)}
    else:
        arrays = {name: a for name, a in arrays.items() if presets.HEAD_WEIGHTS not in name}
    for name, array in arrays.items():
        file, place = name.split("/", 1)
        with h5py.File(draft / file, "a") as weights:
            weights[place] = array


def example(text_model, dtype="float32"):
    """Texts with their ids, and ids with our model's answers, for the check of a folder."""
    tokenizer, model = text_model.tokenizer, in_float32(text_model)
    ids = tokenizer.tokenize(list(TEXTS)) - getattr(tokenizer, "first_id", 0)
    arrays = {"texts": np.array(json.dumps([list(TEXTS), ids.to_list()]))}
    size = _config(model)["vocabulary_size"]
    ids = np.random.default_rng(0).integers(1, size, (NUM_EXAMPLES, EXAMPLE_LENGTH), "int32")
    arrays["input.token_ids"], arrays["input.padding_mask"] = ids, np.ones_like(ids)
    if not isinstance(model, bert_models.BertModel):
        outputs = {"logits": model(ids, training=False)}
    else:
        segments = np.repeat(np.arange(EXAMPLE_LENGTH)[None] > 3, NUM_EXAMPLES, 0).astype("int32")
        arrays["input.segment_ids"] = segments
        has_head = "head" in layer_names(model)
        model = model if has_head else bert_models.bert_backbone(model)
        outputs = model({"token_ids": ids, "segment_ids": segments}, training=False)
        if has_head:
            outputs = {"logits": outputs}
        else:
            outputs = {"sequence_output": outputs["vectors"], "pooled_output": outputs["pooled"]}
    convert = keras.ops.convert_to_numpy
    return arrays | {f"output.{name}": convert(value) for name, value in outputs.items()}


def _config(model):
    """The settings of KerasHub's backbone; raises if none describes ours."""
    is_bert, names = isinstance(model, bert_models.BertModel), layer_names(model)
    if not is_bert and not {"embedding", "positions", "decoder"} <= set(names):
        raise ConversionError(
            f"Only bert() and gpt2() can be written for KerasHub. Received: {model!r}."
        )
    stack = model.get_layer("encoder" if is_bert else "decoder")
    table = model.get_layer("token_embedding" if is_bert else "embedding")
    positions, (kernel, bias) = (
        model.get_layer("positions"), stack.blocks[0].self_attention.output_projection
    )  # fmt: skip
    epsilon = presets.BERT_EPSILON if is_bert else presets.GPT2_EPSILON
    for what, received, wanted in (
        ("activation", getattr(stack.activation, "__name__", stack.activation), "gelu_tanh"),
        ("norm_epsilon", stack.norm_epsilon, epsilon),
        ("pre_norm", stack.pre_norm, not is_bert),
        ("learned positions", isinstance(positions, PositionEmbedding), True),
        ("use_bias", bias is not None, True),
        ("attention_pattern", stack.attention_pattern, None),
        ("key_dim * num_heads == hidden_dim", kernel.shape[0] == kernel.shape[1], True),
        ("pooler of", bert.pooler_of(model) if is_bert else "tanh", "tanh"),
        ("pooling", "mean or max" if "pooling" in names else "first", "first"),
        ("labels of", "tokens" if is_bert and "head" in names and len(model.output_shape) == 3
         else "texts", "texts"),
        ("scale_embedding", bool(not is_bert and table.scale), False),
    ):  # fmt: skip
        if received != wanted:
            raise ConversionError(
                f"KerasHub's {'BERT' if is_bert else 'GPT-2'} has {what}: {wanted}. "
                f"Received: {received}."
            )
    return {
        "vocabulary_size": table.vocabulary_size,
        "num_layers": stack.num_layers,
        "num_heads": stack.num_heads,
        "hidden_dim": table.hidden_dim,
        "intermediate_dim": stack.intermediate_dim,
        "dropout": stack.dropout,
        "max_sequence_length": positions.max_sequence_length,
    }


def _save_byte_pairs(tokenizer, size, draft):
    if not hasattr(tokenizer, "save_files"):
        raise ConversionError(
            "KerasHub's GPT-2 needs byte pairs: --tokens pieces. Received: "
            f"{type(tokenizer).__name__}."
        )
    tokenizer.save_files(draft / presets.VOCABULARY, draft / presets.MERGES)
    pieces = json.loads((draft / presets.VOCABULARY).read_text("utf-8"))
    if len(pieces) != size:
        raise ConversionError(f"The tokenizer must have {size} pieces. Received: {len(pieces)}.")
    if END_OF_TEXT not in pieces:  # the texts of models trained here end with </s>
        pieces = {END_OF_TEXT if p == "</s>" else p: index for p, index in pieces.items()}
        (draft / presets.VOCABULARY).write_text(json.dumps(pieces, ensure_ascii=False), "utf-8")


def _object(name, **config):
    """An object as Keras serialises it."""
    registered = f"keras_hub>{name}"
    return {"module": "keras_hub.models", "class_name": name, "config": config,
            "registered_name": registered}  # fmt: skip


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
