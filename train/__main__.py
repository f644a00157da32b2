"""Runs the main job on an embedded corpus: train, measure, draw, export, ask.

    python -m train

Needs no network and takes a few minutes on two cores. Everything goes into runs/demo and
saved_models/demo; a second call finds the trained run and publishes the next version.
"""

import json
import time

from keras_transformer.serving import export
from keras_transformer.serving.publishing.c_api import ask
from train.command import Parser, one_line_errors
from train.config import load_config
from train.demo.corpus import demo_split
from train.experiment import STOPPED_TRAINING
from train.pictures import save_pictures, translation_attention
from train.run import Run, train
from train.translation import translation_task
from train.translator import report, search_settings, translate, translator_of

NUM_TRAIN, NUM_HELD_OUT = 30_000, 500


def main():
    parser = Parser(prog="python -m train", description=__doc__)
    parser.add_argument("--run", default="runs/demo", help="folder of the run")
    parser.add_argument("--directory", default="saved_models", help="folder of served models")
    options = parser.parse_args()
    with one_line_errors(STOPPED_TRAINING):
        run_demo(Run(options.run), options.directory)


def run_demo(run, directory):
    start = time.perf_counter()
    config = load_config("demo")
    train_text, held_out = demo_split(NUM_TRAIN, NUM_HELD_OUT, config.seed)
    model = train(run, config, translation_task(config, train_text, held_out))

    translator = translator_of(model, run.tokenizer(), search_settings(config))
    translations = translate(translator, held_out.sources)
    print(report(translations, held_out.targets))
    exact = sum(t == r for t, r in zip(translations, held_out.targets, strict=True))
    print(f"Exact match on {len(translations)} held-out sentences: {exact / len(translations):.1%}")
    for source, translation in list(zip(held_out.sources, translations, strict=True))[:5]:
        print(f"  {source}\n    {translation}")

    pair = held_out.sources[0], translations[0]
    attention = translation_attention(model, run.tokenizer(), *pair)
    for path in save_pictures(run, attention, title=pair[0]):
        print(f"Picture: {path}")
    version = export(translator, directory, "demo", examples=held_out.sources[:3])
    print(f"Published {version}. One request, answered as TensorFlow Serving would:")
    request = {"signature_name": "serving_default", "inputs": {"text": held_out.sources[:1]}}
    print(json.dumps(request, ensure_ascii=False))
    print(json.dumps(ask(version, [request])[0], ensure_ascii=False))
    print(f"All of it took {(time.perf_counter() - start) / 60:.1f} minutes.")


if __name__ == "__main__":
    main()
