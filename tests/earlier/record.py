"""Records models and runs of a version of the library, for later versions to load.

In a checkout of that version, with its extra `train` installed:

    PYTHONPATH=$PWD python .../tests/earlier/record.py .../tests/earlier/0.2.0.zip

`models/` holds a `.keras` file of each kind with random weights, `models.npz` their outputs for
fixed ids. `runs/` holds a run of each command, trained for six steps, with the text beside it;
`stopped/` the same runs as they were after three. `runs.json` holds the flags of the runs and
what their commands print. The test next door says what must hold of them.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np

import keras_transformer as kt

SMALL = {"num_layers": 1, "hidden_dim": 6, "num_heads": 2, "intermediate_dim": 10}
BERT = {**SMALL, "max_sequence_length": 11}
MODELS = {
    "translation": lambda: kt.translation(17, size="tiny", **SMALL),
    "language_model": lambda: kt.language_model(17, **SMALL),
    "gpt2": lambda: kt.gpt2(vocabulary_size=17, max_sequence_length=11, **SMALL),
    "transformer_xl": lambda: kt.transformer_xl(17, batch_size=2, memory_length=5, **SMALL),
    "classifier": lambda: kt.classifier(17, 3, **SMALL),
    "bert": lambda: kt.bert(17, **BERT),
    "bert_classifier": lambda: kt.bert_classifier(kt.bert(17, **BERT), 3),
    "bert_pretraining": lambda: kt.bert_pretraining(kt.bert(17, **BERT)),
    "bert_token_labeller": lambda: kt.bert_token_labeller(kt.bert(17, **BERT), 3),
}
SINCE_0_3 = {
    "translation_of_two_vocabularies": lambda: kt.translation(
        17, 19, size="tiny", output_bias=True, normalize_first=False, **SMALL
    ),
    "translation_packed": lambda: kt.translation(17, size="tiny", packed=True, **SMALL),
    "language_model_packed": lambda: kt.language_model(17, packed=True, **SMALL),
    "lora": lambda: kt.add_lora(kt.translation(17, size="tiny", **SMALL), 2),
}
TRAINED = [
    "--num-layers=1", "--hidden-dim=8", "--intermediate-dim=10", "--num-heads=2",
    "--warmup-steps=2", "--checkpoint-every=3", "--average=2", "--steps=6",
    "--dropout=0", "--attention-dropout=0", "--activation-dropout=0",
]  # fmt: skip
ONE_STACK = ["--text=text.txt", "--context=16", "--batch-size=4", "--evaluate-every=3"]
# The command, its flags, and the flags and standard input of a question to the finished run.
RUNS = {
    "translation": (
        "translation",
        ["--tsv=pairs.tsv", "--valid-tsv=pairs.tsv", "--vocabulary-size=280", "--size=tiny",
         "--tokens-per-batch=64", "--max-length=24", "--num-beams=2"],
        (["translate"], "abc\nfed\n"),
    ),
    "classification": (
        "classification",
        ["--tsv=labels.tsv", "--hold-out=5", "--vocabulary-size=20", "--tokens-per-batch=64",
         "--max-length=16"],
        (["classify"], "yes b a\na b\n"),
    ),
    "characters": (
        "language_model",
        [*ONE_STACK, "--tokens=characters"],
        (["sample", "--prompt=the ", "--length=9"], ""),
    ),
    "gpt2": (
        "language_model",
        [*ONE_STACK, "--tokens=bytes", "--model=gpt2", "--size=124M"],
        (["sample", "--prompt=the ", "--length=9"], ""),
    ),
    "transformer_xl": (
        "language_model",
        [*ONE_STACK, "--tokens=characters", "--model=transformer_xl", "--memory-length=16"],
        (["sample", "--prompt=the ", "--length=9"], ""),
    ),
    "pretraining": (
        "pretraining",
        ["--documents=documents.txt", "--vocabulary-size=50", "--max-length=24", "--positions=30",
         "--batch-size=4", "--hold-out=2"],
        ([], ""),  # the training command, which evaluates the finished run
    ),
}  # fmt: skip


def inputs_of(model):
    """Ids without padding for each input, {name: (2, 5) int32}."""
    draw, ranges = np.random.default_rng(5), {"segment_ids": (0, 2), "masked_positions": (0, 5)}
    names = [each.name for each in model.inputs]
    return {name: draw.integers(*ranges.get(name, (4, 17)), (2, 5), "int32") for name in names}


def outputs_of(model, inputs):
    """All outputs of a model, a list of arrays."""
    outputs = model(inputs if len(inputs) > 1 else next(iter(inputs.values())), training=False)
    return [keras.ops.convert_to_numpy(each) for each in keras.tree.flatten(outputs)]


def record_models(folder):
    arrays = {}
    (folder / "models").mkdir()
    known = MODELS if kt.__version__ < "0.3" else MODELS | SINCE_0_3
    for name, make in known.items():
        keras.utils.set_random_seed(3)
        model = make()
        draw = np.random.default_rng(7)
        for weight in model.weights:
            if "seed" not in weight.name:
                weight.assign(draw.normal(0, 0.3, weight.shape))
        model.save(folder / "models" / f"{name}.keras")
        inputs = inputs_of(model)
        for index, output in enumerate(outputs_of(model, inputs)):
            arrays[f"{name}-{index}"] = output
    np.savez(folder / "models.npz", **arrays)


def write_texts(folder):
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdef", k=draw.randint(1, 7))) for _ in range(40)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    rows = [draw.choices(["a", "b", "yes"], k=draw.randint(1, 9)) for _ in range(40)]
    labels = ["good" if "yes" in row else "bad" for row in rows]
    lines = (f"{' '.join(row)}\t{label}\n" for row, label in zip(rows, labels, strict=True))
    (folder / "labels.tsv").write_text("".join(lines))
    text = "the cats sat on the mat; the dog lay on the log.\n"
    (folder / "text.txt").write_text(text * 20)
    (folder / "documents.txt").write_text("\n".join((text * 4 + "\n") for _ in range(12)))


def record_runs(folder):
    write_texts(folder)
    recorded = {}
    for name, (command, flags, (question, answer_to)) in RUNS.items():
        run, stopped = folder / "runs" / name, folder / "stopped" / name
        flags = [*flags, *TRAINED]
        ask(folder, command, *flags, f"--run=runs/{name}")
        shutil.copytree(run, stopped)
        for path in (*stopped.glob("*.keras"), *stopped.glob("checkpoints/step-6*")):
            path.unlink()
        question = question or flags
        answer = ask(folder, command, *question, f"--run=runs/{name}", stdin=answer_to)
        recorded[name] = {
            "command": command, "flags": flags, "question": question, "stdin": answer_to,
            "answer": answer,
        }  # fmt: skip
        for path in [*run.rglob("*"), *stopped.rglob("*")]:
            if path.suffix in (".png", ".html") or path.name == "lock":
                path.unlink()
    for path in (folder / "runs").rglob("checkpoints"):
        shutil.rmtree(path)
    (folder / "runs.json").write_text(json.dumps(recorded, indent=1) + "\n")


def ask(folder, command, *flags, stdin=""):
    """What `python -m train.<command>` prints to standard output."""
    code = f"import sys, train.{command} as command; command.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *flags],
        cwd=folder, input=stdin, text=True, capture_output=True, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def main(target):
    folder = pathlib.Path(target).resolve().with_suffix(".folder")
    folder.mkdir()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            record_models(folder)
        record_runs(folder)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
