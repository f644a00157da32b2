"""What `python -m train` does, from training to an answer of the served model."""

import json
import time

from keras_transformer.data.corpora import ParallelText
from keras_transformer.serving import Translator
from keras_transformer.serving.publishing.c_api import ask
from train.config import load_config
from train.demo.corpus import demo_corpus
from train.experiments.translation import Translation, bleu_report, translations_of
from train.gpus import warn_of_idle_gpus
from train.loop import train_run
from train.pictures import save_pictures
from train.run import Run

NUM_TRAIN, NUM_HELD_OUT = 30_000, 500
SHOWN = 5  # translations


def run_demo(run_path, directory):
    warn_of_idle_gpus()
    start = time.perf_counter()
    config = load_config("demo")
    pairs = demo_corpus(NUM_TRAIN + NUM_HELD_OUT, config.seed)
    train_text = ParallelText(pairs.sources[:NUM_TRAIN], pairs.targets[:NUM_TRAIN])
    held_out = ParallelText(pairs.sources[NUM_TRAIN:], pairs.targets[NUM_TRAIN:])
    run = Run(run_path, type(config))
    train_run(run, Translation(config, (train_text, held_out)))

    translator = Translator.load(run.path)
    translations, _ = translations_of(translator, held_out.sources)
    print(bleu_report(translations, held_out.targets))
    exact = sum(t == r for t, r in zip(translations, held_out.targets, strict=True))
    print(f"Exact match on {len(translations)} held-out sentences: {exact / len(translations):.1%}")
    for source, translation in list(zip(held_out.sources, translations, strict=True))[:SHOWN]:
        print(f"  {source}\n    {translation}")

    for path in save_pictures(run, translator.attention(held_out.sources[0], translations[0])):
        print(f"Picture: {path}")
    version = translator.export(directory, "demo", examples=held_out.sources[:3])
    print(f"Published {version}. One request, answered as TensorFlow Serving would:")
    request = {"signature_name": "serving_default", "inputs": {"text": held_out.sources[:1]}}
    print(json.dumps(request, ensure_ascii=False))
    print(json.dumps(ask(version, [request])[0], ensure_ascii=False))
    print(f"The demo took {(time.perf_counter() - start) / 60:.1f} minutes.")
