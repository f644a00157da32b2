"""What `train.benchmark` compares in decoding: our exported SavedModel and CTranslate2.

All decode random sources with random weights, NUM_BEAMS beams, and exactly OUTPUT_TOKENS
tokens a sentence: the model may not end it earlier.
"""

import functools
import tempfile

import numpy as np

from train.benchmark.engines import DIMENSIONS, FIRST_WORD_ID, Engine, import_keras

NUM_BEAMS, SOURCE_TOKENS, OUTPUT_TOKENS = 4, 25, 50


def ours_decoding(workload):
    """Our encoder, cache and beam search from token ids to token ids, saved and loaded again."""
    tf, keras = import_keras(workload)
    with tempfile.TemporaryDirectory() as directory:
        num_parameters = _write_our_model(workload, directory)
        keras.backend.clear_session()
        loaded = tf.saved_model.load(directory)
    source_ids = tf.constant(sources(workload))

    def unit():
        found = loaded.signatures["serving_default"](source_ids=source_ids)
        return np.unique(found["lengths"]).tolist()

    return Engine(f"keras_transformer {workload.dtype}", unit, num_parameters)


def ctranslate2_decoding(workload):
    """CTranslate2 with random weights: an OpenNMT-like model written and loaded again."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as directory:
        num_parameters = _write_ctranslate2_model(workload.size, directory)
        translator = ctranslate2.Translator(
            directory,
            device="cuda" if workload.device == "gpu" else "cpu",
            compute_type=workload.dtype,
            inter_threads=1,
            intra_threads=workload.threads,
        )
    rows = [[f"t{token}" for token in row] for row in sources(workload)]

    def unit():
        results = translator.translate_batch(
            rows,
            beam_size=NUM_BEAMS,
            min_decoding_length=OUTPUT_TOKENS,
            max_decoding_length=OUTPUT_TOKENS,
        )
        return sorted({len(result.hypotheses[0]) for result in results})

    return Engine(f"CTranslate2 {ctranslate2.__version__} {workload.dtype}", unit, num_parameters)


def sources(workload):
    """Random source ids, (batch, SOURCE_TOKENS)."""
    shape = (workload.batch_size, SOURCE_TOKENS)
    rng = np.random.default_rng(0)
    return rng.integers(FIRST_WORD_ID, workload.size.vocabulary_size, shape).astype("int32")


def _write_our_model(workload, directory):
    """Writes the SavedModel and returns its number of parameters."""
    import tensorflow as tf

    from keras_transformer.decoding.search import beam_search
    from keras_transformer.models.encoder_decoder import encode, start_cache, step, translation
    from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID

    dimensions = {name: getattr(workload.size, name) for name in DIMENSIONS}
    model = translation(workload.size.vocabulary_size, dtype=workload.dtype, **dimensions)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "source_ids")])
    def decode(source_ids):
        encoded = encode(model, source_ids)
        found = beam_search(
            functools.partial(step, model, encoded),
            start_cache(model, encoded, NUM_BEAMS),
            num_beams=NUM_BEAMS,
            limits=tf.fill(tf.shape(source_ids)[:1], OUTPUT_TOKENS),
            start_id=START_ID,
            end_id=END_ID,
            # No end before the limit, where the search puts one whatever is forbidden.
            forbidden_ids=(PAD_ID, START_ID, END_ID),
        )
        return {"token_ids": found.token_ids, "lengths": found.lengths}

    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]  # raw, as when served
    module.decode = decode
    tf.saved_model.save(module, directory, {"serving_default": decode})
    return model.count_params()


def _write_ctranslate2_model(size, directory):
    from ctranslate2.specs import TransformerSpec

    rng, dim = np.random.default_rng(0), size.hidden_dim
    weights = []

    def random(*shape):
        weights.append(rng.standard_normal(shape, dtype="float32") * np.float32(dim**-0.5))
        return weights[-1]

    def fill(linear, columns, rows):
        linear.weight, linear.bias = random(rows, columns), random(rows)

    def fill_norm(norm):
        norm.gamma, norm.beta = np.ones(dim, "float32"), np.zeros(dim, "float32")
        weights.extend([norm.gamma, norm.beta])

    spec = TransformerSpec.from_config(size.num_layers, size.num_heads, pre_norm=True)
    table = random(size.vocabulary_size, dim)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    fill_norm(spec.encoder.layer_norm)
    fill_norm(spec.decoder.layer_norm)
    for layer in [*spec.encoder.layer, *spec.decoder.layer]:
        attentions = [(layer.self_attention, [3 * dim, dim])]  # queries, keys and values in one
        if hasattr(layer, "attention"):
            attentions.append((layer.attention, [dim, 2 * dim, dim]))
        for attention, widths in attentions:
            fill_norm(attention.layer_norm)
            for linear, rows in zip(attention.linear, widths, strict=True):
                fill(linear, dim, rows)
        fill_norm(layer.ffn.layer_norm)
        fill(layer.ffn.linear_0, dim, size.intermediate_dim)
        fill(layer.ffn.linear_1, size.intermediate_dim, dim)
    words = ["<blank>", "<unk>", "<s>", "</s>"]
    words += [f"t{token}" for token in range(FIRST_WORD_ID, size.vocabulary_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize()
    spec.save(directory)
    return sum(weight.size for weight in weights)
