"""Every model is of a class: built, saved, cloned and with LoRA."""

import functools
import inspect

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.models import text_model
from keras_transformer.models.copies import copy_with
from keras_transformer.models.text_model import Part
from tests.reference import fill

SMALL = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


def backbone(**options):
    return kt.bert(11, size="tiny", **SMALL, **options)


BUILDERS = {
    "translation": lambda: kt.translation(11, size="tiny", **SMALL),
    "language_model": lambda: kt.language_model(11, **SMALL),
    "gpt2": lambda: kt.gpt2(vocabulary_size=11, max_sequence_length=7, **SMALL),
    "transformer_xl": lambda: kt.transformer_xl(11, batch_size=2, **SMALL),
    "classifier": lambda: kt.classifier(11, 3, **SMALL),
    "bert": backbone,
    "bert_pretraining": lambda: kt.bert_pretraining(backbone()),
    "bert_classifier": lambda: kt.bert_classifier(backbone(), 3),
    "a pooled bert_classifier": lambda: kt.bert_classifier(backbone(), 3, pooling="mean"),
    "bert_token_labeller": lambda: kt.bert_token_labeller(backbone(), 3),
    "bert_question_answering": lambda: kt.bert_question_answering(backbone()),
}
# Parts that only some models have; all others are there.
OPTIONAL = {
    "embedding_norm",
    "source_embedding_norm",
    "soft_cap",
    "output_bias",
    "source_without_end",
    "pooler",
    "pooling",
}


def inputs_of(model):
    shapes = dict.fromkeys(("token_ids", "segment_ids", "source_ids", "target_ids"), (2, 5))
    shapes["masked_positions"] = (2, 2)
    draw = np.random.default_rng(0)
    return keras.tree.map_structure(
        lambda tensor: draw.integers(0, 2, shapes[tensor.name]).astype("int32"), model.input
    )


def outputs_of(model):
    outputs = model(inputs_of(model), training=False)
    return [keras.ops.convert_to_numpy(each) for each in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_keeps_its_class_and_parts(name, tmp_path):
    model = fill(BUILDERS[name]())
    assert isinstance(model, kt.models.TextModel) and name.endswith(("gpt2", model.kind))
    model.save(tmp_path / "model.keras")
    copies = {
        "saved": keras.saving.load_model(tmp_path / "model.keras"),
        "cloned": keras.models.clone_model(model),
        "LoRA": kt.add_lora(model),
        "another dtype": kt.models.with_dtype(model, "bfloat16"),
    }
    for how, copy in copies.items():
        assert type(copy) is type(model), how
        for part, attribute in vars(type(model)).items():
            if isinstance(attribute, Part):
                assert (getattr(copy, part) is None) == (getattr(model, part) is None), part
                assert part in OPTIONAL or getattr(copy, part) in copy.layers, part
    for ours, theirs in zip(outputs_of(model), outputs_of(copies["saved"]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def dtypes_of(model):
    """The compute dtypes of the layers that have weights."""
    return {layer.name: layer.compute_dtype for layer in model.layers if layer.weights}


@pytest.mark.parametrize("name", BUILDERS)
def test_heads_compute_in_float32_in_a_copy_as_in_a_model_that_is_built_so(name):
    model = BUILDERS[name]()
    copies = kt.models.with_dtype(model, "bfloat16"), copy_with(model, dtype="mixed_bfloat16")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        expected = dtypes_of(BUILDERS[name]())
    finally:
        keras.config.set_dtype_policy(before)
    assert [dtypes_of(copy) for copy in copies] == [expected] * 2
    heads = [layer for layer in copies[0].layers if expected.get(layer.name) == "float32"]
    for head in heads:  # bfloat16 has 1984 and 1992
        head.set_weights([0 * head.kernel, 0 * head.bias + 1989.19])
    near = [bool(np.isclose(each, 1989.19).any()) for each in outputs_of(copies[0])]
    assert sum(near) == len(heads)


def test_a_model_composes_with_layers_of_keras():
    model = kt.classifier(11, 3, **SMALL)
    outputs = keras.layers.Dense(2)(model.output)
    composed = kt.Model(model.input, outputs)
    assert composed(inputs_of(model)).shape == (2, 2)
    for each in composed, kt.Model.from_config(composed.get_config()):
        assert not isinstance(each, text_model.TextModel)


def test_other_objects_need_the_methods_that_are_used():
    with pytest.raises(
        ValueError, match=r"methods encode, .*Received: 'model' without start_cache"
    ):
        kt.serving.Translator("model", kt.tokenizers.SymbolTokenizer("ab"))


def probability_takers():
    """Every loss and metric of Keras whose numbers change if it is told that it gets logits."""
    told = {"from_logits": True, "threshold": 0.0, "thresholds": 0.0}
    for module in (keras.losses, keras.metrics):
        for name, each in vars(module).items():
            if not callable(each) or name in ("F1Score", "FBetaScore"):  # of the highest
                continue
            parameters = inspect.signature(each).parameters
            if argument := next(filter(parameters.__contains__, told), None):
                yield module, name, {argument: told[argument]}
    yield keras.losses, "KLDivergence", None
    yield keras.metrics, "Poisson", None
    yield keras.metrics, "kl_divergence", None


TAKERS = list(probability_takers())


@pytest.mark.parametrize(("module", "name", "told"), TAKERS)
def test_a_model_with_logits_refuses_what_takes_probabilities(module, name, told):
    model, taker = BUILDERS["classifier"](), getattr(module, name)
    is_function = inspect.isfunction(taker)
    message = "no argument" if told is None else rf"Give \w+\({next(iter(told))}="

    def compiled(each):
        given = {"loss": each} if module is keras.losses else {"loss": "mse", "metrics": [each]}
        model.compile("sgd", **given)

    with pytest.raises(ValueError, match=rf"returns logits, which \w+ would take.*{message}"):
        compiled(taker if is_function else taker())
    if told:
        compiled(functools.partial(taker, **told) if is_function else taker(**told))


def test_names_of_losses_and_metrics_are_judged_as_what_they_name():
    model, one = BUILDERS["classifier"](), kt.classifier(11, 1, **SMALL)
    for loss in ("categorical_crossentropy", "SparseCategoricalCrossentropy", "kl_divergence"):
        with pytest.raises(ValueError, match=f"Received: loss='{loss}'"):
            model.compile("sgd", loss=loss)
    for metric in ("ce", "crossentropy", "AUC", "Precision", "binary_accuracy"):
        for name in ("metrics", "weighted_metrics"):
            with pytest.raises(ValueError, match=f"Received: {name}='{metric}'"):
                model.compile("sgd", loss="mse", **{name: [metric]})
    with pytest.raises(ValueError, match=r"Give BinaryAccuracy\(threshold=0.0\)"):
        one.compile("sgd", loss="mse", metrics=["accuracy"])
    for metric in ("accuracy", "F1Score", keras.metrics.TopKCategoricalAccuracy(2)):
        model.compile("sgd", loss="mse", metrics=[metric])
    precision = keras.metrics.Precision(top_k=1)
    model.compile("sgd", kt.TokenCrossentropy(), metrics=[precision, lambda y, p: p[:, 0]])


@pytest.mark.parametrize("name", BUILDERS)
def test_models_know_whether_they_give_logits(name):
    model = BUILDERS[name]()
    assert model.gives_logits == (name not in ("bert", "bert_pretraining"))
    if model.gives_logits:
        with pytest.raises(ValueError, match=r"from_logits=True"):
            model.compile("sgd", "categorical_crossentropy")


def test_what_somebody_builds_on_top_is_not_judged():
    inner = BUILDERS["classifier"]()
    probabilities = keras.layers.Softmax()(inner.output)
    model = kt.Model(inner.input, probabilities)
    model.compile("sgd", "categorical_crossentropy", metrics=["ce"])
