import keras
import numpy as np
import pytest

from keras_transformer.models.decoder_only import SIZES, language_model
from keras_transformer.training import TokenCrossentropy
from tests.reference import array, fill

TINY = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
TOKENS = np.array([[5, 0, 4, 3, 10], [7, 7, 1, 8, 0]], "int32")  # 0 is a token as any other
OPTIONS = {
    "sinusoids": {},
    "learned positions": {"max_sequence_length": 5, "scale_embedding": False},
    "post-norm": {"normalize_first": False, "activation": "relu"},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
    "bfloat16": {"dtype": "bfloat16", "max_sequence_length": 7},
}


def model_of(**options):
    return fill(language_model(11, **{**TINY, **options}))


def steps(model, token_ids):
    """Logits (batch, length, vocabulary), a token at a time."""
    cache, logits = model.start_cache(len(token_ids)), []
    for position in range(token_ids.shape[1]):
        newest = keras.ops.array(token_ids[:, position : position + 1])
        parents = keras.ops.zeros_like(newest)
        scores, cache = model.step(newest, parents, position, cache)
        logits.append(array(scores)[:, 0])
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("options", OPTIONS)
def test_cached_steps_equal_one_pass(options):
    model = model_of(**OPTIONS[options])
    tolerance = 0.5 if "bfloat16" in options else 1e-5
    np.testing.assert_allclose(steps(model, TOKENS), array(model(TOKENS)), atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_model_is_the_same_after_reloading(options, tmp_path):
    model = model_of(**OPTIONS[options])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model), "with its own train step"
    np.testing.assert_array_equal(array(loaded(TOKENS)), array(model(TOKENS)))
    expected = array(model(TOKENS))
    tolerance = 0.5 if "bfloat16" in options else 1e-5
    np.testing.assert_allclose(steps(loaded, TOKENS), expected, atol=tolerance)


def test_future_tokens_do_not_change_past_logits():
    model = model_of()
    changed = np.concatenate([TOKENS[:, :3], (TOKENS[:, 3:] + 1) % 11], axis=1)
    before, after = array(model(TOKENS)), array(model(changed))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, err_msg="the past")
    assert np.abs(after - before)[:, 3:].max() > 1e-3, "the future itself"


def test_the_token_0_is_seen_as_any_other():
    model = model_of()
    changed = np.where(TOKENS == 0, 9, TOKENS)
    difference = np.abs(array(model(TOKENS)) - array(model(changed)))
    assert (difference[0, 1:] > 1e-4).any(axis=-1).all(), "all later positions see it"


def test_attention_scores_look_back_only():
    scores = model_of().attention_scores(TOKENS)["decoder"]
    assert [tuple(layer.shape) for layer in scores] == [(2, 3, 5, 5)] * 2
    for layer in map(array, scores):
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(np.triu(layer, 1), 0)


@pytest.mark.slow
def test_fit_learns_to_count():
    keras.utils.set_random_seed(3)
    model = language_model(7, **{**TINY, "num_layers": 1, "hidden_dim": 12})
    model.compile(keras.optimizers.Adam(0.01), TokenCrossentropy())
    tokens = (np.arange(8)[None] + np.arange(6)[:, None]) % 6 + 1
    history = model.fit(tokens[:, :-1], tokens[:, 1:], epochs=60, verbose=0).history["loss"]
    assert history[0] > 1.5 and history[-1] < 0.1


def test_the_sizes_have_the_published_numbers_of_parameters():
    """nanoGPT counts 0.80 and 10.65 million, without positions and biases, for 65 characters."""
    for size, millions in (("small", 0.80), ("medium", 10.65)):
        model = language_model(65, size=size)
        assert model.count_params() == pytest.approx(millions * 1e6, rel=0.01)
    assert set(SIZES) == {"small", "medium"}


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match=r"one of small, medium\. Received: size='x'"):
        language_model(11, size="x")
