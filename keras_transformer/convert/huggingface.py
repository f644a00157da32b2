"""Our models as folders of Hugging Face's library: Marian, BART, T5, BERT, GPT-2, Llama, ..."""

from keras_transformer.convert import bart, bert, gpt2, llama, marian, t5
from keras_transformer.convert.blocks import is_t5
from keras_transformer.convert.examples import answers, drawn_inputs, texts_and_ids
from keras_transformer.convert.folder import write_json
from keras_transformer.convert.graphs import warn_of_prefix
from keras_transformer.convert.tables import ConversionError
from keras_transformer.layers.positions import PositionEmbedding
from keras_transformer.models.bert_models import BertModel, BertQuestionAnsweringModel
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.encoder_decoder import TranslationModel

# What their library calls the inputs and outputs of our models.
INPUTS = {
    "source_ids": "input_ids",
    "target_ids": "decoder_input_ids",
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
}
OUTPUTS = {
    "logits": "logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
    "vectors": "last_hidden_state",
    "pooled": "pooler_output",
    "masked_tokens": "prediction_logits",
    "next_sentence": "seq_relationship_logits",
}


def write(text_model, draft):
    """Writes config.json, model.safetensors and the files of the tokenizer.

    The backbone of BERT may come from anything with `model` and `tokenizer`, such as `Converted`. A
    model of `bert_pretraining` becomes a BertForPreTraining with both of its heads.
    """
    from safetensors.numpy import save_file

    config, arrays = _family(text_model.model).hugging_face_folder(text_model, draft)
    usual = {"dtype": "float32", "transformers_version": "4.57.0"}
    write_json(draft / "config.json", usual | config)
    save_file(arrays, draft / "model.safetensors", {"format": "pt"})
    warn_of_prefix(text_model.tokenizer)


def example(text_model):
    """Texts with their ids, and ids with our model's answers, for the check of a folder."""
    inputs = drawn_inputs(text_model.model)
    outputs = answers(text_model.model, inputs)
    if isinstance(text_model.model, BertQuestionAnsweringModel):
        logits = outputs.pop("logits")
        outputs = {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}
    tokenizer, their_id_of = text_model.tokenizer, None
    if getattr(tokenizer, "prefix", ""):
        tokenizer = tokenizer.with_prefix("")
    if _family(text_model.model) is bart:
        order = bart.written_order(text_model)
        their_id_of = order.their_id_of
        inputs = {name: their_id_of[ids].astype("int32") for name, ids in inputs.items()}
        outputs["logits"] = outputs["logits"][..., order.text_id_of]
    arrays = {
        **texts_and_ids(tokenizer, their_id_of),
        **{f"input.{INPUTS[name]}": inputs[name] for name in inputs if name in INPUTS},
        **{f"output.{OUTPUTS[name]}": array for name, array in outputs.items()},
    }
    family = _family(text_model.model)
    return t5.in_their_order(arrays, text_model.model) if family is t5 else arrays


def _family(model):
    if isinstance(model, LanguageModel) and model.decoder.normalization == "rms":
        return llama
    has_table = isinstance(getattr(model, "positions", None), PositionEmbedding)
    if isinstance(model, TranslationModel) and (has_table or model.embedding_norm is not None):
        return bart
    for model_class, family in (
        (TranslationModel, marian), (BertModel, bert), (LanguageModel, gpt2)
    ):  # fmt: skip
        if isinstance(model, model_class):
            return t5 if family is marian and is_t5(model) else family
    raise ConversionError(
        "Only translation(), bert() with its heads and gpt2() can be written for Hugging Face. "
        f"Received: {model!r}."
    )
