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


def _arrays(inputs, outputs):
    named = {f"input.{name}": value for name, value in inputs.items()}
    convert = keras.ops.convert_to_numpy
    return named | {f"output.{name}": convert(value) for name, value in outputs.items()}
