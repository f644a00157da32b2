"""What is frozen stays frozen in every copy of a layer and of a model, and nothing else does."""

import random

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import layers
from keras_transformer.layers.internals import parts_of
from keras_transformer.layers.segment_recurrence import SegmentRecurrence
from tests.reference import normal

HEADS = {"num_heads": 2, "intermediate_dim": 7}
LORA = {"rank": 2, "alpha": 3.0, "targets": ["query", "widen"]}
LAYERS = {
    "encoder block": lambda **k: layers.EncoderBlock(**HEADS, **k),
    "encoder": lambda **k: layers.Encoder(2, **HEADS, **k),
    "decoder block": lambda **k: layers.DecoderBlock(**HEADS, **k),
    "decoder": lambda **k: layers.Decoder(2, normalize_first=False, **HEADS, **k),
    "transformer-xl": lambda **k: layers.TransformerXL(2, **HEADS, **k),
    "with lora": lambda **k: layers.Decoder(2, lora=LORA, **HEADS, **k),
    "feed-forward": lambda **k: layers.FeedForward(
        7, activation=keras.layers.PReLU(shared_axes=[1]), **k
    ),
    "recurrence": lambda **k: SegmentRecurrence(layers.TransformerXL(2, **HEADS), 2, 3, **k),
    "attention": lambda **k: layers.MultiHeadAttention(2, **k),
    "sliced attention": lambda **k: layers.SlicedAttention(2, **k),
    "sparse attention": lambda **k: layers.SparseAttention(2, "local", 3, **k),
    "position embedding": lambda **k: layers.PositionEmbedding(7, **k),
}


def model_of(layer):
    inputs = keras.Input((5, 6), batch_size=2)
    if isinstance(layer, layers.DecoderBlock | layers.Decoder):
        return keras.Model(inputs, layer(inputs, inputs))
    if isinstance(layer, SegmentRecurrence):
        return keras.Model(inputs, layer(inputs, np.ones((2, 5), "int32")))
    return keras.Model(inputs, keras.tree.flatten(layer(inputs))[0])


def flags(model):
    return [(weight.name, weight.shape, weight.trainable) for weight in model.weights]


def copies(model, folder):
    """The model by each way in which Keras copies one."""
    yield type(model).from_config(model.get_config())
    yield keras.models.clone_model(model)
    model.save(folder / "copy.keras")
    yield keras.saving.load_model(folder / "copy.keras")


def freeze_at_random(layer, seed):
    draw = random.Random(seed)
    for part in [layer, *(part for _, part in parts_of(layer))]:
        if draw.random() < 0.5:
            part.trainable = draw.random() < 0.5


@pytest.mark.parametrize("seed", [2, 3, 5, 7])
@pytest.mark.parametrize("name", LAYERS)
def test_frozen_parts_stay_frozen_in_copies(name, seed, tmp_path):
    layer = LAYERS[name]()
    model = model_of(layer)
    untouched = "frozen" in layer.get_config()
    assert untouched == (name == "with lora"), "a config says nothing of what Keras would do anyway"
    freeze_at_random(layer, seed)
    expected = flags(model)
    for copy in copies(model, tmp_path):
        assert flags(copy) == expected


def test_the_random_parts_differ():
    drawn = set()
    for seed in (2, 3, 5, 7):
        layer = LAYERS["decoder"]()
        model = model_of(layer)
        freeze_at_random(layer, seed)
        drawn.add(tuple(flags(model)))
    assert len(drawn) == 4


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_made_frozen_trains_nothing(name, tmp_path):
    layer = LAYERS[name](trainable=False)
    model = model_of(layer)
    assert model.weights and not model.trainable_weights
    for copy in copies(model, tmp_path):
        assert not copy.trainable_weights
    layer.trainable = True
    assert model.trainable_weights


@pytest.mark.parametrize("later", [True, False])
def test_what_a_user_changes_before_a_build_is_not_undone(later):
    layer = LAYERS["decoder"]()
    model_of(layer)
    layer.blocks[1].cross_attention.trainable = False
    copy = type(layer).from_config(layer.get_config())
    copy.blocks[0].self_attention.trainable = later
    model_of(copy)
    assert copy.blocks[0].self_attention.trainable == later
    assert not copy.blocks[1].cross_attention.trainable


@pytest.mark.slow
def test_models_keep_what_is_frozen(tmp_path):
    sizes = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    makers = {
        "translation": (kt.translation(11, **sizes), ["encoder", "decoder"]),
        "language model": (kt.language_model(11, 5, **sizes), ["decoder"]),
        "classifier": (kt.classifier(11, 3, **sizes), ["encoder"]),
        "bert": (kt.bert(11, max_sequence_length=5, **sizes), ["encoder"]),
        "transformer-xl": (kt.transformer_xl(11, 2, memory_length=3, **sizes), ["recurrence"]),
    }
    for seed, (model, names) in enumerate(makers.values()):
        for name in names:
            freeze_at_random(model.get_layer(name), seed)
        model.layers[-1].trainable = False
        expected = flags(model)
        for copy in copies(model, tmp_path):
            assert flags(copy) == expected
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), model.input
        )
        outer = kt.Model(inputs, model(inputs))
        for copy in copies(outer, tmp_path):
            assert flags(copy) == expected, "of a model within a model"


def test_lora_trains_its_matrices_in_what_was_frozen_and_merging_thaws_it():
    model = kt.classifier(11, 3, num_layers=2, hidden_dim=6, intermediate_dim=7, num_heads=2)
    everything = len(model.trainable_weights)
    model.get_layer("encoder").blocks[0].trainable = False
    model.trainable = False
    tuned = kt.add_lora(model, rank=2)
    names = [weight.name for weight in tuned.trainable_weights]
    assert len(names) == 2 * 2 * 2 and all("_lora_" in name for name in names)
    assert len(kt.merge_lora(tuned).trainable_weights) == everything


def test_a_frozen_stack_does_not_change_in_training():
    encoder = layers.Encoder(1, **HEADS, trainable=False)
    inputs = keras.Input((5, 6))
    model = kt.Model(inputs, keras.layers.Dense(3)(encoder(inputs)))
    model.compile("adam", "mse")
    before = [np.array(weight) for weight in encoder.weights]
    model.fit(normal(2, 5, 6), normal(2, 5, 3), verbose=0)
    for old, weight in zip(before, encoder.weights, strict=True):
        np.testing.assert_array_equal(weight, old)
