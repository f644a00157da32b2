"""Batches where TensorFlow is not installed: they train on JAX, and are the same."""

import keras
import numpy as np
import pytest

from keras_transformer.data import Prepared
from keras_transformer.data.pipelines import BatchSequence
from tests.data.every_kind import as_arrays
from tests.layers.test_backends import HIDE_TENSORFLOW, needs, python

MAKE_BATCHES_AND_FIT = """
import keras, numpy as np
import keras_transformer as kt
from tests.data.every_kind import VOCABULARY, as_arrays, pairs

batches = pairs(kt.data.FewShapes(1))
sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
model = kt.translation(VOCABULARY, **sizes)
model.compile(kt.Adam(0.01), kt.TokenCrossentropy(), metrics=[kt.TokenAccuracy()])
logs = model.fit(
    batches.dataset(), steps_per_epoch=batches.steps_per_epoch, epochs=3, verbose=0,
    validation_data=batches.epoch(), shuffle=False,
).history
assert logs["val_loss"][2] < logs["val_loss"][0], logs
np.savez("PATH", **as_arrays())
print("fitted on", keras.backend.backend())
"""


def test_batches_are_the_same_and_a_model_learns_from_them_on_jax(tmp_path):
    needs("jax")
    code = HIDE_TENSORFLOW + MAKE_BATCHES_AND_FIT.replace("PATH", str(tmp_path / "batches.npz"))
    run = python("-c", code, backend="jax")
    assert run.stdout.strip() == "fitted on jax", run.stderr[-3000:]
    with np.load(tmp_path / "batches.npz") as kept:
        found = dict(kept)
    expected = as_arrays()
    assert found.keys() == expected.keys() and len(expected) > 100
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, name)


def test_pairs_are_prepared(tmp_path):
    lines = [f"a{number} b c\td e{number}\n" for number in range(300)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    flags = [f"--tsv={tmp_path}/pairs.tsv", f"--output={tmp_path}/prepared"]
    flags += ["--vocabulary-size=280", "--processes=2"]
    code = f"{HIDE_TENSORFLOW}from train.prepare import main; main({flags})"
    run = python("-c", code, backend="tensorflow")
    assert "280 pieces learned from all 300 pairs" in run.stdout, run.stderr[-3000:]
    assert Prepared(tmp_path / "prepared").columns["target"].num_ids > 600


def test_batches_are_read_in_any_order():
    square = np.eye(2)
    batches = BatchSequence(lambda number: ([number], square), 3)
    assert (len(batches), batches.num_batches) == (3, 3)
    assert [int(ids[0]) for ids, _ in (batches[2], batches[0])] == [2, 0]
    assert all(isinstance(part, np.ndarray) for part in keras.tree.flatten(batches[1]))
    for number in (3, -1):
        with pytest.raises(IndexError, match=f"There is no batch {number}"):
            batches[number]
    batches[1][1][:] = 7
    assert batches and batches[1][1].max() == 1, "a batch is a copy"
    endless = BatchSequence(lambda number: np.array(number))
    assert endless and endless.num_batches is None and endless[10**12] == 10**12
    with pytest.raises(TypeError, match="no last batch"):
        len(endless)
