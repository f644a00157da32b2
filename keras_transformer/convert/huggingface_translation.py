"""Our translation models as Marian and Pegasus of Hugging Face's library."""

import logging

import numpy as np

from keras_transformer.convert import marian
from keras_transformer.convert.generation import GENERATION, written_search
from keras_transformer.convert.huggingface_parts import (
    activation_name,
    check_blocks,
    first_table,
    write_json,
)
from keras_transformer.convert.tables import ConversionError, arrays_of, same
from keras_transformer.models.functions import layer_names


def translation_folder(text_model, draft):
    """Writes the tokenizers, and returns the config and the arrays of a translation model."""
    model, settings = text_model.model, text_model.settings
    shared = "source_embedding" not in layer_names(model)
    _check(model, shared)
    encoder, tables = model.get_layer("encoder"), [first_table(model)]
    tables.append(model.get_layer("target_embedding"))
    longest = max(settings.max_source_length, settings.max_target_length) + 1
    _save_tokenizers(text_model, tables, shared, longest, draft)
    ids = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "bos_token_id": 2}
    search = written_search(settings)
    write_json(draft / GENERATION, ids | search)
    if settings.scoring == "gnmt" and settings.num_beams > 1:
        logging.getLogger(__name__).warning(
            "Hugging Face's search divides scores by n ** %.3g here, which grows as the run's "
            "penalty does at 20 tokens, and it has no limit of twice the source: some translations "
            "will differ.",
            search["length_penalty"],
        )
    arrays = arrays_of(_translation_rows(model, model.get_layer("positions").interleaved))
    if "final_logits_bias" not in arrays:
        arrays["final_logits_bias"] = np.zeros((1, tables[1].vocabulary_size), "float32")
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
        "d_model": tables[1].hidden_dim,
        **{f"{s}_{name}": size for s in ("encoder", "decoder") for name, size in of_sides.items()},
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "activation_dropout": encoder.activation_dropout,
        "activation_function": activation_name(encoder),
        "scale_embedding": bool(tables[0].scale),
        "max_position_embeddings": max(longest, 512),  # sines: any number will do
        "is_encoder_decoder": True,
        **ids,
    }, arrays  # fmt: skip


def _check(model, shared):
    """Raises ConversionError if neither Marian nor Pegasus is such a model."""
    encoder, positions = model.get_layer("encoder"), model.get_layer("positions")
    names = layer_names(model)
    sees_end = "source_without_end" not in names
    given = positions.max_wavelength, positions.first_position
    if given != (10000, 0) or not sees_end:
        raise ConversionError(
            "Hugging Face's Marian and Pegasus have the paper's positions and see the end token. "
            f"Received: max_wavelength={given[0]}, first_position={given[1]}, and an encoder that "
            f"{'sees' if sees_end else 'does not see'} it."
        )
    has_projection = "output_projection" in names
    if has_projection or (encoder.pre_norm and not shared):
        raise ConversionError(
            "A Pegasus (pre-norm) shares one vocabulary, and Marian and Pegasus tie the output "
            f"projection to it. Received: pre_norm={encoder.pre_norm}, "
            f"{'one vocabulary' if shared else 'two vocabularies'}, "
            f"tie_output={not has_projection}."
        )
    check_blocks(encoder, 1e-5)


def _save_tokenizers(text_model, tables, shared, longest, draft):
    """Writes both tokenizers and the pieces of the tables as Marian's tokenizer reads them."""
    tokenizers = [text_model.tokenizer, text_model.target_tokenizer]
    vocabularies = [_vocabulary(*pair) for pair in zip(tokenizers, tables, strict=True)]
    for name, tokenizer in zip(("source.spm", "target.spm"), tokenizers, strict=True):
        tokenizer.save(draft / name)
    write_json(draft / "vocab.json", vocabularies[0])
    if not shared:
        write_json(draft / "target_vocab.json", vocabularies[1])
    write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared,
        "source_lang": "", "target_lang": "", "model_max_length": longest,
        "pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>",
    })  # fmt: skip


def _translation_rows(model, interleaved):
    """Marian's table, with the columns in the order of Marian's positions, all sines first."""
    dim = model.get_layer("target_embedding").hidden_dim
    order = np.arange(dim).reshape(dim // 2, 2).T.ravel() if interleaved else np.arange(dim)
    for row in marian.rows(model, _SameIds, _SameIds, with_final_norms=True):
        axes = _hidden_axes(row.names[0])
        yield row._replace(to_theirs=_permuted(row.to_theirs, order, axes))


def _hidden_axes(name):
    """The axes of one of Marian's arrays that run over the columns of the token vectors."""
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
    """Ids without a change."""

    rows = rows_back = staticmethod(same)
    bias = staticmethod(lambda bias: bias[0])
    bias_back = staticmethod(lambda bias: bias[None])


def _vocabulary(tokenizer, table):
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    pieces += [f"<unused{i}>" for i in range(len(pieces), table.vocabulary_size)]
    return {piece: index for index, piece in enumerate(pieces)}
