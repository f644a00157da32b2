"""Checkpoints that are damaged, of another training, or in the way."""

import pathlib
import random
import re

import keras
import numpy as np
import pytest

from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.training import Model
from keras_transformer.training.checkpoints import (
    Checkpoints,
    average_checkpoints,
)

from .conftest import (
    DIM,
    IDS,
    LABELS,
    VOCABULARY_SIZE,
    assert_weights_equal,
    compiled,
    language_model,
    needs_tensorflow,
    train_and_save,
    weights_of,
)

pytestmark = needs_tensorflow
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "wider",
            r"No checkpoint can be used.*another folder.*3 variables for weights, the model has 1",
        ),
        ("shallower", r"it has 4 variables for weights, the model has 3"),
        ("other optimizer", r"it has 8 variables for optimizer, the model has 2"),
        ("averages", r"it has 0 variables for averages, the model has 3"),
        ("narrower", r"weights/0 has the shape \[11, 3\] there, \[13, 3\] here"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, case, expected):
    if case == "wider":
        ids = keras.Input((None,), dtype="int32")
        other = compiled(type(language_model())(ids, keras.layers.Embedding(11, 5)(ids)))
    elif case == "shallower":
        other = compiled(language_model(tied=True))
    elif case == "narrower":
        ids = keras.Input((None,), dtype="int32")
        table = TokenEmbedding(VOCABULARY_SIZE + 2, DIM)
        hidden = keras.layers.Dense(DIM, "tanh")(table(ids))
        other = compiled(Model(ids, table(hidden, reverse=True)))
    elif case == "averages":
        other = compiled(ema_momentum=0.75)
    else:
        other = compiled(optimizer=keras.optimizers.SGD(0.1))
    train_and_save(tmp_path, 1, compiled(language_model(tied=case != "shallower")))
    before = weights_of(other)
    with pytest.raises(ValueError, match=expected):
        Checkpoints(tmp_path, other).restore()
    assert_weights_equal(other, before, atol=0, what="nothing is restored in part")


def damage(path, how):
    draw, content = random.Random(3), bytearray(path.read_bytes())
    place = draw.randrange(len(content) // 10, len(content) // 2)  # among the values
    if how == "cut off":
        content = content[:place]
    elif how == "a bit":
        content[place] ^= 1 << draw.randrange(8)
    else:
        content = b""
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut off", "a bit", "empty"])
def test_of_a_damaged_checkpoint_the_one_before_is_used(tmp_path, caplog, how):
    _, weights = train_and_save(tmp_path, 3)
    newest = tmp_path / "step-3.npz"
    damage(newest, how)
    content = newest.read_bytes()
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model, every=1, keep=3)
    assert checkpoints.restore() == 2, "the last good one"
    assert_weights_equal(model, weights[1], atol=0)
    [line] = caplog.messages
    assert re.fullmatch(
        r"\S*step-3.npz is damaged: .*\. Kept as \S*step-3.npz.aside. Resuming from \S*step-2.npz.",
        line,
    )
    assert (tmp_path / "step-3.npz.aside").read_bytes() == content, "nothing is deleted"
    model.train_step((IDS, LABELS))
    checkpoints.save()
    assert Checkpoints(tmp_path, compiled()).restore() == 3, "saved anew"
    assert (tmp_path / "step-3.npz.aside").read_bytes() == content, "nor overwritten"


def test_checkpoints_are_put_aside_under_names_that_are_free(tmp_path):
    train_and_save(tmp_path, 3)
    for number in ("", "1"):
        damage(tmp_path / "step-3.npz", "cut off")
        model = compiled()
        checkpoints = Checkpoints(tmp_path, model, every=1, keep=3)
        assert checkpoints.restore() == 2
        assert (tmp_path / f"step-3.npz.aside{number}").exists()
        model.train_step((IDS, LABELS))
        checkpoints.save()


def test_a_checkpoint_of_another_format_is_refused_and_stays(tmp_path, monkeypatch):
    train_and_save(tmp_path, 1)
    model = compiled()
    monkeypatch.setattr("keras_transformer.training.checkpoint_files.FORMAT", 4)
    checkpoints = Checkpoints(tmp_path, model, every=1, keep=2)
    model.optimizer.iterations.assign(5)
    checkpoints.save()
    monkeypatch.undo()
    said = r"step-5.npz must have the format 1\. Received: 4\.$"
    with pytest.raises(ValueError, match=said):
        Checkpoints(tmp_path, model).restore()
    with pytest.raises(ValueError, match=said):
        average_checkpoints(tmp_path, model, 2)
    assert (tmp_path / "step-5.npz").exists()


def test_damaged_checkpoints_alone_are_a_clear_error(tmp_path):
    train_and_save(tmp_path, 1)
    damage(tmp_path / "step-1.npz", "cut off")
    with pytest.raises(
        ValueError,
        match=r"No checkpoint can be used.*to restart at step 0, delete .*step-1.npz",
    ):
        Checkpoints(tmp_path, compiled()).restore()
    assert (tmp_path / "step-1.npz").exists()


@pytest.mark.slow
@pytest.mark.parametrize("character", list("[]*?\\ \n'\"%{}$") + ["[a]", "**", "\udcff"])
def test_a_folder_may_have_any_name(tmp_path, character):
    folder = tmp_path / f"a{character}b" / f"{character}c"
    model, weights = train_and_save(folder, 2)
    restored = compiled()
    assert Checkpoints(folder, restored).restore() == 2
    assert_weights_equal(restored, weights[1], atol=0)
    assert average_checkpoints(folder, model, count=2) == [1, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["step-1.npz", "step-2.npz"]


def test_a_checkpoint_that_is_there_is_never_overwritten(tmp_path):
    train_and_save(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for steps in (1, 3):  # of a training that has not called restore
        model = compiled()
        checkpoints = Checkpoints(tmp_path, model, every=1)
        model.optimizer.iterations.assign(steps)
        with pytest.raises(
            ValueError, match=rf"checkpoint of step 3, which this run, at step {steps}, did not"
        ):
            checkpoints.save()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_of_two_trainings_in_one_folder_the_second_is_stopped(tmp_path):
    first, second = compiled(), compiled()
    ours, theirs = (Checkpoints(tmp_path, model, every=1) for model in (first, second))
    assert ours.restore() == theirs.restore() == 0
    first.train_step((IDS, LABELS))
    second.train_step((IDS, LABELS))
    ours.save()
    with pytest.raises(ValueError, match=r"end the other process that trains into this one"):
        theirs.save()


@pytest.mark.parametrize("part", ["weight", "optimizer", "average"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_saved(tmp_path, part, value):
    """The loss of a step is that before its update, so it does not tell."""
    model = compiled(ema_momentum=0.75)
    checkpoints = Checkpoints(tmp_path, model, every=1)
    model.train_step((IDS, LABELS))
    checkpoints.save()
    model.train_step((IDS, LABELS))
    variable = {
        "weight": model.trainable_variables[1].value,
        "optimizer": model.optimizer.variables[-1].value,
        "average": model._step.average.values[0],
    }[part]
    variable.assign(np.where(np.arange(variable.shape[-1]) == 1, value, variable.numpy()))
    with pytest.raises(
        FloatingPointError,
        match=r"not finite after step 2, so nothing is saved. Lower the learning",
    ):
        checkpoints.on_epoch_end(0)
        checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1.npz"]


class Passing(keras.layers.Layer):
    supports_masking = True

    def call(self, inputs):
        return inputs


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint32", "bool"])
def test_variables_of_all_types_come_back(tmp_path, dtype):
    def model_with(value):
        model = language_model()
        layer = Passing()
        extra = layer.add_weight(shape=(3, 2), dtype=dtype, trainable=False)
        extra.assign(np.full((3, 2), value))
        return compiled(type(model)(model.inputs, layer(model.outputs[0]))), extra

    model, variable = model_with(1)
    assert any(weight is variable for weight in model.weights)
    Checkpoints(tmp_path, model).save()
    restored, other = model_with(0)
    Checkpoints(tmp_path, restored).restore()
    assert other.value.dtype.name == dtype and (other.numpy() == np.ones((3, 2))).all()
    average_checkpoints(tmp_path, restored, count=1)
    assert (other.numpy() == np.ones((3, 2))).all()


def test_a_type_that_differs_is_another_training(tmp_path):
    Checkpoints(tmp_path, compiled(language_model(dtype="float32"))).save()
    with pytest.raises(ValueError, match=r"weights/0 has the type float32 there, bfloat16 here"):
        Checkpoints(tmp_path, compiled(language_model(dtype="bfloat16"))).restore()


def test_an_average_leaves_out_what_is_damaged(tmp_path, caplog):
    model, weights = train_and_save(tmp_path, 3)
    damage(tmp_path / "step-2.npz", "a bit")
    assert average_checkpoints(tmp_path, model, count=3) == [1, 3]
    mean = [(a + b) / 2 for a, b in zip(weights[0], weights[2], strict=True)]
    assert_weights_equal(model, mean)
    [line] = caplog.messages
    assert re.fullmatch(r"\S*step-2.npz is damaged: .*\. Averaging without it\.", line)
