import keras
import numpy as np
import pytest

from keras_transformer.models.encoder_only import classifier
from tests.reference import array, exact, fill

TINY = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
TOKENS = np.array([[5, 9, 4, 3, 10], [7, 7, 0, 0, 0]], "int32")
OPTIONS = {
    "mean": {},
    "max": {"pooling": "max", "normalize_first": False},
    "first": {"pooling": "first", "token_dropout": 0.5},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
}


def model_of(**options):
    return fill(classifier(11, 3, **{**TINY, **options}))


@pytest.mark.parametrize("options", OPTIONS)
def test_padding_does_not_change_the_logits(options):
    model = model_of(**OPTIONS[options])
    together = array(model(TOKENS))
    assert together.shape == (2, 3)
    tolerance = 0.2 if "bfloat16" in options else 1e-5
    np.testing.assert_allclose(together[1:], array(model(TOKENS[1:, :2])), atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_model_is_the_same_after_reloading(options, tmp_path):
    model = model_of(**OPTIONS[options])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model), "with its own train step"
    np.testing.assert_array_equal(array(loaded(TOKENS)), array(model(TOKENS)))


@pytest.mark.parametrize("pooling", ["first", "mean", "max"])
def test_a_text_with_tokens_dropped_is_the_text_with_padding_there(pooling):
    model = model_of(token_dropout=0.5, dropout=0.0, pooling=pooling)
    layer = model.get_layer("token_dropout")
    np.testing.assert_array_equal(array(layer(TOKENS)), TOKENS, err_msg="none at rest")
    state = exact(layer.seed_generator.state)
    kept = array(layer(TOKENS, training=True))
    layer.seed_generator.state.assign(state)
    assert 0 < np.count_nonzero(kept != TOKENS) < np.count_nonzero(TOKENS), "some are dropped"
    padded = model(kept, training=False)
    np.testing.assert_allclose(array(model(TOKENS, training=True)), array(padded), atol=1e-6)


def test_attention_scores_never_look_at_padding():
    scores = model_of().attention_scores(TOKENS)["encoder"]
    assert [tuple(layer.shape) for layer in scores] == [(2, 3, 5, 5)] * 2
    for layer in map(array, scores):
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(layer[1, :, :, 2:], 0)


@pytest.mark.slow
def test_fit_learns_which_token_is_there():
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(5)
    tokens = generator.integers(4, 11, (61, 7)).astype("int32")
    tokens[:, 5:] = np.where(generator.random((61, 1)) < 0.5, 0, tokens[:, 5:])
    labels = (tokens == 9).any(axis=1).astype("int32")
    model = classifier(11, 2, **{**TINY, "num_layers": 1}, pooling="max")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["accuracy"])
    history = model.fit(tokens, labels, epochs=80, verbose=0).history
    assert history["accuracy"][-1] > 0.95


def test_unknown_sizes_and_poolings_are_refused():
    with pytest.raises(ValueError, match=r"one of small, former\. Received: size='x'"):
        classifier(11, 2, size="x")
    with pytest.raises(ValueError, match="Received: pooling='last'"):
        classifier(11, 2, pooling="last")
