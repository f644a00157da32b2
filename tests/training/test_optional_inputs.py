"""What a batch may bring or leave out: read by some layers, refused where nothing reads it."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.reference import array

SMALL = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
IDS = np.array([[5, 6, 3, 7, 8]])
BATCH = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 0, 1, 1]])}


@pytest.fixture
def model():
    keras.utils.set_random_seed(3)
    return kt.language_model(11, **SMALL)


def test_a_batch_that_brings_nothing_is_as_before(model):
    alone = array(model(IDS))
    together = array(model(BATCH))
    assert np.abs(together - alone).max() > 1e-3
    np.testing.assert_array_equal(together[:, :3], alone[:, :3])
    np.testing.assert_array_equal(array(model(IDS)), alone)
    np.testing.assert_array_equal(array(model({"token_ids": IDS})), alone)
    assert model.input is model.inputs[0], "data may be an array"


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_segments_reach_a_model_by_any_method(method, model):
    plain, labels = kt.language_model(11, **SMALL), IDS
    plain.set_weights(model.get_weights())
    results = []
    for each, batch in ((model, BATCH), (plain, IDS)):
        each.compile(keras.optimizers.SGD(0.5), kt.TokenCrossentropy())
        if method == "fit":
            each.fit(batch, labels, verbose=0)
            results.append(np.concatenate([array(w).ravel() for w in each.weights]))
        elif method == "evaluate":
            results.append(each.evaluate(batch, labels, verbose=0))
        else:
            results.append(each.predict(batch, verbose=0))
    assert np.abs(results[0] - results[1]).max() > 1e-5
    if method == "predict":
        np.testing.assert_allclose(results[0], array(model(BATCH)), atol=1e-5)


def test_a_model_within_another_reads_nothing_of_its_batch(model):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    segments = kt.training.OptionalInput(name="segment_ids")(ids)
    vectors = keras.layers.Embedding(11, 6, embeddings_initializer="zeros")(ids)
    counted = kt.SinusoidalEncoding()(vectors, segments=segments)
    outer = kt.Model(ids, [model(ids), counted])
    logits, positions = outer(BATCH)
    np.testing.assert_array_equal(array(logits), array(model(IDS)))
    np.testing.assert_array_equal(array(positions)[0, 3], array(positions)[0, 0])


SPARSE = {"pattern": "strided", "block_size": 4}
UNABLE = {
    "sparse": lambda: kt.language_model(11, attention_pattern=SPARSE, **SMALL),
    "transformer_xl": lambda: kt.transformer_xl(11, batch_size=1, **SMALL),
    "classifier": lambda: kt.classifier(11, 3, **SMALL),
}


@pytest.mark.parametrize("name", UNABLE)
def test_models_that_mix_the_texts_of_a_row_refuse_packed_batches(name):
    model = UNABLE[name]()
    with pytest.raises(ValueError, match=r"several texts, .* would mix.*Received: segment_ids for"):
        model(BATCH)
    model.compile("sgd", kt.TokenCrossentropy())
    with pytest.raises(ValueError, match="hold several texts"):
        model.fit(BATCH, IDS % 3, verbose=0)


def test_one_side_without_segments_is_refused():
    model = kt.translation(11, size="tiny", **SMALL)
    batch = {"source_ids": IDS, "target_ids": IDS, "source_segment_ids": IDS * 0}
    with pytest.raises(ValueError, match=r"both the targets and the source must have segments"):
        model(batch)


def test_symbolic_segments_are_refused(model):
    symbolic = {name: keras.Input((None,), dtype="int32", name=name) for name in BATCH}
    with pytest.raises(ValueError, match=r"within another reads no segments.*symbolic segment_ids"):
        model(symbolic)


def test_segments_of_another_length_or_of_one_side_are_refused_by_the_stacks():
    vectors, segments = keras.ops.zeros((1, 3, 6)), keras.ops.zeros((1, 4), "int32")
    sizes = {"num_heads": 2, "intermediate_dim": 7}
    with pytest.raises(ValueError, match=r"segments must have the shape \(batch, 3\)"):
        kt.Encoder(1, **sizes)(vectors, segments=segments)
    with pytest.raises(ValueError, match=r"source_segments must have the shape \(batch, 3\)"):
        kt.Decoder(1, **sizes)(vectors, vectors, segments=segments[:, :3], source_segments=segments)
    with pytest.raises(ValueError, match=r"both .*must have segments. Received: source_segments"):
        kt.Decoder(1, **sizes)(vectors, vectors, segments=segments[:, :3])
    with pytest.raises(ValueError, match=r"Masks of a source need one.*source_segments"):
        kt.Decoder(1, **sizes)(vectors, source_segments=segments)
