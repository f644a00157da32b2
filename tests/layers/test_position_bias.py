"""Biases by distance: against T5 and BLOOM, in stacks, and step by step."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers import (
    ALiBi,
    Decoder,
    Encoder,
    MultiHeadAttention,
    RelativePositionBias,
)
from tests.layer_check import check_layer
from tests.reference import array, fill, normal


@keras.saving.register_keras_serializable(package="tests")
class Deaf(MultiHeadAttention):
    def call(self, query, value=None, key=None, *, padding_mask=None, attention_mask=None,
             training=None):  # fmt: skip
        return super().call(query, value, key, padding_mask=padding_mask, training=training)

    def step(self, inputs, cache, mask, position=None):
        return super().step(inputs, cache, mask, position)

    def attend_to(self, query, keys, values, mask=None):
        return super().attend_to(query, keys, values, mask)


BIASES = {"t5": {"type": "t5", "num_buckets": 6, "max_distance": 7}, "alibi": {"type": "alibi"}}


@pytest.mark.parametrize("name", ["relative", "alibi"])
def test_layers_keep_their_config_and_weights(name):
    layer = {
        "relative": RelativePositionBias(3, num_buckets=8, max_distance=11, causal=True),
        "alibi": ALiBi(3),
    }[name]
    inputs = normal(2, 13, 4)
    bias = array(layer(inputs))
    assert bias.shape == (1, 3, 13, 13)
    again = type(layer).from_config(layer.get_config())
    again(inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(again(inputs)), bias)


@pytest.mark.oracle
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("buckets", [(32, 128), (8, 20), (6, 7)])
def test_bias_equals_t5(buckets, causal):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    num_buckets, max_distance = buckets
    ours = RelativePositionBias(3, num_buckets, max_distance, causal)
    bias = array(fill_after(ours, normal(1, 150, 4)))
    distances = torch.arange(150)[None, :] - torch.arange(150)[:, None]
    theirs = t5.T5Attention._relative_position_bucket(
        distances, not causal, num_buckets, max_distance
    )
    np.testing.assert_array_equal(bias[0], np.moveaxis(array(ours.embeddings)[theirs], -1, 0))


def fill_after(layer, inputs):
    layer(inputs)
    return fill(layer)(inputs)


@pytest.mark.oracle
@pytest.mark.parametrize("heads", [1, 4, 5, 6, 12])
def test_slopes_equal_bloom(heads):
    torch = pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.ones(1, 7)
    theirs = bloom.build_alibi_tensor(mask, heads, torch.float32).reshape(heads, 7).numpy()
    ours = np.array(ALiBi(heads).slopes())[:, None] * np.arange(7)
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)


def test_alibi_falls_with_the_distance():
    bias = array(ALiBi(4)(normal(1, 5, 4)))[0]
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        distances = np.abs(np.arange(5)[None, :] - np.arange(5)[:, None])
        np.testing.assert_allclose(bias[head], -slope * distances)


def test_a_bias_is_added_to_the_logits_of_each_head():
    """A bias that forbids all but one source gives the value of that source."""
    layer, vectors = MultiHeadAttention(2, num_key_value_heads=1), normal(2, 5, 6)
    layer(vectors)
    bias = np.full((1, 2, 5, 5), -1e9, "float32")
    bias[:, 0, :, 1] = bias[:, 1, :, 3] = 0
    scores = array(layer.attention_scores(vectors, attention_bias=bias))
    assert (scores[:, 0, :, 1] == 1).all() and (scores[:, 1, :, 3] == 1).all()


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("length", [None, 9], ids=["growing", "static"])
def test_steps_equal_one_pass(kind, length):
    model = kt.language_model(
        11, num_layers=2, hidden_dim=8, num_heads=2, position_bias=BIASES[kind],
        attention_arguments={"num_key_value_heads": 1},
    )  # fmt: skip
    assert fill(model).positions is None
    ids = np.random.randint(0, 11, (2, 9))
    expected = array(model.logits(ids))
    cache = model.start_cache(2, 3, length)
    parents = np.tile([2, 0, 1], (2, 1)).astype("int32")
    for position in range(9):
        newest = np.repeat(ids[:, position : position + 1], 3, axis=1)
        scores, cache = model.step(newest, parents, position, cache)
        for beam in range(3):
            np.testing.assert_allclose(array(scores)[:, beam], expected[:, position], atol=1e-4)
    _, cache = model.prefill(ids[:, :5], None, 5, model.start_cache(2, 1))
    scores, _ = model.step(ids[:, 5:6], np.zeros((2, 1), "int32"), 5, cache)
    np.testing.assert_allclose(array(scores)[:, 0], expected[:, 5], atol=1e-4)


def test_all_blocks_share_one_table_which_is_trained(tmp_path):
    model = kt.translation(11, size="tiny", num_layers=2, position_bias=BIASES["t5"])
    tables = [weight for weight in model.trainable_weights if "position_bias" in weight.path]
    assert [weight.path.split("/")[0] for weight in tables] == ["encoder", "decoder"]
    ids = {name: np.random.randint(4, 11, (2, 7)) for name in ("source_ids", "target_ids")}
    before = [array(weight) for weight in tables]
    model.compile("sgd", kt.TokenCrossentropy())
    model.fit(ids, ids["target_ids"], verbose=0)
    assert all((array(w) != old).any() for w, old in zip(tables, before, strict=True))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    expected = array(model.logits(**ids))
    np.testing.assert_array_equal(array(again.logits(**ids)), expected)


@pytest.mark.slow
def test_remat_does_not_change_the_gradients():
    weights = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        model = kt.language_model(
            11, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=7, dropout=0.0,
            position_bias=BIASES["t5"], remat=remat,
        )  # fmt: skip
        ids = np.arange(14).reshape(2, 7) % 7 + 4
        model.compile(keras.optimizers.SGD(1.0), kt.TokenCrossentropy())
        model.fit(ids, ids, verbose=0)
        weights.append([array(weight) for weight in model.weights])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_stacks_pass_every_check(tmp_path):
    heads = {"num_heads": 2, "intermediate_dim": 7, "position_bias": BIASES["t5"]}
    heads |= {"normalization": "rms", "gated": True, "use_bias": False, "activation": "silu"}
    check_layer(Encoder, {"num_layers": 2, **heads}, (normal(2, 5, 6),), (2, 5, 6), 14, tmp_path)
    vectors = normal(2, 5, 6), normal(2, 3, 4)
    (tmp_path / "decoder").mkdir()
    check_layer(Decoder, {"num_layers": 1, **heads}, vectors, (2, 5, 6), 12, tmp_path / "decoder")


def test_what_does_not_fit_is_refused():
    for make, message in (
        (lambda: RelativePositionBias(2, 5), "num_buckets must be even"),
        (lambda: RelativePositionBias(2, 2), "num_buckets must be an integer of at least 4"),
        (lambda: RelativePositionBias(2, 32, 8), "max_distance must be an integer from 9"),
        (lambda: kt.language_model(11, position_bias={"type": "rope"}), "the type 't5' or 'alibi'"),
        (lambda: kt.language_model(11, position_bias="alibi"), "must be a dictionary"),
        (lambda: kt.language_model(11, position_bias={**BIASES["t5"], "causal": 1}), "without num"),
        (
            lambda: kt.DecoderBlock(
                num_heads=2, intermediate_dim=3, attention_pattern={"pattern": "local",
                "block_size": 2},
            )(normal(1, 3, 4), attention_bias=normal(1, 1, 3, 3)),
            "A sparse pattern has no attention_bias",
        ),
        (lambda: kt.language_model(11, attention=Deaf, position_bias=BIASES["t5"]), "must accept"),
        (lambda: kt.transformer_xl(11, 2, position_bias=BIASES["t5"]), "have no position_bias"),
        (
            lambda: kt.language_model(
                11, position_bias=BIASES["t5"],
                attention_pattern={"pattern": "local", "block_size": 2},
            ),
            "have no position_bias",
        ),
        (
            lambda: MultiHeadAttention(2)(normal(1, 3, 4), attention_bias=normal(1, 3, 3)),
            "attention_bias must have",
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"{message}.*Received: "):
            make()


@pytest.mark.parametrize("name", ["call", "step"])
def test_an_attention_that_overrides_what_takes_a_bias_says_whether_it_does(name):
    other = {name: getattr(MultiHeadAttention, name), "stepwise_methods": ()}
    silent = type("Silent", (MultiHeadAttention,), other)
    further = type("Further", (silent,), {"weights_of": MultiHeadAttention.weights_of})
    telling = type("Telling", (silent,), {**other, "takes_bias": True})
    heir = type("Heir", (telling,), {"weights_of": MultiHeadAttention.weights_of})
    keras.saving.register_keras_serializable(package="tests")(heir)
    assert [each.takes_bias for each in (silent, further, telling, heir)] == [0, 0, 1, 1]
    Encoder(1, num_heads=2, intermediate_dim=3, attention=heir, position_bias=BIASES["alibi"])


def test_alibi_equals_keras_hub():
    """Theirs grows with the position of the source, which makes no difference to a softmax."""
    hub = pytest.importorskip("keras_hub").layers
    scores, vectors = normal(2, 6, 5, 5), normal(2, 5, 4)
    mask = np.tril(np.ones((5, 5), bool))
    weights = [
        array(keras.ops.softmax(keras.ops.where(mask, biased, -1e9)))
        for biased in (hub.AlibiBias()(scores), scores + array(ALiBi(6)(vectors)))
    ]
    np.testing.assert_allclose(*weights, atol=1e-5)
