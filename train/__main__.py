"""Trains a translator on an embedded corpus, evaluates it, draws pictures, exports and queries it.

    keras-transformer demo

It needs no network and takes a few minutes on two cores. Everything goes into runs/demo and
saved_models/demo; a second call finds the trained run and publishes the next version.
"""

import json
import time

from .command import STOPPED_TRAINING, one_line_errors, start_tensorflow
from .deferred import Deferred, kt
from .gpus import warn_of_idle_gpus
from .settings import Parser
from .text_scores import report
from .translation import TranslationConfig, TranslationExperiment, translations_of

corpus = Deferred(f"{__package__}.demo.corpus")
c_api = Deferred("keras_transformer.serving.publishing.c_api")
loop = Deferred(f"{__package__}.loop")
pictures = Deferred(f"{__package__}.pictures")
runs = Deferred(f"{__package__}.run")

NUM_TRAIN, NUM_HELD_OUT = 30_000, 500
SHOWN = 5  # translations


def run_demo(run_path, directory):
    start_tensorflow("keras-transformer demo")
    warn_of_idle_gpus()
    start = time.perf_counter()
    config = TranslationConfig.load("demo")
    pairs = corpus.demo_corpus(NUM_TRAIN + NUM_HELD_OUT, config.seed)
    train_text = kt.data.ParallelText(pairs.sources[:NUM_TRAIN], pairs.targets[:NUM_TRAIN])
    held_out = kt.data.ParallelText(pairs.sources[NUM_TRAIN:], pairs.targets[NUM_TRAIN:])
    run = runs.Run(run_path, TranslationConfig)
    if run.exists():
        config = TranslationExperiment.completed(config, run.config())
    loop.train_run(run, TranslationExperiment(config, (train_text, held_out)))

    translator = kt.serving.Translator.load(run.path)
    translations, _ = translations_of(translator, held_out.sources)
    print(report("bleu", translations, held_out.targets))
    exact = sum(t == r for t, r in zip(translations, held_out.targets, strict=True))
    print(f"Exact match on {len(translations)} held-out sentences: {exact / len(translations):.1%}")
    for source, translation in list(zip(held_out.sources, translations, strict=True))[:SHOWN]:
        print(f"  {source}\n    {translation}")

    for path in pictures.save_pictures(
        run, translator.attention(held_out.sources[0], translations[0])
    ):
        print(f"Picture: {path}")
    version = translator.export(directory, "demo", examples=held_out.sources[:3])
    print(f"Published {version}. One request, answered as TensorFlow Serving would:")
    request = {"signature_name": "serving_default", "inputs": {"text": held_out.sources[:1]}}
    print(json.dumps(request, ensure_ascii=False))
    print(json.dumps(c_api.ask(version, [request])[0], ensure_ascii=False))
    print(f"The demo took {(time.perf_counter() - start) / 60:.1f} minutes.")


def main(arguments=None):
    parser = Parser(prog="keras-transformer demo", description=__doc__)
    parser.add_argument("--run", default="runs/demo", help="folder of the run")
    parser.add_argument("--directory", default="saved_models", help="folder of all served models")
    options = parser.parse_args(arguments)
    with one_line_errors(STOPPED_TRAINING):
        run_demo(options.run, options.directory)


if __name__ == "__main__":
    main()
