"""LoRA: what trains, what is kept, and that merging changes nothing."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.layers.internals import parts_of
from keras_transformer.models.lora import lora_of, projections
from tests.reference import array, exact, fill

SMALL = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2, "dropout": 0.0}
RANDOM = np.random.default_rng(3)
IDS = RANDOM.integers(4, 11, (3, 5)).astype("int32")
MODELS = {
    "translation": lambda: kt.translation(11, **SMALL),
    "language_model": lambda: kt.language_model(11, **SMALL),
    "gpt2": lambda: kt.gpt2(vocabulary_size=11, num_layers=2, hidden_dim=6, num_heads=2),
    "transformer_xl": lambda: kt.transformer_xl(11, 3, **SMALL, memory_length=2),
    "classifier": lambda: kt.classifier(11, 3, **SMALL),
    "bert": lambda: kt.bert(11, size="tiny", **SMALL),
}
KINDS = ("translation", "transformer_xl", "bert")  # whose layers and inputs differ most
INPUTS = {
    "translation": {"source_ids": IDS, "target_ids": IDS[:, :4]},
    "bert": {"token_ids": IDS, "segment_ids": IDS * 0},
}


def outputs_of(name, model):
    outputs = model(INPUTS.get(name, IDS))
    return array(outputs["vectors"] if name == "bert" else outputs)


def tuned_by_hand(model, *args, **kwargs):
    """With LoRA, whose weights are far from zero, as after a training."""
    tuned = kt.add_lora(model, *args, **kwargs)
    for weight in tuned.trainable_weights:
        weight.assign(0.4 * RANDOM.normal(size=weight.shape).astype("float32"))
    return tuned


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's checkpoints")
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_of_tensorflow_holds_all_weights(name, lora, tmp_path):
    model = MODELS[name]()
    if lora:
        model = tuned_by_hand(model, 3, targets=("query", "narrow"))
    weights = [array(weight) for weight in model.weights]
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    for weight in model.weights:
        weight.assign(np.ones_like(array(weight)))
    checkpoint.restore(path)
    for weight, expected in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(array(weight), expected, err_msg=weight.path)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_model_starts_as_it_was_and_merges_into_one_like_it(name, tmp_path):
    model = fill(MODELS[name]())
    before = outputs_of(name, model)
    tuned = kt.add_lora(model, 3, targets=("query", "value", "narrow"))
    np.testing.assert_array_equal(outputs_of(name, tuned), before)
    tuned = tuned_by_hand(model, 3, targets=("query", "value", "narrow"))
    expected = outputs_of(name, tuned)
    assert np.abs(expected - before).max() > 0.02
    tuned.save(tmp_path / "tuned.keras")
    loaded = keras.saving.load_model(tmp_path / "tuned.keras")
    np.testing.assert_array_equal(outputs_of(name, loaded), expected)
    assert len(loaded.trainable_weights) == len(tuned.trainable_weights)
    merged = kt.merge_lora(loaded)
    np.testing.assert_allclose(outputs_of(name, merged), expected, atol=2e-5 * before.std())
    assert json.dumps(merged.get_config()) == json.dumps(model.get_config())
    assert [w.name for w in merged.trainable_weights] == [w.name for w in model.trainable_weights]
    np.testing.assert_array_equal(outputs_of(name, model), before, err_msg="the first is unchanged")


def test_the_kernel_is_changed_by_the_product_of_each_target():
    targets = ("value", "query_key_value", "widen")
    tuned = tuned_by_hand(fill(kt.language_model(11, **SMALL)), 2, alpha=5, targets=targets)
    block = tuned.get_layer("decoder").blocks[1]
    weights = {weight.name: exact(weight) for weight in block.weights}

    def product(target):
        return 2.5 * weights[f"{target}_lora_up"] @ weights[f"{target}_lora_down"]

    expected = weights["query_key_value_kernel"] + product("query_key_value")
    expected[12:] += product("value")
    merged = kt.merge_lora(tuned).get_layer("decoder").blocks[1]
    found = exact(merged.self_attention.query_key_value.kernel)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    found = exact(merged.feed_forward.widen.kernel)
    np.testing.assert_allclose(found, weights["widen_kernel"] + product("widen"), atol=1e-6)
    found = exact(merged.feed_forward.narrow.kernel)
    np.testing.assert_array_equal(found, weights["narrow_kernel"])


def test_alpha_is_twice_the_rank_unless_given():
    model = kt.language_model(11, **SMALL)
    assert lora_of(kt.add_lora(model, 3)).alpha == 6
    assert lora_of(kt.add_lora(model, 3, alpha=5)).alpha == 5


def test_nothing_but_lora_and_the_named_head_is_trained():
    model = fill(kt.bert_classifier(kt.bert(11, size="tiny", **SMALL), 3))
    tuned = kt.add_lora(model, 2, train=["head"])
    before = [array(weight) for weight in tuned.weights]
    tuned.compile(kt.Adam(0.01), "mse")
    tuned.fit(INPUTS["bert"], RANDOM.normal(size=(3, 3)), epochs=9, verbose=0)
    moved = {
        weight.path
        for weight, old in zip(tuned.weights, before, strict=True)
        if (array(weight) != old).any()
    }
    assert moved == {weight.path for weight in tuned.trainable_weights}
    assert {path.split("/")[-1].rsplit("_", 1)[0] for path in moved} >= {"query_lora", "value_lora"}
    assert len(moved) == 2 * 2 * 2 + 2
    state = tuned.optimizer.variables
    assert len(state) == 2 * len(moved) + 2, "two moments a trained weight, iterations and rate"


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_layer_of_train_is_trained_as_a_whole_or_refused(name):
    model, refused = MODELS[name](), set()
    for layer in model.layers:
        try:
            tuned = kt.add_lora(model, 2, train=[layer.name])
        except ValueError as error:
            assert "of the model that take no LoRA" in str(error)
            refused.add(layer.name)
            continue
        trained = tuned.get_layer(layer.name).trainable_weights
        assert len(trained) == len(layer.trainable_weights)
    assert refused and refused <= {"encoder", "decoder", "recurrence"}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_each_part_of_train_is_trained_alone_or_refused(name, tmp_path):
    """Also beside another, and in a copy; parts that LoRA tunes are refused."""
    model = MODELS[name]()
    plain = len(kt.add_lora(model, 2).trainable_weights)
    parts = {
        f"{layer.name}/{path}": len(part.trainable_weights)
        for layer in model.layers
        for path, part in parts_of(layer)
    }
    trained = []
    for path, wanted in parts.items():
        try:
            tuned = kt.add_lora(model, 2, train=[path])
        except ValueError as error:
            assert "take no LoRA" in str(error) and str(error).endswith(f"Received: {path}.")
            assert not path.endswith("norm"), path
            continue
        layer, _, within = path.partition("/")
        part = dict(parts_of(tuned.get_layer(layer)))[within]
        assert len(part.trainable_weights) == wanted
        assert len(tuned.trainable_weights) == plain + wanted
        trained += [path] * bool(wanted)
    assert trained[-1].endswith("norm")
    for train in (trained[1:2], trained):
        tuned = kt.add_lora(model, 2, train=train)
        tuned.save(tmp_path / "tuned.keras")
        again = keras.saving.load_model(tmp_path / "tuned.keras").trainable_weights
        assert [weight.path for weight in again] == [w.path for w in tuned.trainable_weights]
        assert len(again) > plain


@pytest.mark.slow
def test_it_learns():
    keras.utils.set_random_seed(3)
    model = kt.language_model(11, **SMALL)
    tuned = kt.add_lora(model, 4, targets=("query", "key", "value", "output", "widen", "narrow"))
    tuned.compile(keras.optimizers.Adam(0.03), kt.TokenCrossentropy())
    history = tuned.fit(IDS[:, :-1], IDS[:, 1:], epochs=30, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0], history


def test_a_cached_step_equals_the_whole_pass():

    tuned = tuned_by_hand(fill(kt.language_model(11, **SMALL)), 2, targets=("query", "narrow"))
    expected, cache = array(tuned(IDS)), tuned.start_cache(3)
    for position in range(5):
        newest = keras.ops.convert_to_tensor(IDS[:, position, None])
        parents = keras.ops.zeros((3, 1), "int32")
        logits, cache = tuned.step(newest, parents, keras.ops.convert_to_tensor(position), cache)
        np.testing.assert_allclose(array(logits)[:, 0], expected[:, position], atol=1e-4)


def test_layers_in_a_plain_keras_model_are_tuned_too():
    inputs = keras.Input((None, 6))
    hidden = keras.layers.Dense(6)(kt.Encoder(1, num_heads=2, intermediate_dim=7)(inputs))
    tuned = kt.add_lora(keras.Model(inputs, hidden), 2)
    assert type(tuned) is type(keras.Model(inputs, hidden))
    assert len(tuned.trainable_weights) == 4
    assert len(list(projections(tuned))) == 4


def test_a_model_without_lora_has_no_word_of_it():
    model = kt.language_model(11, **SMALL)
    assert "lora" not in str(model.get_config())
    assert not any("lora" in weight.path for weight in model.weights)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"rank": 0}, "rank must be an integer of at least 1. Received: rank=0"),
        ({"targets": ("querry",)}, "targets must be one or more of query,.* Received: querry"),
        ({"targets": ()}, "Received: none"),
        ({"targets": ("query", "key_value")}, "No projection of the model is called key_value"),
        ({"train": ("top",)}, "train must name layers .*no LoRA: .*embedding.*Received: top"),
    ],
)
def test_mistakes_are_told(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        kt.add_lora(kt.language_model(11, **SMALL), **arguments)


def test_adding_twice_and_merging_nothing_are_refused():
    model = kt.language_model(11, **SMALL)
    with pytest.raises(ValueError, match="must have LoRA, from add_lora"):
        kt.merge_lora(model)
    with pytest.raises(ValueError, match="Call merge_lora first"):
        kt.add_lora(kt.add_lora(model))


def test_a_memory_is_projected_by_the_tuned_kernel_too():

    tuned = tuned_by_hand(fill(MODELS["transformer_xl"]()), 2, targets=("key", "value"))
    merged = kt.merge_lora(tuned)
    (first, memory), (again, other) = tuned.read(IDS), merged.read(IDS)
    np.testing.assert_allclose(array(first), array(again), atol=1e-4)
    found, expected = tuned.read(IDS, memory)[0], merged.read(IDS, other)[0]
    np.testing.assert_allclose(array(found), array(expected), atol=1e-4)


@pytest.mark.slow
def test_recomputed_and_compiled_steps_train_lora_to_the_same_numbers():
    trained, sizes = [], {**SMALL, "num_layers": 1}
    for remat, jit_compile in ((False, False), (True, False), (False, True)):
        keras.utils.set_random_seed(3)
        tuned = kt.add_lora(kt.language_model(11, **sizes, remat=remat), 2)
        tuned.compile("sgd", kt.TokenCrossentropy(), jit_compile=jit_compile)
        tuned.optimizer.learning_rate = 0.5
        tuned.fit(IDS[:, :-1], IDS[:, 1:], epochs=4, verbose=0)
        trained.append([array(weight) for weight in tuned.trainable_weights])
    assert max(np.abs(weight).max() for weight in trained[0][1::2]) > 1e-3, "B has moved"
    for others in trained[1:]:
        for one, other in zip(trained[0], others, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_lora_trains_under_mixed_bfloat16():
    model = kt.language_model(11, **SMALL, dtype="mixed_bfloat16")
    tuned = kt.add_lora(model, 2)
    tuned.compile("adam", kt.TokenCrossentropy())
    tuned.fit(IDS[:, :-1], IDS[:, 1:], verbose=0)
    assert {weight.dtype for weight in tuned.trainable_weights} == {"float32"}
    assert kt.merge_lora(tuned).get_layer("decoder").dtype_policy.name == "mixed_bfloat16"
