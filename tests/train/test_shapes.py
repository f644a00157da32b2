"""What is said of batches in few shapes, and which steps are compiled by themselves."""

import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from train import loop, translation
from train.pretraining import PretrainingConfig
from train.translation import TranslationConfig

from .conftest import SETTINGS


@pytest.mark.parametrize(
    ("shapes", "config", "expected"),
    [
        (
            [[8, 4, 4], [6, 8, 8]],
            TranslationConfig(shapes=2),
            r"Give a --row-multiple that is a multiple of 4",
        ),
        (
            None,
            PretrainingConfig(shapes=2, batch_size=6),
            r"Give a --batch-size that is a multiple of 4",
        ),
    ],
)
def test_rows_that_do_not_divide_are_refused_with_the_flag_to_give(shapes, config, expected):
    batches = types.SimpleNamespace(**({"shapes": np.array(shapes)} if shapes else {}))
    four = types.SimpleNamespace(num_replicas_in_sync=4)
    with pytest.raises(ValueError, match=expected + r".*4 replicas, a batch of 6 rows\."):
        loop.check_rows(config, batches, four)
    loop.check_rows(config, batches, types.SimpleNamespace(num_replicas_in_sync=2))


def test_flags_that_a_message_names_are_those_of_the_command():
    assert "row_multiple" in TranslationConfig.model_fields
    assert "batch_size" not in TranslationConfig.model_fields


@pytest.mark.slow
def test_one_shape_for_a_long_tail_is_told_in_one_line(tmp_path, caplog):
    lines = ["a b\tb a\n"] * 60 + ["a b c d e f g h\th g f e d c b a\n"]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    pairs = [f"--tsv={tmp_path}/pairs.tsv", f"--valid-tsv={tmp_path}/pairs.tsv"]
    small = [
        *SETTINGS,
        "--vocabulary-size=270",
        "--steps=1",
        "--average=1",
        f"--run={tmp_path}/run",
    ]
    translation.main([*pairs, *small, "--shapes=1"])
    [message] = [message for message in caplog.messages if "padding" in message]
    assert re.fullmatch(
        r"\d\d % of the batches is padding with at most 1 shape\. Allow .*", message
    )


@pytest.mark.parametrize(("kinds", "expected"), [(["GPU"], True), ([], False)])
def test_steps_are_compiled_by_themselves_where_there_is_a_gpu(monkeypatch, kinds, expected):
    ids = keras.Input((None,), dtype="int32")
    model = kt.training.Model(ids, keras.layers.Dense(3)(keras.layers.Embedding(3, 2)(ids)))
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind=None: [k for k in kinds if k == kind]
    )
    model.compile("sgd", kt.TokenCrossentropy())
    assert model.jit_compile is expected
    model.compile("sgd", kt.TokenCrossentropy(), run_eagerly=True)
    assert model.jit_compile is False, "eager steps are not"
