import argparse
import dataclasses
import os
import re
import subprocess
import sys

import pytest

from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.training.distribution import STRATEGIES
from train.classification import ClassificationConfig
from train.config import CONFIGS, config_of, load_config
from train.language_model import SIZES
from train.options import TrainOptions
from train.pretraining import PretrainingConfig
from train.run import Run
from train.settings import add_flags, allowed, fields_of
from train.translation import TranslationConfig


def parse(*flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_flags(parser, TranslationConfig)
    options = parser.parse_args(flags)
    return config_of(TranslationConfig, options.config, options)


def test_every_setting_is_a_flag_with_help():
    parser = argparse.ArgumentParser()
    add_flags(parser, TranslationConfig)
    shown = parser.format_help()
    for name, field in fields_of(TranslationConfig).items():
        assert "--" + name.replace("_", "-") in shown
        assert field.description


def test_a_flag_overrides_the_experiment_and_nothing_else():
    config = parse("--config", "multi30k", "--steps", "7", "--pre-norm", "--peak-rate", "0.5")
    expected = dataclasses.replace(load_config("multi30k"), steps=7, pre_norm=True, peak_rate=0.5)
    assert config == expected


def test_an_unknown_experiment_is_named_with_those_that_exist():
    with pytest.raises(
        ValueError, match=r"one of bert_imdb, demo, imdb, imdb_bert, multi30k.*Received: 'multi31k'"
    ):
        load_config("multi31k")


def test_every_experiment_fits_its_limits():
    names = [path.stem for path in CONFIGS.glob("[a-z]*.py")]
    assert len(names) > 10
    for name in names:
        config = load_config(name)
        assert dataclasses.replace(config) == config


def test_a_config_survives_its_file(tmp_path):
    config = parse("--steps", "11", "--source", "über.txt")
    run = Run(tmp_path, TranslationConfig)
    run.save_config(config)
    assert run.config() == config


def test_dimensions_leave_the_published_size_alone_unless_asked():
    assert "num_layers" not in parse().dimensions()
    assert parse("--num-layers", "3", "--dropout", "0").dimensions()["num_layers"] == 3
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        assert name not in parse().dimensions()
        assert parse(f"--{name.replace('_', '-')}", "0").dimensions()[name] == 0
    assert "activation" not in parse().dimensions()
    assert parse("--activation", "relu").dimensions()["activation"] == "relu"
    assert parse("--activation", "gelu_tanh").dimensions()["activation"] is gelu_tanh


def test_sizes_are_those_of_the_models():
    """Named in the settings too, so that --help needs no TensorFlow."""
    from train.experiments import classification, language_model, pretraining, translation

    for module, config_class in (
        (translation, TranslationConfig),
        (classification, ClassificationConfig),
        (pretraining, PretrainingConfig),
    ):
        assert allowed(fields_of(config_class)["size"]) == f"one of {', '.join(module.SIZES)}"
    sizes = {name: tuple(table) for name, table in language_model.SIZES.items()}
    assert sizes == SIZES
    assert allowed(fields_of(TrainOptions)["strategy"]) == f"one of {', '.join(STRATEGIES)}"


HELP = [
    *(f"train.{name}" for name in ("translation", "classification", "language_model")),
    *("train.pretraining", "train", "train.launch", "train.benchmark", "train.convert"),
    *(f"train.translation {name}" for name in ("translate", "evaluate", "export")),
    *("train.classification classify", "train.language_model sample"),
]


@pytest.mark.parametrize("command", HELP)
def test_help_has_an_example_and_needs_no_tensorflow(command):
    module, *subcommand = command.split()
    code = "import runpy, sys; sys.argv = sys.argv[1:]\n"
    code += f"try: runpy.run_module({module!r}, run_name='__main__')\n"
    code += "finally: assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, module, *subcommand, "--help"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"\n *python -m {command}\s", done.stdout)


@pytest.mark.slow
def test_a_command_that_starts_tensorflow_prints_nothing_of_its_own():
    """Neither TensorFlow's notes nor, on a machine without a GPU, that CUDA does not start."""
    command = [sys.executable, "-m", "train.convert", "--run=none", "--to=onnx", "--output=none"]
    environment = {name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr.startswith("error: none ") and done.stderr.count("\n") == 1, done.stderr


def test_mistakes_need_no_tensorflow():
    command = [sys.executable, "-X", "importtime", "-m", "train.translation"]
    for flag, expected in {"--steps=0": "--steps must be", "--stepps=1": "unrecognized"}.items():
        done = subprocess.run([*command, "--run=none", flag], capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert done.returncode == 2 and expected in lines[0] and len(lines) == 1
        assert "tensorflow" not in done.stderr
