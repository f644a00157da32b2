"""One device, several replicas and several workers give the same numbers."""

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
ARRANGEMENTS = {"1": (1, 1), "2": (1, 2), "4": (1, 4), "2 workers": (2, 1), "2 x 2": (2, 2)}
# "2 x 2" covers what the others do, except that noise depends on the number of replicas.
MARKS = dict.fromkeys(ARRANGEMENTS, pytest.mark.soak) | {"2 x 2": pytest.mark.slow}
CHECKED = [pytest.param(name, marks=mark) for name, mark in MARKS.items()]
SEVERAL, WORKERS = CHECKED[1:], CHECKED[3:]
# What two replicas and one device do in a minute, without what is slow.
FEW = ("plain", "everything", "bfloat16 in two parts", "bfloat16", "dropout")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each worker of each arrangement has kept, computed when it is first asked for."""
    folder = tmp_path_factory.mktemp("replicas")
    kept = {}

    def of(name, *cases):
        if (name, cases) not in kept:
            workers, devices = ARRANGEMENTS[name]
            place = folder / f"{name}, {len(cases)} cases"
            command = [sys.executable, "-m", "tests.training.replicas", str(devices), str(place)]
            assert run_here([*command, *cases], workers, restarts=0, start_timeout=600) == 0
            files = [place / f"{index}.npz" for index in range(workers)]
            kept[name, cases] = [dict(np.load(file)) for file in files]
        return kept[name, cases]

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


@pytest.mark.parametrize("case", ["plain", "everything"])
def test_two_replicas_equal_one_device(results, case):
    assert results("2", *FEW)[0]["size"].tolist() == [1, 2]
    assert_same(results, "2", case, cases=FEW)


@pytest.mark.parametrize("name", SEVERAL)
def test_the_arrangement_is_the_one_meant(results, name):
    workers, devices = ARRANGEMENTS[name]
    assert [list(kept["size"]) for kept in results(name)] == [
        [workers, workers * devices]
    ] * workers


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    "case",
    ["plain", "empty share", "everything", "packs", "buckets", "files", "keras loss and metric"]
    + ["penalties", "penalties of tokens", "lora", "two views"],
)
def test_replicas_equal_one_device(results, name, case):
    """Weights, averages, logs of batches and epochs, validation and evaluation."""
    assert_same(results, name, case)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("case", ["adam", "muon"])
def test_replicas_equal_one_device_with_adaptive_steps_and_weight_decay(results, name, case):
    assert_same(results, name, case, atol=1e-4)  # which enlarge rounding of tiny gradients


@pytest.mark.parametrize("name", SEVERAL)
def test_replicas_of_todays_blocks_equal_one_device(results, name):
    assert_same(results, name, "today's blocks", atol=2e-5)  # norms of two numbers enlarge rounding


@pytest.mark.parametrize("name", ["2", pytest.param("2 workers", marks=pytest.mark.soak)])
def test_two_replicas_in_bfloat16_are_bitwise_one_device_in_two_parts(results, name):
    [one] = results("1", *FEW)
    for values in results(name, *FEW):
        for index in range(3):
            np.testing.assert_array_equal(
                values[f"bfloat16/weights/{index}"], one[f"bfloat16 in two parts/weights/{index}"]
            )


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("case", ["float16", "float16 compiled"])
def test_replicas_in_float16_skip_the_steps_that_one_device_skips(results, name, case):
    """From a scale so large that the first gradients overflow, of the whole batch if not before."""
    [one] = results("1")
    scale, _, skipped = one[f"{case}/loss_scale"]
    assert scale == 2.0 ** (26 - skipped) and 3 < skipped < 12
    assert_same(results, name, case, atol=3e-3)


@pytest.mark.parametrize("name", CHECKED)
def test_rematerialisation_changes_no_bit_of_a_training_with_dropout(results, name):
    for values in results(name):
        keys = [key for key in values if key.startswith("blocks/")]
        assert len(keys) >= 29, "weights of two blocks, logs and more"
        assert values["blocks/moved"] > 1e-2, "the training moved the weights"
        for key in keys:
            np.testing.assert_array_equal(values[f"rematerialised {key}"], values[key])


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("case", ["everything", "bits", "metric"])
def test_replicas_compiled_by_xla_give_the_same_numbers(results, name, case):
    """With dropout, accumulation, clipping, a moving average, validation, an empty share."""
    for values in results(name):
        keys = [key for key in values if key.startswith(f"compiled {case}/")]
        assert len(keys) >= 8, "weights, logs and more"
        assert values[f"compiled {case}/moved"] > 1e-2, "the training moved the weights"
        for key in keys:
            plain = values[key.replace("compiled", "plain")]
            np.testing.assert_allclose(values[key], plain, atol=1e-5, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", CHECKED)
def test_each_token_is_counted_once(results, name):
    for values in results(name):
        # In an epoch 3 times 3 batches of 4 rows of 7 tokens and 4 rows of 1.
        assert values["plain/counted"] == 288, "tokens the loss was averaged over"


def noise_of_parts(workers, name):
    """Noise goes with the part of the batch, and these are dealt out to the workers in turn."""
    noise = workers[0]["noise"]
    return dict(zip([0, 2, 1, 3] if name == "2 x 2" else range(len(noise)), noise, strict=True))


@pytest.mark.parametrize("name", SEVERAL)
def test_dropout_differs_between_replicas_and_is_reproducible(results, name):
    noise = results(name)[0]["noise"]  # (replicas, steps, units)
    masks = noise.reshape(-1, noise.shape[-1])
    assert len(np.unique(masks, axis=0)) == len(masks), "no mask is drawn twice"
    [one] = results("1")
    np.testing.assert_array_equal(noise[0], one["noise"][0], "the first replica is one device")
    ours = noise_of_parts(results(name), name)
    for other, cases in (("2", FEW), ("2 x 2", ())):
        if other == name:
            continue
        theirs = noise_of_parts(results(other, *cases), other)
        for part in ours.keys() & theirs.keys():
            np.testing.assert_array_equal(ours[part], theirs[part], err_msg=other)


@pytest.mark.soak
@pytest.mark.parametrize(("one", "other"), [("2", "2 workers"), ("4", "2 x 2")])
def test_dropout_depends_on_the_number_of_replicas_alone(results, one, other):
    few, many = (results(name)[0] for name in (one, other))
    for index in range(3):
        key = f"dropout/weights/{index}"
        np.testing.assert_allclose(few[key], many[key], atol=1e-6)


@pytest.mark.slow
def test_more_replicas_have_other_noise(results):
    few, many = (found[0]["dropout/weights/0"] for found in (results("2", *FEW), results("2 x 2")))
    assert np.abs(few - many).max() > 1e-3


@pytest.mark.parametrize("name", CHECKED)
def test_the_shares_of_all_workers_are_the_epoch(results, name):
    sentences = [" ".join("ab"[int(bit)] for bit in f"{number:b}") for number in range(37)]
    for part, times in (("train", 2), ("resumed", 1), ("validation", 1)):
        seen = Counter()
        for values in results(name):
            seen.update(text.decode() for text in values[f"seen/{part}"])
        assert seen == Counter(dict.fromkeys(sentences, times)), part


@pytest.mark.parametrize("name", ["2", pytest.param("4", marks=pytest.mark.soak)])
def test_predictions_keep_their_order(results, name):
    [one], [several] = results("1", *FEW), results(name, *FEW)
    assert one["predictions"].shape[0] == 17
    np.testing.assert_allclose(several["predictions"], one["predictions"], atol=1e-6)


@pytest.mark.parametrize("name", WORKERS)
def test_every_worker_has_all_predictions(results, name):
    [one] = results("1")
    for values in results(name):
        np.testing.assert_allclose(values["predictions"], one["predictions"], atol=1e-6)


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
