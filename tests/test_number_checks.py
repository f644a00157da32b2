"""One checker for each kind of number: what it lets through, and what it says of the rest."""

import fractions
import inspect
import math
import re

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import layers
from keras_transformer.arguments import check_integer, check_number, check_probability
from keras_transformer.training.callbacks import BestScore
from keras_transformer.training.checkpoints import Checkpoints

NO_NUMBERS = [
    math.nan,
    math.inf,
    -math.inf,
    True,
    np.True_,
    "3",
    None,
    [3],
    3j,
    np.ones(1),
    10**400,
]


@pytest.mark.parametrize("value", [1, 7, np.int64(5), 2**31 - 1])
def test_integers_pass(value):
    check_integer("size", value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.0, 1.5, 0, -1, 2**31, 2**40])
def test_all_else_is_no_integer_of_at_least_one(value):
    with pytest.raises(ValueError, match=r"size must be an integer .* Received: size="):
        check_integer("size", value)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int8(3), fractions.Fraction(1, 3)])
def test_numbers_pass(value):
    check_number("alpha", value, above=0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1.0])
def test_all_else_is_no_positive_number(value):
    message = r"alpha must be a finite number above 0\. Received: alpha="
    with pytest.raises(ValueError, match=message):
        check_number("alpha", value, above=0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1, -0.1, 1.5])
def test_all_else_is_no_probability(value):
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\)\. Received: rate="):
        check_probability("rate", value)


def test_the_message_names_the_limits_the_reason_and_the_value():
    cases = [
        (lambda: check_integer("size", 2**31), "size must be an integer from 1 to 2147483647. "),
        (lambda: check_integer("size", 0), "size must be an integer of at least 1. "),
        (lambda: check_integer("size", 9, 2, 7, " Why."), "an integer from 2 to 7. Why. Received"),
        (lambda: check_number("size", "x"), "size must be a finite number. Received: size='x'."),
        (
            lambda: check_number("size", 2, least=-1, below=2),
            "size must be a finite number of at least -1 and below 2. Received: size=2.",
        ),
    ]
    for check, message in cases:
        with pytest.raises(ValueError) as caught:
            check()
        assert message in str(caught.value)


SIZES = {"num_heads": 2, "intermediate_dim": 7, "num_layers": 1}
NEEDED = {
    **SIZES, "pattern": "fixed", "block_size": 3, "summary_size": 2, "vocabulary_size": 11,
    "hidden_dim": 6, "max_sequence_length": 5, "rate": 0.1, "peak_rate": 0.5, "token_id": 3,
    "batch_size": 2, "memory_length": 3,
}  # fmt: skip
# By name of the argument, what it may be, and values that it may not be.
NO_COUNT = [math.nan, math.inf, True, "3", 1.5, 2.0, -1, 2**40]
NO_NUMBER = [math.nan, math.inf, -math.inf, True, "0.5", -1]
KINDS = {
    "num_heads intermediate_dim num_layers key_dim block_size summary_size vocabulary_size": "size",
    "hidden_dim max_sequence_length batch_size warmup_steps every keep num_labels rank": "size",
    "num_decoder_layers accumulation_steps num_buckets max_distance": "size",
    "memory_length first_position start_id token_id": "count",
    "pad_id": "id",
    "dropout attention_dropout activation_dropout token_dropout": "probability",
    "label_smoothing beta_1 beta_2": "probability",
    "rate": "rate",
    "norm_epsilon epsilon stddev learning_rate": "number",
    "max_wavelength peak_rate alpha clip_norm": "positive",
    "ema_momentum": "share",
}
OF_KIND = {
    "size": [*NO_COUNT, 0],
    "count": NO_COUNT,
    "id": [value for value in NO_COUNT if value != -1],
    "probability": [*NO_NUMBER, 1, 1.5],
    "rate": [*NO_NUMBER, 1.5],
    "number": NO_NUMBER,
    "positive": [*NO_NUMBER, 0],
    "share": [*NO_NUMBER, 0, 1],
}
BAD = {name: OF_KIND[kind] for names, kind in KINDS.items() for name in names.split()}
NOT_OURS = {"seed", "noise_shape", "axis"}  # Keras checks them


def inner_layers():
    from keras_transformer.layers.embedding import IgnoredToken
    from keras_transformer.layers.residual import Residual

    return [Residual, IgnoredToken]


def public_classes():
    classes = [getattr(layers, name) for name in layers.__all__]
    return [*classes, *inner_layers(), kt.InverseSqrtWarmup, kt.TokenCrossentropy, kt.TokenAccuracy,
            kt.Perplexity, kt.Adam]  # fmt: skip


def numeric_arguments(made):
    for name, parameter in inspect.signature(made).parameters.items():
        default = parameter.default
        is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
        if (name in BAD or is_number) and name not in NOT_OURS:
            yield name


def needed_by(made):
    parameters = inspect.signature(made).parameters.items()
    return {name: NEEDED[name] for name, each in parameters if name in NEEDED}


def drawn(makers):
    return [
        pytest.param(made, name, id=f"{made.__name__}-{name}")
        for made in makers
        for name in numeric_arguments(made)
    ]


def refused(made, name, value, arguments):
    message = rf"(?s)({name}|rate) must be .* Received: \w+={re.escape(repr(value))}"
    with pytest.raises(ValueError, match=message):
        made(**{**arguments, name: value})


@pytest.mark.parametrize(("made", "name"), drawn(public_classes()))
def test_no_bad_number_passes_a_constructor(made, name):
    arguments = needed_by(made)
    made(**arguments)
    for value in BAD[name]:
        refused(made, name, value, arguments)


MODELS = {
    "translation": (11,), "language_model": (11,), "gpt2": (), "bert": (11,), "classifier": (11, 3),
    "transformer_xl": (11, 2),
}  # fmt: skip
DIMENSIONS = {**SIZES, "hidden_dim": 6, "dropout": 0.1}


@pytest.mark.parametrize("name", MODELS)
def test_no_bad_dimension_passes_a_function_that_builds_a_model(name):
    build = getattr(kt, name)
    parameters = [each for each in inspect.signature(build).parameters if each in BAD]
    several = ("source_vocabulary_size", "target_vocabulary_size")
    required = dict(zip(list(inspect.signature(build).parameters), MODELS[name], strict=False))
    for argument in [
        *parameters,
        *DIMENSIONS,
        "attention_dropout",
        "activation_dropout",
        "key_dim",
    ]:
        for value in BAD[argument]:
            refused(build, argument, value, {**DIMENSIONS, **required})
    for argument in several if name == "translation" else ():
        for value in BAD["vocabulary_size"]:
            with pytest.raises(ValueError, match=r"vocabulary_size must be an integer"):
                build(**{**DIMENSIONS, **required, argument: value})


def test_no_bad_number_passes_lora_heads_scores_or_compile(tmp_path):
    model = kt.language_model(11, **DIMENSIONS)
    model.compile("sgd", "mse")
    backbone = kt.bert(11, **DIMENSIONS)
    recurrent = kt.transformer_xl(11, 2, **DIMENSIONS)
    ids = np.ones((2, 3), "int32")
    for name, call in {
        "rank": lambda value: kt.add_lora(model, rank=value),
        "alpha": lambda value: kt.add_lora(model, alpha=value),
        "num_labels": lambda value: kt.bert_classifier(backbone, value),
        "dropout": lambda value: kt.bert_classifier(backbone, 3, dropout=value),
        "clip_norm": lambda value: model.compile("sgd", "mse", clip_norm=value),
        "accumulation_steps": lambda value: model.compile("sgd", "mse", accumulation_steps=value),
        "ema_momentum": lambda value: model.compile("sgd", "mse", ema_momentum=value),
        "every": lambda value: Checkpoints(tmp_path, model, every=value),
        "keep": lambda value: Checkpoints(tmp_path, model, keep=value),
        "memory_length": lambda value: recurrent.score(ids, 2, value),
        "warmup_steps": lambda value: kt.InverseSqrtWarmup.of_paper(6, value),
        "hidden_dim": lambda value: kt.InverseSqrtWarmup.of_paper(value),
    }.items():
        for value in BAD[name]:
            if (name, value) != ("dropout", 1):  # Keras's own limit
                with pytest.raises(ValueError, match=rf"({name}|rate) must be .*Received: "):
                    call(value)
    for value in BAD["every"]:
        with pytest.raises(ValueError, match="every must be an integer"):
            BestScore(len, every=value)


def test_every_numeric_argument_is_drawn():
    drawn_names = {name for made in public_classes() for name in numeric_arguments(made)}
    assert drawn_names <= set(BAD)
    assert len(drawn(public_classes())) > 80
