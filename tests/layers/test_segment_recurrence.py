import json

import keras
import numpy as np
import pytest

from keras_transformer.layers.segment_recurrence import SegmentRecurrence
from keras_transformer.layers.transformer_xl import TransformerXL
from tests.reference import array, fill, normal, truth

POLICIES = pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
DIM, START, PADDING = 6, 2, 0


def built(memory_length=7, start_id=START, rows=3, **arguments):
    stack = TransformerXL(num_layers=2, num_heads=3, intermediate_dim=5, **arguments)
    layer = SegmentRecurrence(stack, rows, memory_length, start_id)
    layer(normal(rows, 5, DIM), np.ones((rows, 5), "int32"))
    fill(stack)
    return layer


def text(length=15, rows=3):
    """Vectors and ids of one document a row that began earlier."""
    return normal(rows, length, DIM), np.random.randint(3, 11, (rows, length)).astype("int32")


def alone(layer, vectors, ids):
    """What the layer says of a text that it reads by itself."""
    return array(layer(vectors, ids))


def carried(layer, vectors, ids, segment=5):
    """Outputs of training calls for one segment after another."""
    parts = [
        array(layer(vectors[:, i : i + segment], ids[:, i : i + segment], training=True))
        for i in range(0, ids.shape[1], segment)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("memory_length", [10, 23])
def test_with_enough_memory_segments_in_training_equal_one_long_pass(memory_length):
    layer, (vectors, ids) = built(memory_length), text()
    expected = alone(layer, vectors, ids)
    np.testing.assert_allclose(carried(layer, vectors, ids), expected, atol=1e-5)


@POLICIES
@pytest.mark.parametrize("memory_length", [1, 3, 7])
def test_training_carries_the_newest_of_the_memory(memory_length, dtype):
    layer, (vectors, ids) = built(memory_length, dtype=dtype), text()
    memory, parts = None, []
    for start in range(0, 15, 5):
        segment = keras.ops.cast(vectors[:, start : start + 5], layer.compute_dtype)
        outputs, memory = layer.advance(segment, ids[:, start : start + 5], memory)
        memory = [m[:, -memory_length:] for m in memory[0]], memory[1][:, -memory_length:]
        parts.append(array(outputs))
    expected = np.concatenate(parts, axis=1)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(carried(layer, vectors, ids), expected, atol=tolerance)
    if dtype == "float32":
        assert np.abs(expected - alone(layer, vectors, ids)).max() > 1e-3, "less than all of it"


def test_without_a_memory_each_segment_is_read_by_itself():
    layer, (vectors, ids) = built(memory_length=0), text()
    computed = carried(layer, vectors, ids)
    for start in range(0, 15, 5):
        expected = alone(layer, vectors[:, start : start + 5], ids[:, start : start + 5])
        np.testing.assert_allclose(computed[:, start : start + 5], expected, atol=1e-5)


@pytest.mark.parametrize("begin", [5, 7, 9, 10], ids="at {}".format)
def test_a_document_sees_nothing_of_the_one_before(begin):
    """It begins in one row, at the beginning, in the middle or at the end of a segment."""
    layer, (vectors, ids) = built(23), text()
    ids[1, begin] = START
    expected = alone(built_like(layer, start_id=None), vectors, ids)
    expected[1, begin:] = alone(layer, vectors[1:2, begin:], ids[1:2, begin:])
    np.testing.assert_allclose(alone(layer, vectors, ids), expected, atol=1e-5, err_msg="one pass")
    np.testing.assert_allclose(carried(layer, vectors, ids), expected, atol=1e-5)


def test_two_documents_may_begin_in_one_segment():
    layer, (vectors, ids) = built(23), text()
    ids[0, [6, 8]] = START
    computed = carried(layer, vectors, ids)[:1]
    for begin, end in ((0, 6), (6, 8), (8, 15)):
        expected = alone(layer, vectors[:1, begin:end], ids[:1, begin:end])
        np.testing.assert_allclose(computed[:, begin:end], expected, atol=1e-5)


def test_without_a_start_id_no_document_begins():
    layer, (vectors, ids) = built(23, start_id=None), text()
    other = np.where(np.arange(15) == 7, START, ids).astype("int32")
    np.testing.assert_array_equal(
        carried(layer, vectors, ids), carried(built_like(layer, start_id=None), vectors, other)
    )


def test_padding_is_neither_seen_nor_remembered():
    layer, (vectors, ids) = built(23), text()
    ids[2, 3:5] = PADDING
    ids[2, 5] = START
    computed = carried(layer, vectors, ids)[2:]
    np.testing.assert_allclose(
        computed[:, :3], alone(layer, vectors[2:, :3], ids[2:, :3]), atol=1e-5
    )
    np.testing.assert_allclose(
        computed[:, 5:], alone(layer, vectors[2:, 5:], ids[2:, 5:]), atol=1e-5
    )
    ids[2, 13:] = PADDING
    carried(layer, vectors, ids)
    remembered = truth(keras.ops.convert_to_tensor(layer._is_remembered))
    assert not remembered[2, -2:].any() and remembered[2, -10:-2].all()


def test_outside_of_training_nothing_is_read_nor_changed_and_rows_may_be_any():
    layer, (vectors, ids) = built(), text()
    before = alone(layer, vectors, ids)
    carried(layer, vectors, ids)
    state = [array(v) for v in layer.non_trainable_variables]
    np.testing.assert_array_equal(alone(layer, vectors, ids), before)
    assert layer(normal(7, 2, DIM), np.ones((7, 2), "int32")).shape == (7, 2, DIM)
    for variable, value in zip(layer.non_trainable_variables, state, strict=True):
        np.testing.assert_array_equal(array(variable), value)


def test_what_was_carried_can_be_forgotten():
    layer, (vectors, ids) = built(), text()
    first = carried(layer, vectors, ids)
    assert np.abs(carried(layer, vectors, ids) - first).max() > 1e-3, "it remembers"
    layer.forget()
    np.testing.assert_allclose(carried(layer, vectors, ids), first, atol=1e-6)
    carried(layer, np.nan * vectors, ids)
    layer.forget()
    np.testing.assert_allclose(carried(layer, vectors, ids), first, atol=1e-6, err_msg="NaN")


def test_fit_carries_the_memory_on_every_backend():
    layer, (vectors, ids) = built(), text()
    inputs = keras.Input((None, DIM)), keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(*inputs))
    model.compile(keras.optimizers.SGD(0.0), loss="mse", jit_compile=False)
    # Batch after batch of three rows: the segments of three texts.
    batches = [np.concatenate(np.split(x, 3, axis=1)) for x in (vectors, ids)]
    model.fit(batches, batches[0], batch_size=3, shuffle=False, verbose=0)
    after = [array(v) for v in layer.non_trainable_variables]
    layer.forget()
    carried(layer, vectors, ids)
    for value, variable in zip(after, layer.non_trainable_variables, strict=True):
        np.testing.assert_allclose(value, array(variable), atol=1e-5)
    assert truth(keras.ops.convert_to_tensor(layer._is_remembered)).all(), "all is remembered"


def test_what_is_carried_is_no_weight_and_in_no_file(tmp_path):
    layer, (vectors, ids) = built(), text()
    inputs = keras.Input((None, DIM)), keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(*inputs))
    carried(layer, vectors, ids)
    assert len(layer.weights) == len(layer.layer.weights) == len(layer.trainable_variables)
    assert len(layer.non_trainable_variables) == 2 + 1, "memories, and what of them is remembered"
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    np.testing.assert_array_equal(alone(loaded, vectors, ids), alone(layer, vectors, ids))
    layer.forget()
    np.testing.assert_allclose(
        carried(loaded, vectors, ids), carried(layer, vectors, ids), atol=1e-5, err_msg="afresh"
    )


def test_the_config_survives_json():
    config = built(
        memory_length=11, start_id=5, normalize_first=False, dtype="mixed_bfloat16"
    ).get_config()
    again = SegmentRecurrence.from_config(json.loads(json.dumps(config)))
    assert (again.batch_size, again.memory_length, again.start_id) == (3, 11, 5)
    assert again.layer.get_config() == config["layer"]["config"]
    assert again.compute_dtype == "bfloat16", "the dtype is that of the stack"


def test_sizes_and_rows_that_do_not_fit_are_refused():
    stack = TransformerXL(2, num_heads=3, intermediate_dim=5)
    for sizes in (0, 7), (3, -1):
        with pytest.raises(ValueError, match=r"(batch_size|memory_length) must be an integer"):
            SegmentRecurrence(stack, *sizes)
    with pytest.raises(ValueError, match=r"as many rows.*Received: 2 rows, batch_size=3"):
        built()(normal(2, 5, DIM), np.ones((2, 5), "int32"), training=True)


def built_like(layer, start_id=START):
    """A layer with the same weights and a memory of its own."""
    other = SegmentRecurrence(layer.layer, layer.batch_size, layer.memory_length, start_id)
    other(normal(3, 5, DIM), np.ones((3, 5), "int32"))
    return other
