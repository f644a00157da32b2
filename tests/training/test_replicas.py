"""One device, several replicas and several workers give the same numbers."""

import functools
import os
import pathlib
import re
import sys
from collections import Counter

import numpy as np
import pytest

from train.launch.local import run_here

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
# Name: workers, and devices of each.
ARRANGEMENTS = {"2": (1, 2), "4": (1, 4), "2 workers": (2, 1), "2 x 2": (2, 2)}
# What two replicas and one device do in half a minute, without what is slow.
FEW = ("everything", "bfloat16 in two parts", "bfloat16")
OTHERS = ("everything", "dropout")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each worker of each arrangement has kept, computed when it is first asked for.

    One device is that of this process.
    """
    folder = tmp_path_factory.mktemp("replicas")

    @functools.cache
    def of(name, *cases):
        if name == "1":
            from . import replicas  # TensorFlow's alone

            return [replicas.results_of(replicas.choose_strategy("one"), folder, cases)]
        workers, devices = ARRANGEMENTS[name]
        place = folder / f"{name}, {len(cases)} cases"
        command = [sys.executable, "-m", "tests.training.replicas", str(devices), str(place)]
        assert run_here([*command, *cases], workers, restarts=0, start_timeout=600) == 0
        return [dict(np.load(place / f"{index}.npz")) for index in range(workers)]

    return of


@pytest.fixture(autouse=True, scope="module")
def in_the_root():
    before = pathlib.Path.cwd()
    os.chdir(pathlib.Path(__file__).parents[2])
    yield
    os.chdir(before)


def assert_same(results, name, case, atol=1e-6, cases=()):
    [one] = results("1", *cases)
    names = [key for key in one if key.startswith(f"{case}/")]
    assert len(names) >= 7, "weights, logs and more"
    assert one[f"{case}/moved"] > 1e-2, "the training moved the weights"
    for index, values in enumerate(results(name, *cases)):
        for key in names:
            # A metric's [sum, count]: the sum errs by `atol` for each of what it counts.
            allowed = atol * max(1, one[key].flat[-1]) if key.endswith("/sums") else atol
            np.testing.assert_allclose(
                values[key], one[key], atol=allowed, rtol=1e-6, err_msg=f"{key} on worker {index}"
            )


def assert_is_the_one_meant(results, name, *cases):
    workers, devices = ARRANGEMENTS[name]
    sizes = [list(kept["size"]) for kept in results(name, *cases)]
    assert sizes == [[workers, workers * devices]] * workers


def test_two_replicas_equal_one_device(results):
    assert_is_the_one_meant(results, "2", *FEW)
    assert_same(results, "2", "everything", cases=FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["plain", "everything", "buckets", "files", "plain keras loss and metric", "penalties"]
    + ["penalties of tokens", "lora", "two views"],
)
def test_replicas_equal_one_device(results, case):
    """Weights, averages, logs of batches and epochs, validation and evaluation."""
    assert_is_the_one_meant(results, "2 x 2")
    assert_same(results, "2 x 2", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["adam", "muon"])
def test_replicas_equal_one_device_with_adaptive_steps_and_weight_decay(results, case):
    assert_same(results, "2 x 2", case, atol=1e-4)  # which enlarge rounding of tiny gradients


@pytest.mark.slow
def test_replicas_of_todays_blocks_equal_one_device(results):
    # Norms of two numbers enlarge rounding.
    assert_same(results, "2 x 2", "today's blocks", atol=2e-5)


def test_two_replicas_in_bfloat16_are_bitwise_one_device_in_two_parts(results):
    [one], [two] = results("1", *FEW), results("2", *FEW)
    for index in range(3):
        np.testing.assert_array_equal(
            two[f"bfloat16/weights/{index}"], one[f"bfloat16 in two parts/weights/{index}"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", ["float16", "float16 compiled"])
def test_replicas_in_float16_skip_the_steps_that_one_device_skips(results, case):
    """From a scale so large that the first gradients overflow, of the whole batch if not before."""
    [one] = results("1")
    scale, _, skipped = one[f"{case}/loss_scale"]
    assert scale == 2.0 ** (26 - skipped) and 3 < skipped < 12
    assert_same(results, "2 x 2", case, atol=3e-3)


@pytest.mark.slow
def test_rematerialisation_changes_no_bit_of_a_training_with_dropout(results):
    for values in results("2 x 2"):
        keys = [key for key in values if key.startswith("blocks/")]
        assert len(keys) >= 17, "weights of a block, logs and more"
        assert values["blocks/moved"] > 1e-2, "the training moved the weights"
        for key in keys:
            np.testing.assert_array_equal(values[f"rematerialised {key}"], values[key])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["everything", "keras loss and metric"])
def test_replicas_compiled_by_xla_give_the_same_numbers(results, case):
    """With dropout, accumulation, clipping, a moving average, validation, an empty share."""
    for values in results("2 x 2"):
        keys = [key for key in values if key.startswith(f"compiled {case}/")]
        assert len(keys) >= 8, "weights, logs and more"
        assert values[f"compiled {case}/moved"] > 1e-2, "the training moved the weights"
        for key in keys:
            plain = values[key.replace("compiled", "plain")]
            np.testing.assert_allclose(values[key], plain, atol=1e-5, rtol=1e-6, err_msg=key)


@pytest.mark.slow
def test_each_token_is_counted_once(results):
    for values in results("2 x 2"):
        # In an epoch 3 times 3 batches of 4 rows of 7 tokens and 4 rows of 1.
        assert values["plain/counted"] == 288, "tokens the loss was averaged over"


def assert_noise_differs(results, name, *cases):
    """Between replicas, and is reproducible."""
    noise = results(name, *cases)[0]["noise"]  # (replicas, steps, units)
    masks = noise.reshape(-1, noise.shape[-1])
    assert len(np.unique(masks, axis=0)) == len(masks), "no mask is drawn twice"
    [one] = results("1", *cases)
    np.testing.assert_array_equal(noise[0], one["noise"][0], "the first replica is one device")


def test_dropout_differs_between_two_replicas_and_is_reproducible(results):
    assert_noise_differs(results, "2", *FEW)


@pytest.mark.slow
def test_dropout_differs_between_replicas_and_is_reproducible(results):
    assert_noise_differs(results, "2 x 2")


@pytest.mark.soak
@pytest.mark.parametrize(("one", "other"), [("2", "2 workers"), ("4", "2 x 2")])
def test_dropout_depends_on_the_number_of_replicas_alone(results, one, other):
    few, many = (results(name, *OTHERS) for name in (one, other))
    for index in range(3):
        key = f"dropout/weights/{index}"
        np.testing.assert_allclose(few[0][key], many[0][key], atol=1e-6)
    # Noise goes with the part of the batch, and these are dealt out to the workers in turn.
    order = [0, 2, 1, 3] if other == "2 x 2" else [0, 1]
    np.testing.assert_array_equal(few[0]["noise"][order], many[0]["noise"])
    for name in (one, other):
        assert_is_the_one_meant(results, name, *OTHERS)
        assert_same(results, name, "everything", cases=OTHERS)
        assert_noise_differs(results, name, *OTHERS)
        assert_shares_are_the_epoch(results, name, *OTHERS)
        assert_predictions_are_in_order(results, name, *OTHERS)


def assert_shares_are_the_epoch(results, name, *cases):
    sentences = [" ".join("ab"[int(bit)] for bit in f"{number:b}") for number in range(37)]
    for part, times in (("train", 2), ("resumed", 1), ("validation", 1)):
        seen = Counter()
        for values in results(name, *cases):
            seen.update(text.decode() for text in values[f"seen/{part}"])
        assert seen == Counter(dict.fromkeys(sentences, times)), part


@pytest.mark.slow
def test_the_shares_of_all_workers_are_the_epoch(results):
    assert_shares_are_the_epoch(results, "2 x 2")


def assert_predictions_are_in_order(results, name, *cases):
    [one] = results("1", *cases)
    assert one["predictions"].shape[0] == 17
    for values in results(name, *cases):
        np.testing.assert_allclose(values["predictions"], one["predictions"], atol=1e-6)


def test_predictions_keep_their_order(results):
    assert_predictions_are_in_order(results, "2", *FEW)


@pytest.mark.slow
def test_every_worker_has_all_predictions(results):
    assert_predictions_are_in_order(results, "2 x 2")


@pytest.mark.parametrize(
    ("name", "cases"), [("2", FEW), pytest.param("2 x 2", (), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("steps_per_execution", "must be 1 under a tf.distribute strategy"),
        ("scope", "inside the same strategy.scope"),
        ("train_on_batch", "train_on_batch gives every replica the whole batch"),
        ("test_on_batch", "test_on_batch gives every replica the whole batch"),
        ("predict_on_batch", "predict_on_batch gives every replica the whole batch"),
        ("unbuilt", "Build the model before compile"),
        ("normalisation", "BatchNormalization would see a part of each batch"),
    ],
)
def test_settings_that_a_strategy_cannot_have_are_refused(results, name, cases, setting, expected):
    for values in results(name, *cases):
        assert expected in str(values[f"refused/{setting}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("arrays", "must be a tf.data.Dataset.*Received: ndarray"),
        ("validation", "must be a tf.data.Dataset.*Received: ndarray"),
        ("sharding", "auto_shard_policy must be DATA.*Received: OFF"),
        ("unseeded", "needs a seed"),
    ],
)
def test_data_that_workers_cannot_share_are_refused(results, data, expected):
    for values in results("2 x 2"):
        assert re.search(expected, str(values[f"refused/{data}"]))


@pytest.mark.slow
def test_workers_that_disagree_stop_with_all_values(results):
    expected = "The workers must agree on a number. Received: 5 on worker 0, 6 on worker 1."
    for values in results("2 x 2"):
        assert str(values["refused/agree"]) == expected


@pytest.mark.slow
def test_workers_of_which_one_alone_restored_a_checkpoint_are_stopped(results):
    for values in results("2 x 2"):
        said = str(values["refused/restored"])
        assert "must agree on the checksum of weights and optimizer at step 0" in said
        numbers = re.findall(r"(\d+) on worker", said)
        assert len(set(numbers)) == 2, "both values are told"
