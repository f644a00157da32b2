"""Our BERT, with the head that it has, as that of Hugging Face's library."""

from keras_transformer.convert import bert
from keras_transformer.convert.huggingface_parts import activation_name, check_blocks, write_json
from keras_transformer.convert.tables import ConversionError, arrays_of
from keras_transformer.models.functions import layer_names

_BERT_HEADS = {"head": "BertForSequenceClassification", "masked_token_dense": "BertForPreTraining"}


def bert_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a BERT."""
    model, names = text_model.model, layer_names(text_model.model)
    encoder, table = model.get_layer("encoder"), model.get_layer("token_embedding")
    check_blocks(encoder)
    bert.check_word_pieces(text_model)
    pooler = bert.pooler_of(model)
    if encoder.pre_norm or "pooling" in names or pooler != "tanh":
        raise ConversionError(
            "A BERT of Hugging Face is post-norm and classifies by [CLS], with a tanh pooler. "
            f"Received: pre_norm={encoder.pre_norm}, pooling={'pooling' in names}, pooler={pooler}."
        )
    if "masked_token_dense" in names:
        activation = model.get_layer("masked_token_dense").activation
        if activation is not encoder.activation:
            raise ConversionError(
                "A BERT of Hugging Face has the same activation in its head as in its blocks. "
                f"Received: {getattr(activation, '__name__', activation)}."
            )
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
    write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "BertTokenizer", "do_lower_case": text_model.tokenizer.lowercase,
        "model_max_length": positions,
    })  # fmt: skip
    return {
        "model_type": "bert",
        "architectures": [head],
        "vocab_size": table.vocabulary_size,
        "hidden_size": table.hidden_dim,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.num_heads,
        "intermediate_size": encoder.intermediate_dim,
        "hidden_act": activation_name(encoder),
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "max_position_embeddings": positions,
        "type_vocab_size": 2,
        "layer_norm_eps": encoder.norm_epsilon,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        **labels,
    }, arrays
