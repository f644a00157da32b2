"""A small text and the settings of a model so small that it is trained in seconds."""

import gzip
import os
import random
import sys

import pytest

SETTINGS = [
    "--vocabulary-size=280", "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32",
    "--num-heads=2", "--dropout=0.1", "--tokens-per-batch=128", "--max-length=24",
    "--warmup-steps=5", "--checkpoint-every=3", "--average=2", "--num-beams=2",
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def only_small_pictures(small_pictures):
    """For every run of this folder."""


@pytest.fixture(autouse=True)
def results_of_few(request):
    """Trainings draw and score what they learnt only in tests that ask for `told_results`."""
    if "told_results" not in request.fixturenames:
        request.getfixturevalue("untold_results")


@pytest.fixture
def told_results():
    """Trainings of this process end as usual, with pictures and scores."""


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Flags for a training and a validation text, letters spelled backwards, one file packed."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdef", k=draw.randint(1, 7))) for _ in range(211)]
    sides = {"source": words, "target": [word[::-1] for word in words]}
    flags = []
    for side, lines in sides.items():
        with gzip.open(folder / f"train.{side}.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
        (folder / f"valid.{side}").write_text("\n".join(lines[:13]) + "\n")
        flags += [f"--{side}", f"{folder}/train.{side}.gz"]
        flags += [f"--valid-{side}", f"{folder}/valid.{side}"]
    return flags


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a PATH whose nvidia-smi lists so many GPUs, as a driver does."""

    def with_gpus(count):
        lines = [f"GPU {i}: NVIDIA H100 (UUID: GPU-{i})\n  MIG 1g.10gb" for i in range(count)]
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\nprint({chr(10).join(lines)!r})\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return with_gpus
