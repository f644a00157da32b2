import keras
import numpy as np
import pytest

from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.training import (
    Adam,
    FunctionalModel,
    InverseSqrtWarmup,
    Model,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
)

from .conftest import (
    DIM,
    IDS,
    LABELS,
    VOCABULARY_SIZE,
    assert_weights_equal,
    language_model,
    loss_by_hand,
    needs_tensorflow,
    weights_of,
)


def test_fit_learns_as_by_hand_on_every_backend():
    """Batches of the same size: there Keras's own step on JAX and PyTorch is right too."""
    model = language_model()
    model.compile(keras.optimizers.SGD(0.5), TokenCrossentropy(0.1), metrics=[TokenAccuracy()])
    weights = weights_of(model)
    losses = []
    for _ in range(3):
        loss, gradients = loss_by_hand(weights, IDS, LABELS, 0.1)
        losses.append(loss)
        weights = [w - 0.5 * g for w, g in zip(weights, gradients, strict=True)]
    history = model.fit(IDS, LABELS, batch_size=5, epochs=3, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], losses, atol=1e-5)
    assert_weights_equal(model, weights, atol=1e-5)


@needs_tensorflow
@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError(), keras.losses.Huber()])
def test_ordinary_losses_and_metrics_are_those_of_keras(loss):
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(13, 3)), generator.normal(size=(13, 2))
    results = []
    for kind in (Model, keras.Model):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
        history = model.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0).history
        evaluated = model.evaluate(x, y, batch_size=5, verbose=0, return_dict=True)
        predicted = model.predict(x, batch_size=5, verbose=0)
        results.append((history, evaluated, predicted))
    ours, theirs = results
    assert ours[0].keys() == theirs[0].keys(), "the same names in the logs"
    for name, values in theirs[0].items():
        np.testing.assert_allclose(ours[0][name], values, atol=1e-6, err_msg=name)
        assert ours[1][name] == pytest.approx(theirs[1][name], abs=1e-6), f"evaluated {name}"
    np.testing.assert_allclose(ours[2], theirs[2], atol=1e-6, err_msg="predictions, so weights")


@needs_tensorflow
def test_ignored_classes_and_accuracy_are_those_of_keras():
    results = []
    for kind in (Model, keras.Model):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((None,), dtype="int32")
        model = kind(inputs, keras.layers.Dense(11)(keras.layers.Embedding(11, 3)(inputs)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
        history = model.fit(IDS, LABELS, epochs=3, shuffle=False, verbose=0).history
        results.append((history, weights_of(model)))
    (ours, our_weights), (theirs, their_weights) = results
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)
    for a, b in zip(our_weights, their_weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@needs_tensorflow
def test_metrics_with_other_padding_than_the_loss_count_their_own_tokens():
    model = language_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3)
    metrics = [TokenAccuracy(pad_id=7), Perplexity()]
    model.compile("sgd", loss, metrics=metrics)
    values = model.evaluate(IDS, LABELS, verbose=0, return_dict=True)
    logits = model.predict(IDS, verbose=0)
    for alone in (TokenAccuracy(pad_id=7), Perplexity()):
        alone.update_state(LABELS, logits)
        assert values[alone.name] == pytest.approx(float(alone.result()), abs=1e-5), alone.name


@pytest.mark.slow
@needs_tensorflow
def test_a_reloaded_model_trains_on_as_the_saved_one(tmp_path):
    model = language_model(tied=False)
    model.compile(
        Adam(InverseSqrtWarmup(0.1, 3)),
        TokenCrossentropy(0.1),
        metrics=[Perplexity(), keras.metrics.SparseCategoricalAccuracy()],
        clip_norm=0.125,
        accumulation_steps=2,
        ema_momentum=0.75,
    )
    model.fit(IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(restored, Model), "without custom_objects"
    settings = ("clip_norm", "accumulation_steps", "ema_momentum")
    assert [getattr(restored._step, name) for name in settings] == [0.125, 2, 0.75]
    histories = [m.fit(IDS, LABELS, epochs=2, verbose=0).history for m in (model, restored)]
    assert set(histories[1]) == {"loss", "perplexity", "sparse_categorical_accuracy"}
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, atol=1e-6, err_msg=name)
    assert_weights_equal(restored, weights_of(model))
    for each in model, restored:
        each.swap_averaged_weights()
    assert_weights_equal(restored, weights_of(model))


def test_an_average_is_kept_and_begins_with_weights_that_are_loaded(tmp_path):
    model = language_model()
    model.compile("sgd", TokenCrossentropy(), ema_momentum=0.75)
    loaded = [weight + 1.0 for weight in weights_of(model)]
    model.set_weights(loaded)
    model.swap_averaged_weights()
    assert_weights_equal(model, loaded)
    model.fit(IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again, other = keras.models.load_model(tmp_path / "model.keras"), language_model()
    other.load_weights(tmp_path / "model.weights.h5")
    assert_weights_equal(other, weights_of(model))
    for each in model, again:
        each.swap_averaged_weights()
    assert_weights_equal(again, weights_of(model))
    assert np.abs(weights_of(other)[0] - weights_of(model)[0]).max() > 1e-4


@needs_tensorflow
def test_a_last_layer_of_its_own_call_or_dtype_gives_the_loss_of_its_outputs():
    class Cooler(TokenEmbedding):
        def call(self, inputs, reverse=False):
            outputs = super().call(inputs, reverse)
            return outputs / 10 if reverse else outputs

    ids = keras.Input((None,), dtype="int32")
    narrow = TokenEmbedding(VOCABULARY_SIZE, DIM, dtype="mixed_bfloat16")(ids)
    for table in Cooler(VOCABULARY_SIZE, DIM), TokenEmbedding(VOCABULARY_SIZE, DIM):
        for hidden in table(ids), narrow:
            model = Model(ids, table(hidden, reverse=True))
            model.compile("sgd", TokenCrossentropy())
            expected = float(TokenCrossentropy()(LABELS, model(IDS)))
            assert model.train_on_batch(IDS, LABELS) == pytest.approx(expected, rel=1e-6)


def three_layers():
    inputs = keras.Input((2,))
    x = keras.layers.Dense(2)(keras.layers.Dense(2)(inputs))
    model = Model(inputs, keras.layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.5), "mse", ema_momentum=0.5)
    return model


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_an_average_is_that_of_its_weight_though_a_layer_is_frozen_meanwhile(frozen, tmp_path):
    model = three_layers()
    model.fit(np.eye(2), np.ones((2, 2)), epochs=3, verbose=0)
    model.layers[1 + frozen].trainable = False
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again = keras.models.load_model(tmp_path / "model.keras")
    model.swap_averaged_weights()
    again.swap_averaged_weights()
    assert len(again.trainable_weights) == 4
    assert_weights_equal(again, weights_of(model))


def test_weights_without_a_saved_average_are_told(tmp_path):
    model = three_layers()
    model.layers[2].trainable = False
    model.compile("sgd", "mse", ema_momentum=0.5)
    model.fit(np.eye(2), np.ones((2, 2)), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="averages of 4 weights, without 2 of the 6 to train"):
        three_layers().load_weights(tmp_path / "model.weights.h5")
    model.trainable = False
    model.compile("sgd", "mse", ema_momentum=0.5)
    with pytest.raises(ValueError, match="There is no moving average"):
        model.swap_averaged_weights()


@needs_tensorflow
def test_compile_adds_no_layers_and_no_weights():
    model = language_model()
    layers, weights = list(model.layers), len(model.variables)
    model.compile("sgd", TokenCrossentropy(), ema_momentum=0.75)
    assert model.layers == layers, "what the train step keeps is not part of the model"
    assert len(model.variables) == weights, "nor of its weights"


@needs_tensorflow
def test_training_without_a_loss_is_refused():
    model = language_model()
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"need a loss"):
        model.train_step((IDS, LABELS))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_weights": [2.0, 1.0]}, r"one loss for one output.*Received: loss_weights=\[2"),
        ({"loss_weights": {"odd": 2.0}}, "loss_weights must name the output 'out'.*{'odd': 2.0}"),
        ({"loss_weights": [float("inf")]}, "loss_weights must be a finite number"),
        ({"optimizer": {"clipnorm": 1.0}}, "Set clip_norm in compile"),
        ({"optimizer": {"gradient_accumulation_steps": 2}}, "Set accumulation_steps in compile"),
        ({"optimizer": {"use_ema": True}}, "Set ema_momentum in compile"),
        ({"clip_norm": float("nan")}, "clip_norm must be a finite number above 0"),
        ({"accumulation_steps": 1.5}, "accumulation_steps must be an integer of at least 1"),
        ({"compute_loss": True}, "cannot include a custom compute_loss"),
        ({"compute_metrics": True}, "cannot include a custom compute_metrics"),
        ({"loss": ["mse", "mse"]}, r"one loss for one output.*Received: loss=\['mse', 'mse'\]"),
        ({"loss": []}, r"one loss for one output.*Received: loss=\[\]"),
        ({"loss": {"odd": "mse"}}, "loss must name the output 'out'.*Received: loss={'odd': 'mse'"),
        ({"loss": keras.losses.Circle()}, "must not depend on the other rows"),
        ({"loss": keras.losses.Huber(reduction=None)}, "Received: reduction=None"),
        ({"loss": "crossentropy"}, "Name the cross-entropy"),
        ({"unbuilt": True, "ema_momentum": 0.5}, "Build the model before compile"),
        ({"norm": True, "accumulation_steps": 2}, "BatchNormalization would see a part"),
        ({"dtype": "float16"}, "Use the mixed_float16 policy"),
        ({"dtype": "bfloat16", "ema_momentum": 0.5}, "Received: weights in bfloat16"),
    ],
)
def test_the_steps_of_tensorflow_and_jax_refuse_the_same(settings, message):
    if keras.backend.backend() not in ("tensorflow", "jax"):
        pytest.skip("Keras's own step")
    optimizer = keras.optimizers.SGD(0.1, **settings.get("optimizer", {}))
    methods = {name: lambda self, *args, **kwargs: None for name in settings if "compute" in name}
    base = Model if "unbuilt" in settings else FunctionalModel
    kind = type("Mine", (base,), methods)
    inputs = keras.Input((3,))
    hidden = keras.layers.BatchNormalization()(inputs) if "norm" in settings else inputs
    outputs = keras.layers.Dense(2, dtype=settings.get("dtype"), name="out")(hidden)
    model = kind() if "unbuilt" in settings else kind(inputs, outputs)
    of_compile = ("loss_weights", "clip_norm", "accumulation_steps", "ema_momentum")
    others = {name: settings[name] for name in settings.keys() & set(of_compile)}
    with pytest.raises(ValueError, match=message):
        model.compile(optimizer, settings.get("loss", "mse"), **others)


class Added(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs))
        return inputs


@pytest.mark.parametrize(
    ("hidden", "loss", "message"),
    [
        (Added(), "mse", "penalties of rows.*A loss from add_loss may not be such a sum"),
        (keras.layers.Dense(3, activity_regularizer=keras.ops.max), "mse", "penalties of rows"),
        (None, lambda y, p: keras.ops.mean(y - p), "one value per row or token, not a scalar"),
        (None, keras.losses.CosineSimilarity(axis=0), "must not depend on the other rows"),
    ],
)
def test_the_steps_of_tensorflow_and_jax_refuse_the_same_losses(hidden, loss, message):
    if keras.backend.backend() not in ("tensorflow", "jax"):
        pytest.skip("Keras's own step")
    for method in ("fit", "evaluate"):
        inputs = keras.Input((3,))
        model = Model(inputs, keras.layers.Dense(2)(inputs if hidden is None else hidden(inputs)))
        model.compile("sgd", loss)
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(np.ones((5, 3)), np.ones((5, 2)), verbose=0)


def test_class_weights_of_tokens_are_refused_on_tensorflow_and_jax():
    if keras.backend.backend() not in ("tensorflow", "jax"):
        pytest.skip("Keras's own step")
    model, weights = language_model(), {3: 2.0}
    model.compile("sgd", TokenCrossentropy())
    of_fit = (IDS, LABELS, 5, 1, 0, None, 0.0, None, True, weights)
    calls = {
        "fit": lambda: model.fit(IDS, LABELS, class_weight=weights),
        "fit, by position": lambda: model.fit(*of_fit),
        "train_on_batch": lambda: model.train_on_batch(IDS, LABELS, class_weight=weights),
        "the same, by position": lambda: model.train_on_batch(IDS, LABELS, None, weights),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match="class_weight has no meaning"):
            call()
            pytest.fail(name)
    model.fit(IDS, LABELS, 5, 1, 0, None, 0.0, None, True, None)
    model.train_on_batch(IDS, LABELS, None, None)


def test_penalties_of_regularisers_are_not_taken_for_added_losses():
    regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l1"}
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2, **regularizers)(inputs))
    model.compile("sgd", "mse")
    logs = model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0).history
    assert np.isfinite(logs["loss"])


@pytest.mark.parametrize("ema_momentum", [None, 0.75])
def test_layers_are_frozen_once_the_model_is_compiled_again(ema_momentum):
    model = language_model()
    settings = {} if ema_momentum is None else {"ema_momentum": ema_momentum}
    model.compile("sgd", TokenCrossentropy(), **settings)
    model.fit(IDS, LABELS, verbose=0)
    dense = model.layers[2]
    dense.trainable, before = False, dense.get_weights()
    if keras.backend.backend() == "jax":
        with pytest.raises(ValueError, match="Compile the model again after you freeze"):
            model.fit(IDS, LABELS, verbose=0)
    model.compile("sgd", TokenCrossentropy(), **settings)
    model.fit(IDS, LABELS, verbose=0)
    for weight, kept in zip(dense.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError(reduction="sum")])
def test_parts_of_a_batch_add_up_on_tensorflow_and_jax(loss):
    if keras.backend.backend() not in ("tensorflow", "jax"):
        pytest.skip("Keras's own step")
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(7, 3)), generator.normal(size=(7, 2))
    results = []
    for parts in (1, 3):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.01), loss, accumulation_steps=parts)
        logs = model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0).history["loss"]
        results.append([*logs, *(weight.sum() for weight in model.get_weights())])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
@pytest.mark.parametrize("mask", ["of Keras", "of ignore_class"])
def test_parts_with_masks_add_up_or_are_refused(mask, reduction):
    """The rows of a part have other numbers of labels than those of another."""
    if keras.backend.backend() not in ("tensorflow", "jax"):
        pytest.skip("Keras's own step")
    settings = {"ignore_class": 0} if mask == "of ignore_class" else {}
    loss = keras.losses.SparseCategoricalCrossentropy(True, **settings, reduction=reduction)
    results = []
    for parts in (1, 3):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((None,), dtype="int32")
        vectors = keras.layers.Embedding(11, 3, mask_zero=not settings)(inputs)
        model = Model(inputs, keras.layers.Dense(11)(vectors))
        model.compile(keras.optimizers.SGD(0.5), loss, accumulation_steps=parts)
        model.evaluate(IDS, LABELS, verbose=0)
        if keras.backend.backend() == "jax" and parts > 1 and reduction != "sum":
            with pytest.raises(ValueError, match=r"a Keras mask or an ignore_class.*steps=3"):
                model.fit(IDS, LABELS, batch_size=7, verbose=0)
            return
        logs = model.fit(IDS, LABELS, batch_size=7, epochs=2, shuffle=False, verbose=0).history
        results.append([*logs["loss"], *(weight.sum() for weight in model.get_weights())])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_losses_of_epochs_and_of_validation_are_those_of_keras(reduction, is_weighted):
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(13, 3)), generator.normal(size=(13, 2))
    data = (x, y, generator.uniform(0, 3, 13)) if is_weighted else (x, y)
    logs = []
    for kind in (Model, keras.Model):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction))
        logs.append(
            model.fit(*data[:2], 5, 2, 0, sample_weight=data[2] if is_weighted else None,
                      shuffle=False, validation_data=data).history
        )  # fmt: skip
    assert logs[0].keys() == logs[1].keys() == {"loss", "val_loss"}
    for name, values in logs[1].items():
        np.testing.assert_allclose(logs[0][name], values, rtol=1e-5, err_msg=name)


@needs_tensorflow
@pytest.mark.parametrize("name", [None, "enabled", "cpu_budget", "ram_budget"])
def test_only_a_dataset_that_says_nothing_of_tuning_is_not_tuned(name, monkeypatch):
    """Whose thread `fit` would wait for."""
    import tensorflow as tf

    seen = []
    monkeypatch.setattr(keras.Model, "fit", lambda self, x, *args, **kwargs: seen.append(x))
    options = tf.data.Options()
    if name is not None:
        setattr(options.autotune, name, 2 if "budget" in name else True)
    model = language_model()
    model.compile("sgd", TokenCrossentropy())
    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(2).with_options(options)
    model.fit(data, validation_data=data)
    assert seen[0].options().autotune.enabled is {None: False, "enabled": True}.get(name)
