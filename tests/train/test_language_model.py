"""The command from a file of text to a served continuation."""

import re
import types
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.serving.publishing.c_api import ask
from train import language_model
from train.language_model import LanguageModelConfig, LanguageModelExperiment, rows_of_a_replica
from train.run import Run

# 49 characters a line, so that segments of 16 begin at every one of them.
TEXT = "the cats sat on the mat; the dog lay on the log.\n" * 40
FLAGS = [
    "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32", "--num-heads=2",
    "--context=16", "--batch-size=8", "--warmup-steps=5", "--peak-rate=0.01",
    "--evaluate-every=10", "--checkpoint-every=15", "--average=1", "--hold-out=0.1",
]  # fmt: skip


KINDS = {
    "characters": ["--tokens=characters"],
    "a memory": [
        "--tokens=characters", "--model=transformer_xl", "--memory-length=20",
        "--activation-dropout=0",
    ],
    "bytes": ["--tokens=bytes"],
    "GPT-2": ["--tokens=bytes", "--model=gpt2", "--size=124M"],
}  # fmt: skip


OTHERS = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("bytes", "GPT-2")]
TRAINED = ["characters", "a memory", *OTHERS]


def train(kind, folder):
    (folder / "text.txt").write_text(TEXT)
    flags = ["--text", str(folder / "text.txt"), *KINDS[kind], *FLAGS]
    language_model.main([*flags, "--steps=150", "--run", str(folder / "run")])


@pytest.fixture(scope="module", params=TRAINED)
def trained(request, made_once):
    """A run of 150 steps."""
    make = partial(train, request.param)
    return made_once(f"language model of {request.param}", make) / "run"


@pytest.mark.slow
def test_a_run_learns_and_leaves_its_history(trained):
    run = Run(trained, LanguageModelConfig)
    names = {path.name for path in trained.iterdir()}
    assert names >= {"learning_curves.png", "attention.png", "attention.html"}
    history = run.history()
    assert history["val_loss"][0] > 1.0 > history["val_loss"][-1]
    # Segments are read one after another; with windows an epoch is 10 steps.
    assert len(history["loss"]) == (12 if has_memory(run) else 15)


def has_memory(run):
    return run.config().model == "transformer_xl"


@pytest.mark.slow
def test_evaluation_counts_each_token_once(trained, tmp_path, capsys):
    (tmp_path / "other.txt").write_text(TEXT[:101])
    arguments = ["--run", str(trained), "--text", str(tmp_path / "other.txt")]
    if has_memory(Run(trained, LanguageModelConfig)):
        fine, coarse, said = (
            "--memory-length=100",
            "--memory-length=0",
            "segments of 16, memory 100",
        )
    else:
        fine, coarse, said = "--stride=1", "--stride=16", "context 16, stride 1"
    language_model.main(["evaluate", *arguments, fine])
    line = capsys.readouterr().out
    numbers = r"([\d.]+) nats a token.*; ([\d.]+) bits a character, ([\d.]+) bits a byte"
    nats, bits, of_bytes = re.match(numbers, line).groups()
    assert f"101 tokens, {said}." in line
    np.testing.assert_allclose(float(bits) * 101, float(nats) * 100 / np.log(2), rtol=1e-3)
    assert of_bytes == bits, "each character is one byte"
    language_model.main(["evaluate", *arguments, coarse])
    rough = float(capsys.readouterr().out.split()[0])
    assert rough != float(nats), "another context of each token"
    (tmp_path / "other.txt").write_text("t")
    mistakes = {"--context=0": "--context must be a whole number, at least 2. Received: 0."}
    mistakes["--context=16"] = "must have at least two tokens.*Received: 1"
    for flag, expected in mistakes.items():
        with pytest.raises(SystemExit):
            language_model.main(["evaluate", *arguments, flag])
        assert re.search(expected, capsys.readouterr().err)


def test_rows_that_replicas_cannot_share_are_refused(monkeypatch):
    three = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: three)
    with pytest.raises(ValueError, match=r"--batch-size must be divisible.*8 for 3 replicas"):
        rows_of_a_replica(8)


@pytest.mark.slow
def test_sampling_writes_text_like_the_training_text(trained, capsys):
    prompt = TEXT[:36]  # as many tokens as the model with a memory has before it in training
    arguments = ["--run", str(trained), "--prompt", prompt, "--length=60", "--temperature=0.1"]
    language_model.main(["sample", *arguments])
    written = capsys.readouterr().out
    assert written.startswith(prompt) and len(written) == len(prompt) + 61
    assert written[len(prompt) :].count("the ") >= 3


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_exports")
@pytest.mark.parametrize(
    ("trained", "dtype"),
    [("a memory", "bfloat16"), pytest.param("characters", "float32", marks=pytest.mark.soak)],
    indirect=["trained"],
)
def test_a_trained_run_is_served(trained, dtype, tmp_path, capsys):
    flags = [f"--run={trained}", "--name=mats", f"--directory={tmp_path}", f"--dtype={dtype}"]
    language_model.main(["export", *flags])
    assert f"Published {tmp_path}/mats/1." in capsys.readouterr().out
    [answer] = ask(tmp_path / "mats" / "1", [{"inputs": {"prompt": ["the cat "]}}])
    written = 18 if has_memory(Run(trained, LanguageModelConfig)) else 8  # half of what it sees
    assert len(answer["outputs"]["continuation"][0]) == written


def test_validation_of_a_memory_reads_as_far_back_as_training_does():
    config = LanguageModelConfig(model="transformer_xl", context=16, tokens="characters")
    text = [TEXT.encode()]
    for memory_length, longest in ((None, 16 + 64), (0, 16), (20, 36)):  # 64: the row of the size
        given = config.replace(memory_length=memory_length)
        experiment = LanguageModelExperiment(given, (text, text))
        windows = experiment.validation(experiment.make_tokenizer())
        assert next(iter(windows))[0].shape[1] == longest


@pytest.mark.parametrize("hold_out", [0.1, 0.2, 0.3, 0.4])
def test_no_character_is_cut(hold_out, tmp_path):
    (tmp_path / "text.txt").write_text("дом€😀" * 9, "utf-8")
    config = LanguageModelConfig(text=str(tmp_path / "text.txt"), hold_out=hold_out)
    texts = LanguageModelExperiment(config).read_texts()
    rest, held_out = (b"".join(part).decode() for part in texts)
    assert rest + held_out == "дом€😀" * 9
    assert len(held_out.encode()) == pytest.approx(117 * hold_out, abs=4)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "Give one training text"),
        (["--text=missing.txt"], "missing.txt, which does not exist"),
        (["--hold-out=1.5"], "--hold-out must be a number, at least 0 and below 1. Received: 1.5"),
        (["--tokens=words"], "--tokens must be one of characters, bytes, pieces. Received: words"),
        (
            ["--model=lstm"],
            "--model must be one of transformer, gpt2, transformer_xl. Received: lstm",
        ),
        (["--config=multi30k"], "Received: 'multi30k', of translation"),
        (["--schedule=linear"], "--schedule must be one of cosine, inverse_sqrt. Received: linear"),
        (["--average=0"], "--average must be a whole number, at least 1. Received: 0"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(flags, expected, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = ["--text", str(text), *flags] if flags else []
    with pytest.raises(SystemExit) as caught:
        language_model.main([*arguments, "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1
    assert re.search(expected, message)
    assert not (tmp_path / "run").exists()
