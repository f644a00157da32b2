"""Our models as folders of Hugging Face's library: Marian, Pegasus, BERT and GPT-2.

A translation model that normalises after its sub-layers is a Marian, one that normalises before
them a Pegasus.
"""

import json

import keras
import numpy as np

from keras_transformer.convert.huggingface_bert import bert_folder
from keras_transformer.convert.huggingface_gpt2 import gpt2_folder
from keras_transformer.convert.huggingface_parts import first_table, write_json
from keras_transformer.convert.huggingface_translation import translation_folder
from keras_transformer.convert.tables import ConversionError
from keras_transformer.models.functions import layer_names

LIBRARIES = "transformers", "torch"
TEXTS = ("A dog runs.", "it is ten past 6", "12,50")
DTYPES = ("float32",)
NUM_EXAMPLES, EXAMPLE_LENGTH, FIRST_WORD_ID = 3, 7, 4


def write(text_model, draft, dtype="float32"):
    """Writes config.json, model.safetensors and the files of the tokenizer.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`; for the backbone of BERT
            anything with `model` and `tokenizer`, such as `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    A model of `bert_pretraining` becomes a BertForPreTraining with both of its heads.

    Raises:
        ConversionError: if Hugging Face's library has no such model.
    """
    if dtype not in DTYPES:
        raise ConversionError(f"dtype must be one of {', '.join(DTYPES)}. Received: {dtype!r}.")
    from safetensors.numpy import save_file

    config, arrays = _family(text_model)(text_model, draft)
    write_json(draft / "config.json", {"dtype": dtype, "transformers_version": "4.57.0"} | config)
    save_file(arrays, draft / "model.safetensors", {"format": "pt"})


def example(text_model, dtype="float32"):
    """Texts with their ids, and ids with our model's answers, for the check of a folder."""
    ids = text_model.tokenizer.tokenize(list(TEXTS)) - getattr(text_model.tokenizer, "first_id", 0)
    texts = {"texts": np.array(json.dumps([list(TEXTS), ids.to_list()]))}
    return texts | _answers(text_model.model)


def _answers(model):
    table = first_table(model)
    draw = np.random.default_rng(0)
    shape = (NUM_EXAMPLES, EXAMPLE_LENGTH)
    ids = draw.integers(FIRST_WORD_ID, table.vocabulary_size, shape).astype("int32")
    if isinstance(model.input, dict) and "target_ids" in model.input:
        largest = model.get_layer("target_embedding").vocabulary_size
        target = draw.integers(FIRST_WORD_ID, largest, shape).astype("int32")
        logits = model({"source_ids": ids, "target_ids": target}, training=False)
        inputs = {"input_ids": ids, "decoder_input_ids": target}
        return _arrays(inputs, {"logits": logits})
    if not isinstance(model.input, dict):
        return _arrays({"input_ids": ids}, {"logits": model(ids, training=False)})
    segments = (np.arange(EXAMPLE_LENGTH) > 3)[None].repeat(NUM_EXAMPLES, axis=0).astype("int32")
    given = {"token_ids": ids, "segment_ids": segments}
    if "masked_positions" in model.input:
        given["masked_positions"] = np.arange(EXAMPLE_LENGTH)[None].repeat(NUM_EXAMPLES, axis=0)
    outputs = model(given, training=False)
    if "masked_positions" in model.input:
        outputs = {
            "prediction_logits": outputs["masked_tokens"],
            "seq_relationship_logits": outputs["next_sentence"],
        }
    elif isinstance(outputs, dict):
        outputs = {"last_hidden_state": outputs["vectors"], "pooler_output": outputs["pooled"]}
    else:
        outputs = {"logits": outputs}
    return _arrays({"input_ids": ids, "token_type_ids": segments}, outputs)


def _family(text_model):
    names = set(layer_names(text_model.model))
    if {"target_embedding", "encoder", "decoder"} <= names:
        return translation_folder
    if "token_embedding" in names:
        return bert_folder
    if {"embedding", "positions", "decoder"} <= names:
        return gpt2_folder
    raise ConversionError(
        "Only translation(), bert() with its heads and gpt2() can be written for Hugging Face. "
        f"Received: {text_model.model!r}."
    )


def _first_table(model):
    names = layer_names(model)
    ours = ("source_embedding", "target_embedding", "token_embedding", "embedding")
    return model.get_layer(next(name for name in ours if name in names))


def _translation(text_model, draft):
    model, module = text_model.model, text_model.module
    encoder, names = model.get_layer("encoder"), layer_names(model)
    shared, dim = "source_embedding" not in names, model.get_layer("target_embedding").hidden_dim
    positions = model.get_layer("positions")
    paper = (positions.max_wavelength, positions.first_position) == (10000, 0)
    if not paper or "source_without_end" in names:
        raise ConversionError(
            "Hugging Face's Marian and Pegasus know the paper's positions only, and see the end."
        )
    if "output_projection" in names or (encoder.pre_norm and not shared):
        raise ConversionError(
            "A Pegasus, which normalises first, shares one vocabulary, and Marian and Pegasus tie "
            "the output projection to it. Received: a model that does not."
        )
    _check_blocks(encoder, 1e-5)
    arrays = arrays_of(_translation_rows(model, positions.interleaved))
    sizes = [module.source_tokenizer, module.target_tokenizer]
    tables = [_first_table(model), model.get_layer("target_embedding")]
    vocabularies = [_vocabulary(*pair) for pair in zip(sizes, tables, strict=True)]
    if "final_logits_bias" not in arrays:
        arrays["final_logits_bias"] = np.zeros((1, tables[1].vocabulary_size), "float32")
    module.source_tokenizer.save(draft / "source.spm")
    module.target_tokenizer.save(draft / "target.spm")
    for name, vocabulary in zip(
        ("vocab.json", "target_vocab.json")[: 2 - shared], vocabularies, strict=False
    ):
        _write_json(draft / name, vocabulary)
    longest = max(module.settings.max_source_length, module.settings.max_target_length) + 1
    _write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared,
        "source_lang": "", "target_lang": "", "model_max_length": longest,
        "pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>",
    })  # fmt: skip
    ids = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "bos_token_id": 2}
    _write_json(draft / "generation_config.json", ids | {
        "forced_eos_token_id": 3, "bad_words_ids": [[0], [2]], "max_length": longest,
        "num_beams": module.settings.num_beams, "length_penalty": module.settings.length_penalty,
    })  # fmt: skip
    kind, name = "marian", "MarianMTModel"
    if encoder.pre_norm:
        kind, name = "pegasus", "PegasusForConditionalGeneration"
    of_sides = {
        "layers": encoder.num_layers,
        "attention_heads": encoder.num_heads,
        "ffn_dim": encoder.intermediate_dim,
    }
    return {
        "model_type": kind,
        "architectures": [name],
        "vocab_size": tables[0].vocabulary_size,
        "decoder_vocab_size": tables[1].vocabulary_size,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": True,
        "d_model": dim,
        **{f"{s}_{name}": size for s in ("encoder", "decoder") for name, size in of_sides.items()},
        "dropout": encoder.dropout,
        "activation_function": _activation(encoder),
        "scale_embedding": bool(tables[0].scale),
        "max_position_embeddings": max(longest, 512),  # sines: any number will do
        "is_encoder_decoder": True,
        **ids,
    }, arrays  # fmt: skip


def _translation_rows(model, interleaved):
    """Marian's table, with the columns in the order of its positions: all sines come first."""
    dim = model.get_layer("target_embedding").hidden_dim
    order = np.arange(dim).reshape(dim // 2, 2).T.ravel() if interleaved else np.arange(dim)
    for row in marian.rows(model, _SameIds, _SameIds, with_final_norms=True):
        axes = _hidden_axes(row.names[0])
        yield row._replace(to_theirs=_permuted(row.to_theirs, order, axes))


def _hidden_axes(name):
    """The axes of an array of Marian that count the columns of the token vectors."""
    if name == "final_logits_bias":
        return []
    if "norm" in name:
        return [0]
    if ".out_proj." in name or ".fc2." in name:
        return [0]
    return [1] if name.endswith(".weight") else []


def _permuted(to_theirs, order, axes):
    def permuted(array):
        for axis in axes:
            array = np.take(array, order, axis)
        return to_theirs(array)

    return permuted


class _SameIds:
    """Ids as they are."""

    rows = rows_back = staticmethod(same)
    bias = staticmethod(lambda bias: bias[0])
    bias_back = staticmethod(lambda bias: bias[None])


def _gpt2(text_model, draft):
    model = text_model.model
    decoder, table = model.get_layer("decoder"), model.get_layer("embedding")
    positions = model.get_layer("positions")
    if not isinstance(positions, PositionEmbedding) or not decoder.pre_norm or table.scale:
        raise ConversionError(
            "Hugging Face's library gets language models of gpt2(), with learned positions, "
            f"normalised first, unscaled embeddings. Received: {model!r}."
        )
    _check_blocks(decoder)
    arrays = {f"transformer.{name}": a for name, a in arrays_of(gpt2.rows(model)).items()}
    tokenizer = text_model.tokenizer
    first = tokenizer.vocabulary_size - table.vocabulary_size
    end = getattr(tokenizer, "end_of_text_id", None)
    if not hasattr(tokenizer, "save_files"):
        raise ConversionError(
            "A GPT-2 of Hugging Face has byte pairs: --tokens pieces. Received: "
            f"{type(tokenizer).__name__}."
        )
    tokenizer.save_files(draft / "vocab.json", draft / "merges.txt")
    end = 3 if end is None else end
    ids = {"bos_token_id": end, "eos_token_id": end}
    _write_json(draft / "generation_config.json", ids)
    name = tokenizer.pieces([end + max(first, 0)])[0]
    _write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "model_max_length": positions.max_sequence_length,
        "unk_token": name, "bos_token": name, "eos_token": name,
    })  # fmt: skip
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": table.vocabulary_size,
        "n_positions": positions.max_sequence_length,
        "n_embd": table.hidden_dim,
        "n_layer": decoder.num_layers,
        "n_head": decoder.num_heads,
        "n_inner": decoder.intermediate_dim,
        "activation_function": _activation(decoder),
        "layer_norm_epsilon": decoder.norm_epsilon,
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.dropout,
        "attn_pdrop": decoder.attention_dropout,
        "tie_word_embeddings": True,
        **ids,
    }, arrays


def _bert(text_model, draft):
    model, names = text_model.model, layer_names(text_model.model)
    pooler = bert.pooler_of(model)
    encoder, table = model.get_layer("encoder"), model.get_layer("token_embedding")
    _check_blocks(encoder)
    if encoder.pre_norm or "pooling" in names or pooler != "tanh":
        raise ConversionError(
            "A BERT of Hugging Face normalises after its sub-layers and labels by [CLS]. Received: "
            f"pre_norm={encoder.pre_norm}, pooling={'pooling' in names}, pooler of {pooler}."
        )
    if "masked_token_dense" in names:
        activation = model.get_layer("masked_token_dense").activation
        if activation is not encoder.activation:
            raise ConversionError("A BERT of Hugging Face has one activation, in its head too.")
    head = next((name for layer, name in _BERT_HEADS.items() if layer in names), "BertModel")
    labels = {}
    if head == "BertForSequenceClassification" and len(model.output_shape) == 3:
        head = "BertForTokenClassification"
    if "head" in names:
        given = getattr(text_model, "labels", ()) or range(model.output_shape[-1])
        labels = {"id2label": {str(i): str(name) for i, name in enumerate(given)}}
        labels["label2id"] = {name: int(i) for i, name in labels["id2label"].items()}
    prefix = "" if head == "BertModel" else "bert."
    arrays = {
        name if name.startswith(("cls.", "classifier.")) else prefix + name: array
        for name, array in arrays_of(bert.rows(model)).items()
    }
    text_model.tokenizer.save(draft / "vocab.txt")
    positions = model.get_layer("positions").max_sequence_length
    cutter = {"tokenizer_class": "BertTokenizer", "model_max_length": positions}
    cutter["do_lower_case"] = text_model.tokenizer.lowercase
    _write_json(draft / "tokenizer_config.json", cutter)
    return {
        "model_type": "bert",
        "architectures": [head],
        "vocab_size": table.vocabulary_size,
        "hidden_size": table.hidden_dim,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.num_heads,
        "intermediate_size": encoder.intermediate_dim,
        "hidden_act": _activation(encoder),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "max_position_embeddings": positions,
        "type_vocab_size": 2,
        "layer_norm_eps": encoder.norm_epsilon,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        **labels,
    }, arrays


def _check_blocks(stack, epsilon=None):
    kernel, bias = stack.blocks[0].self_attention.output_projection
    square = kernel.shape[0] == kernel.shape[1]
    if stack.attention_pattern is not None or not square or bias is None or stack.lora:
        raise ConversionError(
            "Hugging Face's library gets dense attention with biases, heads that together are as "
            "wide as the model, and no unmerged LoRA. Received: "
            f"attention_pattern={stack.attention_pattern!r}, key_dim={stack.key_dim!r}, "
            f"use_bias={bias is not None}, lora={stack.lora!r}."
        )
    if epsilon not in (None, stack.norm_epsilon):
        raise ConversionError(
            f"norm_epsilon must be {epsilon} there. Received: {stack.norm_epsilon}."
        )


def _activation(stack):
    names = {
        keras.activations.relu: "relu",
        keras.activations.silu: "silu",
        keras.activations.gelu: "gelu",
        gelu_tanh: "gelu_new",
    }
    if stack.activation not in names:
        raise ConversionError(
            "The activation must be relu, silu, gelu or gelu_tanh. Received: "
            f"{keras.activations.serialize(stack.activation)}."
        )
    return names[stack.activation]


def _vocabulary(tokenizer, table):
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    pieces += [f"<unused{i}>" for i in range(len(pieces), table.vocabulary_size)]
    return {piece: index for index, piece in enumerate(pieces)}


def _arrays(inputs, outputs):
    named = {f"input.{name}": value for name, value in inputs.items()}
    convert = keras.ops.convert_to_numpy
    return named | {f"output.{name}": convert(value) for name, value in outputs.items()}
