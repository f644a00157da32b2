"""What `train.benchmark --part served` compares: a run's SavedModel, and the same in CTranslate2.

Both go from texts to texts with the run's tokenizer, beams and length penalty, and end a
translation where the model does, or at a limit: ours at twice the source, CTranslate2 at the run's.
Texts come in requests of a batch each, in the order of their file.
"""

import tempfile

import numpy as np

from .engines import Engine, import_keras


def texts_of(path):
    """The lines of a file that are not empty, at least one."""
    with open(path, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    if not texts:
        raise ValueError(f"--text must have a line that is not empty. Received: {path}")
    return texts


def ours_served(run, texts, workload):
    """The exported SavedModel, as `keras-transformer serve` answers with it."""
    tf, _ = import_keras(workload)
    tf.config.threading.set_intra_op_parallelism_threads(1)  # as `keras-transformer serve` does
    from keras_transformer.serving import Translator

    from ..serve.saved_model import SavedModel

    with tempfile.TemporaryDirectory() as folder:
        translator = Translator.load(run)
        path = translator.export(folder, "served", texts[:2])
        served = SavedModel("served", 1, path)

    def unit():
        for request in _requests(texts, workload.batch_size):
            request = {"text": np.array([text.encode() for text in request], object)}
            [answer] = served.run_merged("serving_default", [request])
            if isinstance(answer, Exception):
                raise answer
        return answer["translation"][0].decode()

    return Engine("keras_transformer, SavedModel", unit, translator.model.count_params())


def ctranslate2_served(run, texts, workload):
    """CTranslate2, whose threads translate parts of a batch, with SentencePiece's own package."""
    import ctranslate2

    from keras_transformer import convert
    from keras_transformer.serving import Translator

    translator = Translator.load(run)
    settings = translator.settings
    pieces = getattr(translator.tokenizer, "processor", None)
    if pieces is None:
        raise ValueError("CTranslate2 is measured with a plain SentencePiece tokenizer only.")
    parts = workload.parts
    with tempfile.TemporaryDirectory() as folder:
        path = convert.write(translator, "ctranslate2", f"{folder}/model", dtype=workload.dtype)
        engine = ctranslate2.Translator(
            str(path), inter_threads=parts, intra_threads=workload.threads // parts
        )

    def unit():
        for request in _requests(texts, workload.batch_size):
            results = engine.translate_batch(
                pieces.encode(request, out_type=str),
                max_batch_size=-(-len(request) // parts),
                beam_size=settings.search.num_beams,
                length_penalty=settings.search.scoring.length_penalty,
                max_decoding_length=settings.max_target_length,
            )
            answer = pieces.decode([result.hypotheses[0] for result in results])
        return answer[0]

    name = f"CTranslate2 {ctranslate2.__version__} {workload.dtype}"
    return Engine(name, unit, translator.model.count_params())


def _requests(texts, size):
    return [texts[start : start + size] for start in range(0, len(texts), size)]
