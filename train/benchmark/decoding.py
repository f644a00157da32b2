"""What `train.benchmark` compares in decoding: our exported SavedModel and CTranslate2.

All decode random sources with random weights, NUM_BEAMS beams, and exactly OUTPUT_TOKENS tokens per
sentence, because the model may not end a sentence earlier.
"""

import concurrent.futures
import functools
import tempfile

import numpy as np

from .engines import FIRST_WORD_ID, Engine, import_keras

NUM_BEAMS, SOURCE_TOKENS, OUTPUT_TOKENS = 4, 25, 50
START_ID, END_ID = 2, 3


def ours_decoding(workload):
    """Our encoder, cache and beam search from token ids to token ids, saved and loaded again."""
    tf, keras = import_keras(workload, decoding=True)
    with tempfile.TemporaryDirectory() as directory:
        num_parameters = _write_our_model(workload, directory)
        keras.backend.clear_session()
        loaded = tf.saved_model.load(directory)
    parts = [tf.constant(part) for part in np.array_split(sources(workload), workload.parts)]
    pool = concurrent.futures.ThreadPoolExecutor(workload.parts)

    def lengths(source_ids):
        return loaded.signatures["serving_default"](source_ids=source_ids)["lengths"].numpy()

    def unit():
        return np.unique(np.concatenate(list(pool.map(lengths, parts)))).tolist()

    return Engine(f"keras_transformer {workload.dtype}", unit, num_parameters)


def ctranslate2_decoding(workload):
    """CTranslate2 with the same model, written in its format and loaded again."""
    import ctranslate2

    on_gpu, parts = workload.device == "gpu", workload.parts
    with tempfile.TemporaryDirectory() as directory:
        num_parameters = _write_ctranslate2_model(workload, directory)
        translator = ctranslate2.Translator(
            directory,
            device="cuda" if on_gpu else "cpu",
            compute_type=workload.dtype,
            inter_threads=parts,
            intra_threads=workload.threads // parts,
        )
    rows = [[f"t{token}" for token in row] for row in sources(workload)]

    def unit():
        results = translator.translate_batch(
            rows,
            max_batch_size=-(-workload.batch_size // parts),
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


def our_model(size, dtype):
    from keras_transformer.models.encoder_decoder import translation

    return translation(size.vocabulary_size, dtype=dtype, **size.dimensions)


def _write_our_model(workload, directory):
    """Writes the SavedModel and returns its number of parameters."""
    import tensorflow as tf

    from keras_transformer.decoding import BeamSearch
    from keras_transformer.ops.projection import with_columns
    from keras_transformer.serving.served_model import raw, transposed_kernels

    model = our_model(workload.size, workload.dtype)
    columns = transposed_kernels(model)  # as when served

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "source_ids")])
    @with_columns(columns)
    def decode(source_ids):
        encoded = model.encode(source_ids)
        hypotheses = BeamSearch(NUM_BEAMS)(
            functools.partial(model.step, encoded),
            model.start_cache(encoded, NUM_BEAMS),
            limits=tf.fill(tf.shape(source_ids)[:1], OUTPUT_TOKENS),
            start_id=START_ID,
            end_id=END_ID,
            # No end before the limit, where the search puts one whatever is forbidden.
            forbidden_ids=(0, START_ID, END_ID),
        )
        return {"token_ids": hypotheses.token_ids, "lengths": hypotheses.lengths}

    module = tf.Module()
    module.weights = [columns.get(id(weight), raw(weight)) for weight in model.variables]
    module.decode = decode
    tf.saved_model.save(module, directory, {"serving_default": decode})
    return model.count_params()


def _write_ctranslate2_model(workload, directory):
    """Writes our model, by `convert`, and returns its number of parameters."""
    import keras

    from keras_transformer import convert

    keras.utils.set_random_seed(0)
    model = our_model(workload.size, "float32")
    words = ["<blank>", "<unk>", "<s>", "</s>"]
    words += [f"t{token}" for token in range(FIRST_WORD_ID, workload.size.vocabulary_size)]
    spec = convert.ctranslate2.translation_spec(model, words, words, OUTPUT_TOKENS)
    convert.ctranslate2.save(spec, directory)
    return model.count_params()
