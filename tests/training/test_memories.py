"""A memory that is carried from batch to batch, on one device, on replicas and on workers."""

import pathlib
import sys

import numpy as np
import pytest

from keras_transformer.models.xl_model import transformer_xl
from keras_transformer.training import TokenCrossentropy
from keras_transformer.training.checkpoints import Checkpoints
from train.launch.local import run_here

from .conftest import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.slow]
ROOT = pathlib.Path(__file__).parents[2]
# Name: workers, and devices of each.
ARRANGEMENTS = {"1": (1, 1), "2": (1, 2), "2 workers": (2, 1)}  # "1" is of this process


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of an arrangement and what each of its workers kept, computed when asked for."""
    folder, kept = tmp_path_factory.mktemp("memories"), {}

    def of(name):
        if name == "1" and name not in kept:
            from . import memories  # TensorFlow's alone

            kept[name] = folder, [memories.trained(memories.choose_strategy("one"))]
        if name not in kept:
            workers, devices = ARRANGEMENTS[name]
            command = [sys.executable, "-m", "tests.training.memories", str(devices)]
            command.append(str(folder / name))
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(ROOT)
                assert run_here(command, workers, restarts=0, start_timeout=600) == 0
            files = [folder / name / f"{index}.npz" for index in range(workers)]
            kept[name] = folder / name, [dict(np.load(file)) for file in files]
        return kept[name]

    return of


TWO_WORKERS = pytest.param("2 workers", marks=pytest.mark.soak)


@pytest.mark.parametrize("name", ["2", TWO_WORKERS])
def test_replicas_that_carry_memories_equal_one_device(results, name):
    [one] = results("1")[1]
    assert one["moved"] > 1e-2, "the training moved the weights"
    values = results(name)[1]
    workers, devices = ARRANGEMENTS[name]
    for index, kept in enumerate(values):
        assert list(kept["size"]) == [workers, workers * devices]
        for key in one:
            if key.startswith("weights/") or key in ("loss", "perplexity"):
                np.testing.assert_allclose(
                    kept[key], one[key], atol=1e-6, rtol=1e-5, err_msg=f"{key} on worker {index}"
                )
    for key in one:
        if key.startswith("memories/"):
            joined = np.concatenate([kept[key] for kept in values])
            np.testing.assert_allclose(joined, one[key], atol=1e-5, err_msg=key)
    assert 0 < one["memories/2"].mean() < 1, "rows remember as much as their documents leave"


@pytest.mark.parametrize("name", ["1", "2", TWO_WORKERS])
def test_the_memories_of_all_replicas_are_forgotten(results, name):
    for kept in results(name)[1]:
        assert len(kept["remembered"]) == ARRANGEMENTS[name][1], "one for each replica here"
        assert not kept["remembered"].any()


def test_a_training_goes_on_from_its_checkpoint_to_the_same_bits(results):
    [kept] = results("2")[1]
    assert kept["steps"] == 3
    names = [key for key in kept if key.startswith("whole/")]
    assert len(names) == 1 + 2 * 13 + 2, "the weights"
    for key in names:
        np.testing.assert_array_equal(kept[key.replace("whole", "resumed")], kept[key])


def test_memories_of_two_replicas_are_refused_on_one_device(results):
    folder, _ = results("2")
    model = transformer_xl(
        11, 4, num_layers=2, hidden_dim=6, intermediate_dim=5, num_heads=3, memory_length=5
    )
    model.compile("sgd", TokenCrossentropy())
    with pytest.raises(ValueError, match="it has 6 variables for carried, the model has 3"):
        Checkpoints(folder / "checkpoints", model).restore()
