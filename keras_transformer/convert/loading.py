"""Loads a folder with another library's model, of any family."""

from keras_transformer.convert import (
    bart,
    bert,
    gpt2,
    keras_hub,
    llama,
    m2m100,
    marian,
    opennmt,
    t5,
)
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.generation import KNOWN
from keras_transformer.convert.tables import ArrayError, ConversionError
from keras_transformer.models.bert_models import BertQuestionAnsweringModel

# What reads each `model_type` in config.json, a function from a `ModelFolder` to `Converted`.
# A config.json with a `class_name` is a KerasHub preset.
FAMILIES = {
    "bart": bart.read,
    "bert": bert.read,
    "distilbert": bert.read,
    "gpt2": gpt2.read,
    **dict.fromkeys(llama.NAMES, llama.read),
    "m2m_100": m2m100.read,
    "marian": marian.read,
    "mbart": bart.read,
    "mt5": t5.read,
    "roberta": bert.read,
    "t5": t5.read,
}
# Settings of Hugging Face's models, of any family, that change none of our numbers: of training,
# of heads that are not read, of how to compute. Those of the search are in generation.py.
HARMLESS = frozenset(
    "_attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures "
    "attn_implementation chunk_size_feed_forward cls_token_id directionality dtype finetuning_task "
    "gradient_checkpointing id2label initializer_factor initializer_range init_std label2id "
    "mask_token_id model_type n_ctx name_or_path num_labels output_attentions output_hidden_states "
    "output_past pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type problem_type qa_dropout reorder_and_upcast_attn return_dict "
    "sep_token_id sinusoidal_pos_embds summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj task_specific_params tf_legacy_loss "
    "tie_weights_ tie_word_embeddings torch_dtype torchscript transformers_version unk_token_id "
    "use_bfloat16 use_return_dict".split()
)
# Settings of every family that would change its numbers at any other value.
NEUTRAL = {
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
}


def read(path):
    """Reads a released model of any family.

    Args:
        path: path of a folder with config.json, *.safetensors (or pytorch_model.bin if torch is
            installed) and the tokenizer's files; of a KerasHub preset; or of an OpenNMT-tf run.

    Returns:
        `Converted`: model, tokenizer and settings.

    Raises:
        ConversionError: a ValueError, if the folder, one of its files, its family or one of its
            settings is not supported.
    """
    if opennmt.is_run(path):
        return opennmt.read(path)
    folder = ModelFolder(path)
    settings = folder.settings
    family = settings.raw("model_type")
    is_preset = family is None and settings.has("class_name")
    if family not in [*FAMILIES] and not is_preset:
        raise ConversionError(
            f"{settings.file} must have a model_type of {', '.join(sorted(FAMILIES))}, or be that "
            f"of a preset of KerasHub. Received: model_type={family!r:.80}."
        )
    settings.ignore(HARMLESS | KNOWN)
    try:
        settings.check(NEUTRAL)
        converted = (keras_hub.read if is_preset else FAMILIES[family])(folder)
        settings.warn_of_unread()
        return converted
    except ConversionError as error:
        # Those of weights and tokenizers do not know the folder.
        message = str(error)
        if isinstance(error, ArrayError):
            message = f"{folder.weights_file}, read by {settings.file.name}: {error}"
        elif str(path) not in message:
            message = f"{path}: {error}"
        raise ConversionError(message) from None


def load(path, source_language=None, target_language=None, source_prefix=None):
    """Loads a released model that works on texts.

    Args:
        path: path of a folder, as for `read`.
        source_language: for M2M100, NLLB and mBART-50, the language to translate from, e.g. "en",
            "eng_Latn" or "en_XX"; None for the one that the folder names.
        target_language: likewise the language to translate to.
        source_prefix: text before each source, such as "summarize: " for T5.

    Returns:
        A `serving.Translator`, `Generator`, `Classifier` or `Answerer`.

    Raises:
        ConversionError: as for `read`; or if the model does nothing with texts by itself, such as
            the backbone of BERT.
        ValueError: if a multilingual model does not know a language, or no language is given.
    """
    from keras_transformer import serving

    converted = read(path)
    model, tokenizer = converted.model, converted.tokenizer
    if converted.command == "translation":
        tokenizers = serving.in_languages(
            tokenizer,
            converted.target_tokenizer,
            converted.config,
            source_language=source_language,
            target_language=target_language,
            source_prefix=source_prefix,
        )
        return serving.Translator(model, *tokenizers, settings=converted.settings)
    if converted.command == "language_model":
        return serving.Generator(model, tokenizer, settings=converted.settings)
    if converted.command == "classification":
        labels, max_length = converted.labels, converted.config["max_length"]
        return serving.Classifier(model, tokenizer, labels, max_length, converted.multi_label)
    if isinstance(model, BertQuestionAnsweringModel):
        longest = min(384, model.positions.max_sequence_length)
        sizes = {"stride": min(128, longest // 3), "max_question_length": min(64, longest // 4)}
        return serving.Answerer(model, tokenizer, longest, **sizes)
    raise ConversionError(
        f"{path} holds a model that does nothing with texts by itself. Call `read`, which returns "
        "the model and its tokenizer."
    )
