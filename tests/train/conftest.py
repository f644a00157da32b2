"""A small text and the settings of a model so small that it is trained in seconds."""

import gzip
import random

import pytest

from train import gpus

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
def machine(tmp_path_factory, monkeypatch):
    """Pretends that the driver has the devices of so many GPUs; returns the folder they are in."""

    def with_gpus(count):
        root = tmp_path_factory.mktemp("root")
        (root / "dev").mkdir()
        if count:
            for name in (*range(count), "ctl", "-uvm"):
                (root / "dev" / f"nvidia{name}").touch()
        monkeypatch.setattr(gpus, "ROOT", root)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return root

    return with_gpus
