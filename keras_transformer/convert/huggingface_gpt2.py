"""Our language models as GPT-2 of Hugging Face's library."""

from keras_transformer.convert import gpt2
from keras_transformer.convert.generation import GENERATION, written_sampling
from keras_transformer.convert.huggingface_parts import activation_name, check_blocks, write_json
from keras_transformer.convert.tables import ConversionError, arrays_of
from keras_transformer.layers.embedding import PositionEmbedding


def gpt2_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a language model."""
    model = text_model.model
    decoder, table = model.get_layer("decoder"), model.get_layer("embedding")
    positions = model.get_layer("positions")
    if not isinstance(positions, PositionEmbedding) or not decoder.pre_norm or table.scale:
        raise ConversionError(
            "Of language models only gpt2() can be written: learned positions, pre-norm, unscaled "
            f"embeddings. Received: {model!r}."
        )
    check_blocks(decoder)
    arrays = {f"transformer.{name}": a for name, a in arrays_of(gpt2.rows(model)).items()}
    tokenizer = text_model.tokenizer
    first = tokenizer.vocabulary_size - table.vocabulary_size
    end = getattr(tokenizer, "end_of_text_id", None)
    if not hasattr(tokenizer, "save_files"):
        raise ConversionError(
            "A GPT-2 of Hugging Face needs byte pairs: --tokens pieces. Received: "
            f"{type(tokenizer).__name__}."
        )
    tokenizer.save_files(draft / "vocab.json", draft / "merges.txt")
    end = 3 if end is None else end
    ids = {"bos_token_id": end, "eos_token_id": end}
    sampling = written_sampling(text_model.settings, max(first, 0), end)
    write_json(draft / GENERATION, ids | sampling)
    name = tokenizer.pieces([end + max(first, 0)])[0]
    write_json(draft / "tokenizer_config.json", {
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
        "activation_function": activation_name(decoder),
        "layer_norm_epsilon": decoder.norm_epsilon,
        "resid_pdrop": decoder.dropout,
        "embd_pdrop": decoder.dropout,
        "attn_pdrop": decoder.attention_dropout,
        "tie_word_embeddings": True,
        **ids,
    }, arrays
