"""An attention of the user's own in the models: the same masks, caches, files and LoRA."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.convert import peft
from keras_transformer.convert.blocks import check_dense
from keras_transformer.convert.tables import ConversionError
from keras_transformer.layers.block import NotRegistered
from keras_transformer.ops.attention import merge_heads
from keras_transformer.ops.cache import append_to_cache
from tests.layer_check import check_layer
from tests.models.test_translation import SOURCE, TARGET, TINY, score, step_through
from tests.own_attention import TemperatureAttention
from tests.reference import array, fill, normal


@keras.saving.register_keras_serializable(package="own")
class AttentionToInputs(kt.MultiHeadAttention):
    """Keeps the inputs of a position instead of its keys and values, which it computes again."""

    def call(self, query, value=None, key=None, **masks):
        return super().call(query, value, key, **masks)

    def empty_cache(self, batch_size, length=None, num_beams=1):
        positions = 0 if length is None else length * num_beams
        return (ops.zeros((batch_size, 1, positions, self.output_projection.kernel.shape[0])),)

    def step(self, inputs, cache, mask, position=None):
        if cache is None:
            outputs, _ = super().step(inputs, None, mask)
            return outputs, (inputs[:, None],)
        start = None if position is None else position * inputs.shape[1]
        past = append_to_cache(cache[0], inputs[:, None], start)
        queries, _, _ = self._self_heads(inputs)
        _, keys, values = self._self_heads(past[:, 0])
        return self.attend_heads(queries, keys, values, mask), (past,)

    def attend_to(self, query, keys, values, mask=None):
        return super().attend_to(query, keys, values, mask)


class Doubled:
    def call(self, query, value=None, key=None, **masks):
        return 2 * super().call(query, value, key, **masks)


@keras.saving.register_keras_serializable(package="own")
class ForEncoders(Doubled, kt.MultiHeadAttention):
    stepwise_methods = ()


@keras.saving.register_keras_serializable(package="own")
class InFloat32(kt.MultiHeadAttention):
    def weights_of(self, queries, keys, mask=None, bias=None):
        queries, keys = (ops.cast(each, "float32") for each in (queries, keys))
        return ops.softmax(queries @ ops.swapaxes(keys, 2, 3))


def test_weights_of_another_dtype_are_cast_to_that_of_the_layer():
    layer = InFloat32(2, dtype="mixed_bfloat16")
    assert layer(np.ones((1, 3, 4), "float32")).dtype == "bfloat16"


@keras.saving.register_keras_serializable(package="own")
class NeedsMore(kt.MultiHeadAttention):
    def __init__(self, num_heads, slope, **kwargs):
        super().__init__(num_heads, **kwargs)


@keras.saving.register_keras_serializable(package="own")
class WithParts(kt.MultiHeadAttention):
    """Has unnamed weights, of which the first is state, and a layer of its own."""

    def __init__(self, num_heads, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.gate = keras.layers.Dense(6, name="gate")

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.gate.build(query_shape)
        self.count = self.add_weight((1,), "zeros", trainable=False)
        self.factor = self.add_weight((1,), "ones", name=None)


@keras.saving.register_keras_serializable(package="own")
class Unrecorded(kt.MultiHeadAttention):
    """Averages all values, and does not call `record_scores`, unless by its name it does."""

    recorded = ()

    def attend_heads(self, queries, keys, values, *args, **kwargs):
        if self.name in self.recorded:
            return super().attend_heads(queries, keys, values, *args, **kwargs)
        context = ops.mean(values, axis=2, keepdims=True) + 0 * queries
        return self.output_projection(merge_heads(context))


KINDS = {"temperature": TemperatureAttention, "additive": "keras_transformer>AdditiveAttention"}


@pytest.fixture(scope="module")
def model():
    return fill(kt.translation(11, **TINY, attention=TemperatureAttention))


@pytest.mark.parametrize("stack", ["Encoder", "Decoder"])
def test_a_stack_with_it_passes_every_check(stack, tmp_path):
    arguments = {"num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    arguments["attention"] = "own>TemperatureAttention"
    inputs = (normal(2, 5, 6), normal(2, 3, 4))[: 1 + (stack == "Decoder")]
    num_weights = 15 if stack == "Encoder" else 24
    check_layer(getattr(kt, stack), arguments, inputs, (2, 5, 6), num_weights, tmp_path)


def test_at_a_temperature_of_one_it_is_the_usual_attention():
    own, usual = (kt.translation(11, **TINY, attention=a) for a in (TemperatureAttention, None))
    fill(usual)
    usual_weights = iter(usual.get_weights())
    for weight in own.weights:
        if weight.name != "temperature":
            weight.assign(next(usual_weights))
    np.testing.assert_array_equal(score(own), score(usual))
    for weight in own.weights:
        if weight.name == "temperature":
            weight.assign(np.full(weight.shape, 3.0))
    assert np.abs(score(own) - score(usual)).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_equal_one_pass(kind):
    model = fill(kt.translation(11, **TINY, attention=KINDS[kind]))
    targets = np.where(TARGET == 0, 6, TARGET)
    steps = step_through(model, SOURCE, targets[:, :, None])
    np.testing.assert_allclose(steps[:, :, 0], score(model, target=targets), atol=1e-5)


@pytest.mark.parametrize("length", [None, 9], ids=["growing", "static"])
def test_a_cache_of_its_own_is_begun_read_and_extended(length):
    model = fill(kt.language_model(11, **TINY, attention=AttentionToInputs))
    ids = np.array([[2, 5, 9, 4, 7], [2, 8, 8, 3, 6]], "int32")
    cache = model.start_cache(2, num_beams=2, length=length)
    assert {len(each) for each in cache["keys_values"]} == {1}, "one tensor a block"
    _, cache = model.prefill(ops.array(ids[:, :3]), None, 3, cache)
    parents = np.array([[0, 0], [0, 0]])
    for position in (3, 4):
        newest = ops.array(np.stack([ids[:, position], [1, 1]], axis=1))
        logits, cache = model.step(newest, parents, position, cache)
        parents = np.array([[0, 1], [0, 1]])
        expected = array(model.logits(ids))[:, position]
        np.testing.assert_allclose(array(logits)[:, 0], expected, atol=1e-5)


def test_a_reloaded_model_is_the_same(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.decoder.attention is TemperatureAttention
    np.testing.assert_array_equal(score(loaded), score(model))


def test_a_file_of_a_class_that_is_not_imported_names_it(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model.keras")
    monkeypatch.delitem(keras.saving.get_custom_objects(), "own>TemperatureAttention")
    expected = "No attention is registered as own>TemperatureAttention. Import the module .* first"
    with pytest.raises(NotRegistered, match=expected):
        keras.saving.load_model(tmp_path / "model.keras")
    run = kt.serving.RunFolder(tmp_path)
    run.config_file.write_text('{"format": 1}')
    with pytest.raises(NotRegistered, match=expected):  # it is not damaged
        run.model()


def test_lora_freezes_its_weights_and_merges(model):
    tuned = kt.add_lora(model)
    assert {weight.name.partition("_")[2] for weight in tuned.trainable_weights} == {
        "lora_down",
        "lora_up",
    }
    np.testing.assert_allclose(score(kt.merge_lora(tuned)), score(model), atol=1e-5)


def test_lora_keeps_what_is_state_and_freezes_layers_inside():
    block = kt.EncoderBlock(num_heads=2, intermediate_dim=7, attention=WithParts)
    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, block(inputs))
    tuned = kt.add_lora(model)
    reloaded = keras.Model.from_config(tuned.get_config())
    for copy in (tuned, reloaded):
        assert {weight.name.partition("_")[2] for weight in copy.trainable_weights} == {
            "lora_down",
            "lora_up",
        }
    merged = kt.merge_lora(tuned)
    assert len(merged.trainable_weights) == len(model.trainable_weights)
    for copy in (tuned, merged):
        attention = copy.layers[-1].self_attention
        assert (array(attention.count), array(attention.factor)) == (0, 1)


def test_every_kind_of_model_has_it():
    small = {**TINY, "num_layers": 1, "attention": TemperatureAttention}
    for model in (kt.language_model(11, **small), kt.gpt2(vocabulary_size=11, **small)):
        assert type(model.decoder.blocks[0].self_attention) is TemperatureAttention
    for model in (kt.classifier(11, 3, **small), kt.bert(11, size="tiny", **small)):
        assert type(model.encoder.blocks[0].self_attention) is TemperatureAttention


class Unregistered(kt.MultiHeadAttention):
    pass


PATTERN = {"attention_pattern": {"pattern": "local", "block_size": 3}}
REFUSED = {
    "another class": (
        {"attention": keras.layers.MultiHeadAttention},
        "subclass of MultiHeadAttention, or its registered name. Received: .*MultiHeadAttention",
    ),
    "no class": ({"attention": 5}, "No attention is registered as 5."),
    "a name of something else": (
        {"attention": "keras_transformer>FeedForward"},
        "subclass of MultiHeadAttention.* Received: attention=FeedForward",
    ),
    "an unknown name": (
        {"attention": "own>Nothing"},
        "registered as own>Nothing. .* in a command, with --import",
    ),
    "a class without a name": (
        {"attention": Unregistered},
        r"must be registered.*register_keras_serializable\(\). Received: attention=Unregistered",
    ),
    "a pattern, too": (
        {"attention": TemperatureAttention, **PATTERN},
        "Give one of the two. Received: attention=TemperatureAttention, attention_pattern={",
    ),
    "one without steps": (
        {"attention": ForEncoders},
        r"DecoderBlock decodes with step and attend_to .* attention=ForEncoders with .*=\(\)",
    ),
    "Transformer-XL's": (
        {"attention": kt.RelativeAttention},
        r"decodes with step and attend_to.* attention=RelativeAttention with .*=\('step',\)",
    ),
    "a pattern's": (
        {"attention": "SparseAttention"},
        "chosen by its attention_pattern, not by its class. Received: attention=SparseAttention",
    ),
    "a constructor with another argument": (
        {"attention": NeedsMore},
        "no others without a default. Received: attention=NeedsMore, .* which raised: .*slope",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_decoded_or_saved_is_refused(case):
    arguments, expected = REFUSED[case]
    with pytest.raises(ValueError, match=expected):
        kt.language_model(11, **TINY, **arguments)


CALL = {"call": Doubled.call}
STEP = {"step": AttentionToInputs.step}
WITHOUT_STEPS = {
    "a call": ((kt.MultiHeadAttention,), CALL, "step and attend_to"),
    "a mixin's call": ((Doubled, kt.MultiHeadAttention), {}, "step and attend_to"),
    "a call over steps": ((AttentionToInputs,), CALL, "step and attend_to"),
    "one of two": ((kt.MultiHeadAttention,), CALL | STEP, "attend_to"),
    "Transformer-XL's": ((kt.RelativeAttention,), CALL, "step"),
}


@pytest.mark.parametrize("case", WITHOUT_STEPS)
def test_a_call_without_its_steps_is_refused_when_the_class_is_made(case):
    bases, own, missing = WITHOUT_STEPS[case]
    expected = f"must override {missing}, too.*stepwise_methods = .* Received: class Forgetful"
    with pytest.raises(ValueError, match=expected):
        type("Forgetful", bases, dict(own))
    type("WithoutSteps", bases, {**own, "stepwise_methods": ()})


def test_transformer_xl_needs_a_relative_attention_with_steps():
    with pytest.raises(ValueError, match=r"subclass of RelativeAttention.* attention=Temperature"):
        kt.transformer_xl(11, 3, **TINY, attention=TemperatureAttention)
    own = type("Stepless", (kt.RelativeAttention,), {**CALL, "stepwise_methods": ()})
    keras.saving.register_keras_serializable(package="own")(own)
    with pytest.raises(ValueError, match=r"XLBlock decodes with step of .* attention=Stepless"):
        kt.transformer_xl(11, 3, **TINY, attention=own)


def test_a_causal_attention_is_refused_where_all_positions_attend_to_all():
    with pytest.raises(ValueError, match=r"is causal.* EncoderBlock. .*=RelativeAttention"):
        kt.EncoderBlock(num_heads=2, intermediate_dim=7, attention=kt.RelativeAttention)


def test_a_name_needs_no_package_if_it_is_the_only_one():
    block = kt.EncoderBlock(num_heads=2, intermediate_dim=7, attention="AdditiveAttention")
    assert block.attention is kt.AdditiveAttention


@pytest.mark.parametrize("name", ["self_attention", "cross_attention"])
@pytest.mark.parametrize("stack", [kt.Encoder, kt.Decoder])
def test_an_attention_that_records_no_scores_is_named(stack, name, monkeypatch):
    others = {"self_attention", "cross_attention"} - {name}
    monkeypatch.setattr(Unrecorded, "recorded", others)
    layer = stack(1, num_heads=2, intermediate_dim=7, attention=Unrecorded)
    inputs = (normal(2, 5, 6), normal(2, 3, 6))[: 1 + (stack is kt.Decoder)]
    layer(*inputs)
    if stack is kt.Encoder and name == "cross_attention":  # which it does not have
        assert layer.attention_scores(*inputs)[0].shape == (2, 2, 5, 5)
        return
    for asked in layer, layer.blocks[0]:
        with pytest.raises(ValueError, match=f"`record_scores`. Received: none from {name}"):
            asked.attention_scores(*inputs)


def test_returned_scores_must_be_recorded():
    layer = Unrecorded(2)
    with pytest.raises(ValueError, match=r"`record_scores`. Received: none from unrecorded"):
        layer(normal(2, 5, 6), normal(2, 3, 6), return_attention_scores=True)


def test_an_encoder_needs_no_steps():
    block = kt.EncoderBlock(num_heads=2, intermediate_dim=7, attention=ForEncoders)
    assert block(normal(2, 5, 6)).shape == (2, 5, 6)


def test_other_libraries_cannot_hold_it(model):
    with pytest.raises(ConversionError, match=r"Hugging Face has no .* attention=Temperature"):
        check_dense(model.encoder)
    encoder = kt.Encoder(1, num_heads=2, intermediate_dim=7, attention=kt.MultiHeadAttention)
    encoder.build((2, 5, 6))
    check_dense(encoder)


def test_peft_cannot_hold_it(tmp_path):
    small = {**TINY, "num_layers": 1, "attention": TemperatureAttention}
    tuned = kt.add_lora(kt.gpt2(vocabulary_size=11, **small), 1, targets=["query_key_value"])
    with pytest.raises(ConversionError, match=r"PEFT has no .* attention=TemperatureAttention"):
        peft.write_peft(tuned, tmp_path / "adapter", "gpt2")
