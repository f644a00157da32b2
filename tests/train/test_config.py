import argparse
import dataclasses

import pytest

from train.config import CONFIGS, TranslationConfig, add_settings, config_of, load_config
from train.settings import fields_of


def parse(*flags):
    parser = argparse.ArgumentParser()
    add_settings(parser, TranslationConfig)
    return config_of(parser.parse_args(flags), TranslationConfig)


def test_every_setting_is_a_flag_with_help():
    parser = argparse.ArgumentParser()
    add_settings(parser, TranslationConfig)
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
    config.save(tmp_path / "config.json")
    assert TranslationConfig.load(tmp_path / "config.json") == config


def test_dimensions_leave_the_published_size_alone_unless_asked():
    assert "num_layers" not in parse().dimensions()
    assert parse("--num-layers", "3", "--dropout", "0").dimensions()["num_layers"] == 3
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        assert name not in parse().dimensions()
        assert parse(f"--{name.replace('_', '-')}", "0").dimensions()[name] == 0
