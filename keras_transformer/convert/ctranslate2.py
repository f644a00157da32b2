"""Translation and language models in the format of CTranslate2, an engine for CPUs and GPUs.

Source: https://opennmt.net/CTranslate2, through its own model specifications.
"""

import collections
import json

import keras
import numpy as np

from keras_transformer.convert.generation import power_penalty
from keras_transformer.convert.tables import ConversionError, require
from keras_transformer.layers.embedding import SinusoidalEncoding
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.functions import layer_names
from keras_transformer.ops.positions import sinusoidal_positions
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID

LIBRARIES = ("ctranslate2",)
# Finished hypotheses per beam before the engine stops. Our search stops when none can improve: of
# 200 texts with 5 beams, 180 had our translation with 1, 189 with 2 and 191 with 3.
PATIENCE = 2
DTYPES = ("float32", "int8", "int16", "bfloat16", "float16")
EXAMPLES = (
    *("A dog runs.", "It is ten past six.", "12,50 €", "x", "no", "She", "two men", "a red car"),
    *("in the park", "we are here", "Why?", "7:30", "the", "open door", "Good", "night"),
)


def write(text_model, draft, dtype="float32"):
    """Writes a model that `ctranslate2.Translator` or `ctranslate2.Generator` can load.

    The folder also gets the tokenizer, "tokenizer.model", and, if the target has a different one,
    "target_tokenizer.model".

    Args:
        text_model: a `serving.Translator` or `Generator`.
        draft: path of the folder.
        dtype: dtype of the weights: "float32", "int8", "int16", "bfloat16" or "float16".

    Raises:
        ConversionError: if ctranslate2 is not installed, or cannot hold the model.
    """
    if dtype not in DTYPES:
        raise ConversionError(f"dtype must be one of {', '.join(DTYPES)}. Received: {dtype!r}.")
    require("ctranslate2")
    from ctranslate2 import specs

    model = text_model.model
    names = set(layer_names(model))
    if {"target_embedding", "encoder", "decoder"} <= names:
        settings = text_model.settings
        tables = _tables(model)
        spec = translation_spec(
            model,
            _vocabulary(text_model.tokenizer, tables[0]),
            _vocabulary(text_model.target_tokenizer, tables[1]),
            max(settings.max_source_length, settings.max_target_length),
        )
    elif {"embedding", "positions", "decoder"} <= names:
        spec = _language_model(specs, text_model)
    else:
        raise ConversionError(
            "CTranslate2 supports models of translation(), language_model() and gpt2(). "
            f"Received: {model!r}."
        )
    save(spec, draft, dtype)
    text_model.tokenizer.save(draft / "tokenizer.model")
    target = text_model.target_tokenizer
    if target is not text_model.tokenizer:
        target.save(draft / "target_tokenizer.model")


def example(text_model, dtype="float32"):
    """Pieces of texts and their log-probabilities by our model, for the check of a folder."""
    tokenizer = text_model.tokenizer
    if hasattr(text_model, "n_best"):
        texts = list(EXAMPLES)
        target = text_model.target_tokenizer
        scores = text_model.score(texts, texts)
        pairs = [_pieces(tokenizer, texts), _pieces(target, texts)]
    else:
        texts = [text for text in EXAMPLES if len(_pieces(tokenizer, [text])[0]) > 1]
        pairs, scores = [_pieces(tokenizer, texts)], text_model.score(texts)
    return {"pieces": np.array(json.dumps(pairs)), "scores": scores, "dtype": np.array(dtype)}


class CTranslate2Engine:
    """Translates with CTranslate2, as closely to a `serving.Translator` as it can search.

    Its scores are divided by n ** exponent. With scoring="gnmt" the exponent is the one with which
    this grows as ((5 + n) / 6) ** length_penalty does at the length of the source, and texts of
    equal limits are translated together. A translation that reaches its limit is scored without an
    end. `differences` tells what else the engine does in its own way.

    Args:
        folder: a folder made by `write`.
        translator: the `serving.Translator` whose tokenizers and settings to use.
        threads: number of threads of the engine for each batch.
    """

    def __init__(self, folder, translator, threads=0):
        import ctranslate2

        self._engine = ctranslate2.Translator(str(folder), device="cpu", intra_threads=threads)
        self._source, self._target = translator.tokenizer, translator.target_tokenizer
        self.settings = translator.settings
        self._target_pieces = _all_pieces(self._target)
        self._first = _pieces(self._target, [""])[0]  # a language, or nothing

    def differences(self):
        """What the engine does otherwise than the settings say, in words; "" for nothing."""
        settings, rules = self.settings, self.settings.token_rules
        found = []
        if settings.num_beams > 1:
            found.append("its own end of the search")
            if settings.scoring == "gnmt" and settings.length_penalty:
                found.append("a length penalty n ** exponent close to the run's")
        if not rules.forces_end:
            found.append("translations that are always complete")
        if rules.begin_suppress_tokens:
            found.append("no begin_suppress_tokens")
        return ", ".join(found)

    def answer(self, texts):
        """The translations, a list of strings, and whether each text was truncated."""
        import tensorflow as tf

        room, empty = self.settings.max_source_length - 1, len(_pieces(self._source, [""])[0])
        rows = _pieces(self._source, texts)
        groups = collections.defaultdict(list)
        for index, row in enumerate(rows):
            if len(row) > empty:
                groups[self._search_of(min(len(row), room) + 1)].append(index)
        ids = {piece: i for i, piece in enumerate(self._target_pieces)}
        written = [[] for _ in rows]
        for search, indices in groups.items():
            found = self._translate([rows[index][:room] for index in indices], dict(search))
            for index, pieces in zip(indices, found, strict=True):
                written[index] = [ids.get(piece, 0) for piece in pieces]
        joined = self._target.detokenize(tf.ragged.constant(written, tf.int32, ragged_rank=1))
        return [text.decode() for text in joined.numpy()], [len(row) > room for row in rows]

    def _search_of(self, length):
        """The options of the search for sources of a length in tokens, end token included."""
        settings, limit = self.settings, self.settings.max_target_length
        if settings.scoring == "gnmt":
            limit = min(max(2 * length + 8, settings.token_rules.min_length), limit)
        penalty = power_penalty(settings, length)
        return ("max_decoding_length", limit - 1), ("length_penalty", penalty)

    def _translate(self, rows, search):
        """The pieces of the best translation of each row."""
        rules, pieces, first = self.settings.token_rules, self._target_pieces, self._first
        if rules.forced_bos_token_id is not None:
            first = first or [pieces[rules.forced_bos_token_id]]
        never = [[PAD_ID], [START_ID], *rules.bad_words_ids, *([i] for i in rules.suppress_tokens)]
        found = self._engine.translate_batch(
            rows,
            target_prefix=[first] * len(rows) if first else None,
            beam_size=self.settings.num_beams,
            patience=1 if self.settings.scoring == "huggingface_early_stopping" else PATIENCE,
            no_repeat_ngram_size=rules.no_repeat_ngram_size,
            repetition_penalty=rules.repetition_penalty,
            min_decoding_length=max(0, rules.min_length - 1),
            suppress_sequences=[[pieces[i] for i in word] for word in never if word != (END_ID,)],
            max_batch_size=2048,
            batch_type="tokens",
            **search,
        )
        return [result.hypotheses[0] for result in found]


def translation_spec(model, source_pieces, target_pieces, max_length):
    """CTranslate2's specification of a model of translation().

    Args:
        model: a model with float32 weights.
        source_pieces: a name for each id of the source.
        target_pieces: a name for each id of the target.
        max_length: longest sequence in tokens, if positions are not learned.

    Raises:
        ConversionError: if CTranslate2 does not support the model.
    """
    from ctranslate2 import specs

    encoder, decoder = model.get_layer("encoder"), model.get_layer("decoder")
    _check(encoder)
    _check(decoder)
    spec = specs.TransformerSpec.from_config(
        (encoder.num_layers, decoder.num_layers),
        encoder.num_heads,
        pre_norm=encoder.pre_norm,
        activation=_activation(specs, encoder),
    )
    names = layer_names(model)
    source, target = _tables(model)
    _fill_side(spec.encoder, spec.encoder.embeddings[0], source, model, encoder, max_length)
    _fill_side(spec.decoder, spec.decoder.embeddings, target, model, decoder, max_length)
    own = "output_projection" if "output_projection" in names else "target_embedding"
    spec.decoder.projection.weight = _array(model.get_layer(own).embeddings)
    if "output_bias" in names:
        spec.decoder.projection.bias = _array(model.get_layer("output_bias").bias)
    spec.config.add_source_bos = False
    spec.config.add_source_eos = "source_without_end" not in names
    spec.config.decoder_start_token = target_pieces[START_ID]
    spec.config.layer_norm_epsilon = encoder.norm_epsilon
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    return spec


def save(spec, folder, dtype="float32"):
    """Writes a specification to a folder, with its weights in a dtype."""
    spec.validate()
    spec.optimize(quantization=None if dtype == "float32" else dtype)
    spec.save(str(folder))


def _tables(model):
    """The embeddings of the source and of the target."""
    target = model.get_layer("target_embedding")
    shared = "source_embedding" not in layer_names(model)
    return (target if shared else model.get_layer("source_embedding")), target


def _language_model(specs, text_model):
    model = text_model.model
    decoder, table = model.get_layer("decoder"), model.get_layer("embedding")
    _check(decoder)
    spec = specs.TransformerDecoderModelSpec.from_config(
        decoder.num_layers,
        decoder.num_heads,
        pre_norm=decoder.pre_norm,
        activation=_activation(specs, decoder),
    )
    context = getattr(text_model.settings, "context", 0)
    _fill_side(spec.decoder, spec.decoder.embeddings, table, model, decoder, context)
    spec.decoder.projection.weight = _array(table.embeddings)
    spec.config.layer_norm_epsilon = decoder.norm_epsilon
    pieces = _vocabulary(text_model.tokenizer, table)
    spec.config.unk_token = pieces[1]
    spec.config.bos_token = pieces[2]
    end = getattr(text_model.tokenizer, "end_of_text_id", None)
    spec.config.eos_token = pieces[3 if end is None else end]
    spec.register_vocabulary(pieces)
    return spec


def _fill_side(spec, embeddings, table, model, stack, max_length):
    embeddings.weight = _array(table.embeddings)
    spec.scale_embeddings = bool(table.scale)
    positions = model.get_layer("positions")
    if isinstance(positions, SinusoidalEncoding):
        encodings = sinusoidal_positions(
            max_length + 1,
            table.hidden_dim,
            positions.first_position,
            positions.max_wavelength,
            positions.interleaved,
        )
    else:
        encodings = positions.embeddings
    spec.position_encodings.encodings = _array(encodings)
    if stack.norm is not None:
        _fill_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        own = block.self_attention
        _fill_linear(layer.self_attention.linear[0], own.query_key_value)
        _fill_linear(layer.self_attention.linear[1], own.output_projection)
        _fill_norm(layer.self_attention.layer_norm, block.around_self_attention.norm)
        if getattr(block, "cross_attention", None) is not None:
            cross = block.cross_attention
            parts = cross.query, cross.key_value, cross.output_projection
            for linear, projection in zip(layer.attention.linear, parts, strict=True):
                _fill_linear(linear, projection)
            _fill_norm(layer.attention.layer_norm, block.around_cross_attention.norm)
        _fill_linear(layer.ffn.linear_0, block.feed_forward.widen)
        _fill_linear(layer.ffn.linear_1, block.feed_forward.narrow)
        _fill_norm(layer.ffn.layer_norm, block.around_feed_forward.norm)


def _fill_linear(linear, projection):
    kernel, bias = projection
    linear.weight = _array(kernel)
    if bias is not None:
        linear.bias = _array(bias)


def _fill_norm(spec, norm):
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _array(tensor):
    return np.ascontiguousarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def _activation(specs, stack):
    kinds = {
        keras.activations.relu: specs.common_spec.Activation.RELU,
        keras.activations.silu: specs.common_spec.Activation.SWISH,
        keras.activations.gelu: specs.common_spec.Activation.GELU,
        gelu_tanh: specs.common_spec.Activation.GELUTanh,
    }
    if stack.activation not in kinds:
        raise ConversionError(
            "CTranslate2 supports the activations relu, silu, gelu and gelu_tanh. Received: "
            f"{keras.activations.serialize(stack.activation)}."
        )
    return kinds[stack.activation]


def _check(stack):
    kernel, _ = stack.blocks[0].self_attention.output_projection
    if stack.attention_pattern is not None or kernel.shape[0] != kernel.shape[1]:
        raise ConversionError(
            "CTranslate2 supports dense attention whose heads together are as wide as the model. "
            f"Received: attention_pattern={stack.attention_pattern!r}, key_dim={stack.key_dim!r}."
        )
    if stack.lora:
        raise ConversionError("The model has LoRA. Call merge_lora(model) first.")


def _vocabulary(tokenizer, table):
    """A name for each row of a table, those of the tokenizer first."""
    pieces = _all_pieces(tokenizer)
    first = tokenizer.vocabulary_size - table.vocabulary_size  # of a GPT-2 without control ids
    pieces = pieces[max(0, first) :]
    return [*pieces, *(f"<unused{i}>" for i in range(len(pieces), table.vocabulary_size))]


def _all_pieces(tokenizer):
    return tokenizer.pieces(range(tokenizer.vocabulary_size))


def _pieces(tokenizer, texts):
    return [tokenizer.pieces(row) for row in tokenizer.tokenize(list(texts)).to_list()]
