"""BERT against KerasHub's and Hugging Face's, from the same random weights, and its heads."""

import functools

import keras
import numpy as np
import pytest

from keras_transformer.models.bert_models import (
    SIZES,
    VectorsAt,
    bert,
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
)
from keras_transformer.training.losses import PretrainingLoss, TokenCrossentropy
from keras_transformer.training.metrics import TokenAccuracy
from tests.reference import array, exact, fill

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a loss of two outputs needs our train step"
)
TINY = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
VOCABULARY, LONGEST = 29, 13
TOKENS = np.array([[2, 9, 4, 3, 8, 3, 0], [2, 17, 28, 8, 3, 6, 3], [2, 3, 5, 3, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 0], [0] * 5 + [1, 1], [0, 0, 1, 1, 0, 0, 0]], "int32")
POSITIONS = np.array([[2, 4], [6, 1], [2, 0]], "int32")
INPUTS = {"token_ids": TOKENS, "segment_ids": SEGMENTS}
ALL_INPUTS = {**INPUTS, "masked_positions": POSITIONS}
REAL = TOKENS != 0
LABELS = {
    "masked_tokens": np.array([[4, 8], [3, 17], [5, 0]], "int32"),
    # Three examples, five masked tokens.
    "masked_weights": np.array([[0.6, 0.6], [0.6, 0.6], [0.6, 0]], "float32"),
    "next_sentence": np.array([0, 1, 1], "int32"),
}


def backbone_of(**options):
    return bert(VOCABULARY, max_sequence_length=LONGEST, **{**TINY, **options})


def arrays(outputs):
    return {name: array(output) for name, output in outputs.items()}


def test_padding_does_not_change_real_positions():
    model = fill(backbone_of())
    alone = {name: ids[2:, :4] for name, ids in INPUTS.items()}
    in_batch, alone = arrays(model(INPUTS)), arrays(model(alone))
    np.testing.assert_allclose(in_batch["vectors"][2, :4], alone["vectors"][0], atol=1e-5)
    np.testing.assert_allclose(in_batch["pooled"][2], alone["pooled"][0], atol=1e-5)


def test_segments_and_positions_matter():
    model = fill(backbone_of())
    outputs = arrays(model(INPUTS))["vectors"]
    other = arrays(model({**INPUTS, "segment_ids": 1 - SEGMENTS}))["vectors"]
    assert np.abs(other - outputs).max() > 1e-2, "segments"
    order = [0, 2, 1, 3, 4, 5, 6]
    swapped = {name: ids[1:2, order] for name, ids in INPUTS.items()}
    other = arrays(model(swapped))["vectors"][0, order]
    assert np.abs(other - outputs[1]).max() > 1e-3, "positions"


def test_attention_scores_never_look_at_padding():
    backbone = fill(backbone_of())
    scores = bert_classifier(backbone, 2).attention_scores(TOKENS, SEGMENTS)["encoder"]
    assert [tuple(layer.shape) for layer in scores] == [(3, 3, 7, 7)] * 2
    for layer in map(array, scores):
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        assert (layer.swapaxes(1, 3)[~REAL] == 0).all() and (layer.swapaxes(1, 3)[REAL] > 0).all()
    other = backbone.attention_scores(TOKENS, 1 - SEGMENTS)["encoder"]
    assert np.abs(array(other[0]) - array(scores[0])).max() > 1e-3, "segments matter"


def test_a_masked_token_is_scored_at_its_position_only():
    model = fill(bert_pretraining(backbone_of()))
    together = arrays(model(ALL_INPUTS))["masked_tokens"]
    swapped = arrays(model({**INPUTS, "masked_positions": POSITIONS[:, ::-1]}))["masked_tokens"]
    np.testing.assert_allclose(swapped[:, ::-1], together, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_classifier_may_pool_all_vectors_but_padding(pooling):
    backbone = backbone_of()
    model = fill(bert_classifier(backbone, 3, pooling=pooling))
    vectors = arrays(backbone(INPUTS))["vectors"]
    pool = {"mean": np.mean, "max": np.max}[pooling]
    pooled = [pool(row[real], axis=0) for row, real in zip(vectors, REAL, strict=True)]
    kernel, bias = (array(weight) for weight in model.get_layer("head").weights)
    np.testing.assert_allclose(array(model(INPUTS)), np.array(pooled) @ kernel + bias, atol=1e-5)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match=r"pooling must be one of .*Received: pooling='last'"):
        bert_classifier(backbone_of(), 3, pooling="last")


def every_head(backbone):
    return {
        "pretraining": (bert_pretraining(backbone), ALL_INPUTS),
        "classifier": (bert_classifier(backbone, 3), INPUTS),
        "classifier of the mean": (bert_classifier(backbone, 3, pooling="mean"), INPUTS),
        "token labeller": (bert_token_labeller(backbone, 5), INPUTS),
        "backbone": (backbone, INPUTS),
    }


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_saved_models_are_the_same_after_reloading(dtype, tmp_path):
    for name, (model, inputs) in every_head(backbone_of(dtype=dtype)).items():
        fill(model).save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert type(loaded) is type(model), f"{name}: with its own train step"
        assert len(loaded.weights) == len(model.weights), f"{name}: embeddings stay tied"
        before, after = (keras.tree.flatten(m(inputs)) for m in (model, loaded))
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(array(one), array(other), err_msg=name)
            kind = "float32" if name != "backbone" else model.get_layer("encoder").compute_dtype
            assert keras.backend.standardize_dtype(one.dtype) == kind, f"{name}: dtype"


def test_bfloat16_gives_about_the_same_logits():
    expected = fill(bert_pretraining(backbone_of()))
    model = bert_pretraining(backbone_of(dtype="mixed_bfloat16"))
    model.set_weights(expected.get_weights())
    for name, logits in arrays(expected(ALL_INPUTS)).items():
        computed = arrays(model(ALL_INPUTS))[name]
        np.testing.assert_allclose(computed, logits, atol=0.1 * np.abs(logits).max(), err_msg=name)


@needs_tensorflow
def test_heads_share_the_backbone_and_train_it():
    backbone = backbone_of(dropout=0.0, attention_dropout=0.0)
    pretraining, classifier = bert_pretraining(backbone), bert_classifier(backbone, 3, dropout=0.0)
    before = array(classifier(INPUTS))
    losses = []
    for weight in (1.0, 0.25):
        pretraining.compile("sgd", PretrainingLoss(), weight)
        losses.append(float(pretraining.test_on_batch(ALL_INPUTS, LABELS)))
    assert losses[1] == pytest.approx(losses[0] / 4, rel=1e-5), "a weight for both losses"
    pretraining.train_on_batch(ALL_INPUTS, LABELS)
    assert np.abs(array(classifier(INPUTS)) - before).max() > 1e-4, "one step of another head"


def test_fine_tuning_goes_on_from_a_reloaded_backbone(tmp_path):
    backbone = fill(backbone_of())
    backbone.save(tmp_path / "bert.keras")
    loaded = keras.saving.load_model(tmp_path / "bert.keras")
    labeller = bert_token_labeller(loaded, 5)
    expected, computed = backbone(INPUTS)["vectors"], labeller.get_layer("encoder").output
    computed = keras.Model(labeller.input, computed)(INPUTS)
    np.testing.assert_array_equal(array(computed), array(expected))


def gradient_reaches_all(model, inputs, labels, loss):
    fill(model)
    before = [exact(weight) for weight in model.trainable_weights]
    model.compile("sgd", loss=loss, jit_compile=False)
    history = model.fit(inputs, labels, verbose=0)
    assert np.isfinite(history.history["loss"][0]), "the loss is a number"
    for old, weight in zip(before, model.trainable_weights, strict=True):
        assert (exact(weight) != old).any(), f"a gradient reaches {weight.path}"


@needs_tensorflow
@pytest.mark.slow
def test_one_fit_step_reaches_every_weight():
    labels = np.where(REAL, TOKENS % 4 + 1, 0)
    backbone, tokens = functools.partial(backbone_of, num_layers=1), TokenCrossentropy()
    gradient_reaches_all(bert_pretraining(backbone()), ALL_INPUTS, LABELS, PretrainingLoss())
    classifier = bert_classifier(backbone(), 3)
    gradient_reaches_all(classifier, INPUTS, np.array([2, 0, 1]), TokenCrossentropy(pad_id=-1))
    gradient_reaches_all(bert_token_labeller(backbone(), 5), INPUTS, labels, tokens)


@pytest.mark.slow
@needs_tensorflow
def test_the_pretraining_heads_learn_a_few_examples_by_heart():
    model = bert_pretraining(backbone_of(num_layers=1, hidden_dim=24, num_heads=2, dropout=0.0))
    accuracies = [[TokenAccuracy()], [TokenAccuracy(pad_id=-1)]]
    model.compile(keras.optimizers.Adam(0.01), loss=PretrainingLoss(), metrics=accuracies)
    first = model.evaluate(ALL_INPUTS, LABELS, verbose=0, return_dict=True)
    np.testing.assert_allclose(first["loss"], np.log(VOCABULARY) + np.log(2), rtol=0.5)
    model.fit(ALL_INPUTS, LABELS, epochs=60, verbose=0)
    last = model.evaluate(ALL_INPUTS, LABELS, verbose=0, return_dict=True)
    assert last["loss"] < 0.1, "both losses"
    assert last["masked_tokens_token_accuracy"] == last["next_sentence_token_accuracy"] == 1


def test_the_bias_of_masked_tokens_starts_at_their_frequencies():
    counts = np.random.default_rng(3).integers(0, 1000, VOCABULARY)
    bias = bert_pretraining(backbone_of(), counts).get_layer("masked_token_bias").bias
    expected = (counts + 1) / (counts + 1).sum()
    np.testing.assert_allclose(np.exp(exact(bias)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="shape"):
        bert_pretraining(backbone_of(), counts[1:])


@pytest.mark.parametrize("pooling", ["first", "mean", "max"])
def test_a_text_with_tokens_dropped_is_the_text_with_padding_there(pooling):
    backbone = fill(backbone_of(token_dropout=0.5, dropout=0.0, attention_dropout=0.0))
    model = bert_classifier(backbone, 3, dropout=0.0, pooling=pooling)
    kept_of = keras.Model(backbone.input, backbone.get_layer("token_dropout").output)
    generator = backbone.get_layer("token_dropout").seed_generator
    state = exact(generator.state)
    kept = array(kept_of(INPUTS, training=True))
    generator.state.assign(state)
    assert 0 < np.count_nonzero(kept != TOKENS) < np.count_nonzero(REAL), "some are dropped"
    padded = model({**INPUTS, "token_ids": kept}, training=False)
    np.testing.assert_allclose(array(model(INPUTS, training=True)), array(padded), atol=1e-6)


def test_dropout_acts_in_training_only():
    for name, (model, inputs) in every_head(backbone_of(dropout=0.5)).items():
        calls = [model(inputs), model(inputs, training=False), model(inputs, training=True)]
        plain, again, noisy = (array(keras.tree.flatten(outputs)[0]) for outputs in calls)
        np.testing.assert_array_equal(plain, again, err_msg=name)
        assert np.abs(noisy - plain).max() > 1e-3, name


def number_of_weights(size, vocabulary):
    """Of the backbone, by the paper's formulas, nothing allocated."""
    hidden, intermediate = size["hidden_dim"], size["intermediate_dim"]
    attention, norm = 4 * (hidden * hidden + hidden), 2 * hidden
    feed_forward = 2 * hidden * intermediate + intermediate + hidden
    embeddings = (vocabulary + 512 + 2) * hidden + norm
    pooler = hidden * hidden + hidden
    return size["num_layers"] * (attention + feed_forward + 2 * norm) + embeddings + pooler


@pytest.mark.parametrize(
    ("size", "published"),
    # Devlin et al. 2018, section 3; Turc et al. 2019, as counted with the released models.
    [("base", 110e6), ("large", 340e6), ("small", 29.1e6), ("mini", 11.3e6), ("tiny", 4.4e6)],
)
def test_sizes_have_the_published_number_of_weights(size, published):
    counted = number_of_weights(SIZES[size], vocabulary=30522)
    np.testing.assert_allclose(counted, published, rtol=0.02)
    assert SIZES[size]["hidden_dim"] == 64 * SIZES[size]["num_heads"], "heads are 64 wide"


def test_a_backbone_has_the_weights_of_the_formula():
    counted = bert(VOCABULARY, **TINY).count_params()
    assert counted == number_of_weights(TINY, VOCABULARY)


def test_the_normalisations_have_the_epsilon_of_the_released_models():
    for model, _ in every_head(backbone_of()).values():
        layers = [part for part in model._flatten_layers() if "norm" in part.name]
        norms = [part for part in layers if isinstance(part, keras.layers.LayerNormalization)]
        assert len(norms) >= 5 and {norm.epsilon for norm in norms} == {1e-12}


def test_unknown_sizes_and_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"one of tiny, .*large. Received: size='huge'"):
        bert(11, size="huge")
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        backbone_of(hidden_dim=8)
    with pytest.raises(ValueError, match="depth"):
        backbone_of(depth=3)


def test_positions_that_a_row_does_not_have_give_no_vector_of_another_row():
    vectors = np.arange(6.0).reshape(2, 3, 1)
    found = array(VectorsAt()(vectors, np.array([[3, 2], [0, -1]])))[..., 0]
    np.testing.assert_array_equal(found, [[np.nan, 2.0], [3.0, np.nan]])
