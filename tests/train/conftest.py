"""A small text and the settings of a model so small that it is trained in seconds."""

import gzip
import random

import pytest

SETTINGS = [
    "--vocabulary-size=280", "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32",
    "--num-heads=2", "--dropout=0.1", "--tokens-per-batch=128", "--max-length=24",
    "--warmup-steps=5", "--checkpoint-every=3", "--average=2", "--num-beams=2",
]  # fmt: skip


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
