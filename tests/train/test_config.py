"""Flags, files of settings, and what answers before TensorFlow is imported."""

import itertools
import os
import random
import re
import subprocess
import sys
import typing

import pytest
import yaml

import keras_transformer as kt
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.training.distribution import STRATEGIES
from train import cli, command, language_model, translation
from train.classification import ClassificationConfig
from train.convert import CONFIGS as CLASSES
from train.language_model import SIZES
from train.options import TrainOptions
from train.pretraining import PretrainingConfig
from train.run import Run
from train.settings import CONFIGS, Parser, allowed, flag_of, read_config
from train.translation import TranslationConfig


def parse(*flags):
    parser = Parser("translation", "")
    given_in = parser.add_settings(TranslationConfig)
    return TranslationConfig(**given_in(parser.parse_args(flags)))


def printed(capsys, *flags):
    """The settings of a translation that these flags make."""
    translation.main([*flags, "--print-config"])
    return capsys.readouterr().out


def test_every_setting_is_a_flag_with_help():
    parser = Parser("translation", "")
    parser.add_settings(TranslationConfig)
    shown = parser.format_help()
    for name, field in TranslationConfig.model_fields.items():
        assert f"{flag_of(name)} " in shown or f"{flag_of(name)}," in shown
        assert field.description


def test_a_flag_overrides_the_experiment_and_nothing_else(capsys):
    flags = ["--config", "multi30k", "--steps", "7", "--no-normalize-first", "--peak-rate", "0.5"]
    expected = TranslationConfig.load("multi30k").replace(
        steps=7, normalize_first=False, peak_rate=0.5
    )
    content = yaml.safe_load(printed(capsys, *flags))
    assert content.pop("command") == "translation"
    assert TranslationConfig(**content) == expected


def test_what_print_config_prints_is_read_again(capsys, tmp_path):
    flags = ["--source=über.txt", "--target=a: b # c", "--peak-rate=1e-5", "--dropout=0"]
    text = printed(capsys, *flags, '--token-rules={"min_length": 3}')
    (tmp_path / "mine.yaml").write_text(text)
    file = f"--config={tmp_path}/mine.yaml"
    assert printed(capsys, file) == text
    assert yaml.safe_load(text) | {"steps": 9} == yaml.safe_load(printed(capsys, file, "--steps=9"))


# No choices: what a flag leaves of the file may be out of bounds; then the error says so.
BOUNDS = "--warmup-steps must|--stride must|--max-length must|--vocabulary-size must|--size must"
BOUNDS += "|--memory-length needs|--from-scratch needs"


def accepted(make, *arguments, **values):
    """What a function returns; None if it raises ValueError."""
    try:
        return make(*arguments, **values)
    except ValueError:
        return None


def samples(cls):
    """Pairs of a setting and a value of it that is not its default, which are accepted alone."""
    values = {bool: [True, False], int: [2, 300], float: [0.5], str: ["x", "medium"]}
    for name, field in cls.model_fields.items():
        for kind in {*(typing.get_args(field.annotation) or [field.annotation])} - {type(None)}:
            for value in values.get(kind) or typing.get_args(kind) or [kind]:
                if value != field.default and accepted(cls, **{name: value}) is not None:
                    yield name, value


def as_flags(values):
    """As a command line gives them."""
    return {n: v if isinstance(v, bool) else str(v) for n, v in values.items()}


@pytest.mark.parametrize("cls", [*CLASSES.values()], ids=lambda cls: cls.command)
def test_a_flag_replaces_what_excludes_it_in_the_file(cls, caplog):
    """Pairs that are accepted one by one and refused together are found by trying all."""
    count = 0
    single = [(name, value) for name, value in samples(cls) if value not in (2, "x")]
    for (flag, value), (other, theirs) in itertools.permutations(single, 2):
        if flag == other or accepted(cls, **{flag: value, other: theirs}) is not None:
            continue
        count += 1
        flags, content = as_flags({flag: value}), {other: theirs}
        caplog.clear()
        assert cls.merged(flags, content, "mine.yaml") == cls(**flags), (flags, content)
        [said] = caplog.messages
        assert said.startswith((flag_of(flag), "--no-"))
        assert said.endswith(f" replaces {other}: {theirs} of mine.yaml.")
        with pytest.raises(ValueError, match=r"Received: [^(]*$"):
            cls.merged(flags | as_flags(content), {}, "mine.yaml")
        with pytest.raises(ValueError, match=r"Received: .* \(--.* from mine.yaml\)$"):
            cls.merged({}, {flag: value, other: theirs}, "mine.yaml")
    assert count >= {"pretraining": 2, "language_model": 30}.get(cls.command, 58)


def test_a_command_replaces_what_a_flag_excludes_and_says_where_values_come_from(capsys, caplog):
    flags = ["--config=shakespeare_cpu", "--text=a.txt", "--print-config"]
    language_model.main([*flags, "--valid-text=b.txt"])
    made = yaml.safe_load(capsys.readouterr().out)
    assert (made["hold_out"], made["valid_text"]) == (0.0, "b.txt")
    [said] = caplog.messages
    assert said == "--valid-text b.txt replaces hold_out: 0.1 of --config shakespeare_cpu."
    with pytest.raises(SystemExit):
        language_model.main([*flags, "--stride=300"])
    assert capsys.readouterr().err.endswith(
        "Received: --stride 300, --context 64. "
        "(--stride from the command line; --context from --config shakespeare_cpu)\n"
    )


@pytest.mark.soak
@pytest.mark.parametrize("cls", [*CLASSES.values()], ids=lambda cls: cls.command)
def test_flags_replace_only_what_excludes_them_in_drawn_files(cls, caplog):
    draw, single = random.Random(5), [*samples(cls)]
    sides = [], []
    while len(sides[0]) < 500:
        flags, content = (dict(draw.sample(single, draw.randrange(1, 6))) for _ in sides)
        if None not in (accepted(cls, **flags), accepted(cls, **content)):
            sides[0].append(flags), sides[1].append(content)
    num_replaced = 0
    for flags, content in zip(*sides, strict=True):
        caplog.clear()
        try:
            merged = cls.merged(as_flags(flags), content, "mine.yaml")
        except ValueError as error:
            assert re.match(BOUNDS, str(error)), (flags, content, str(error))
            continue
        replaced = [message.split(" replaces ")[1].split(":")[0] for message in caplog.messages]
        num_replaced += len(replaced)
        assert len({*replaced}) == len(replaced) and not {*replaced} & flags.keys()
        kept = {name: value for name, value in content.items() if name not in replaced}
        assert merged == cls(**{**kept, **flags}), (flags, content)
        for name in replaced:
            assert accepted(cls, **{**kept, **flags, name: content[name]}) is None, name
    assert num_replaced >= (5 if cls.command == "pretraining" else 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: translation\nstepps: 3", "There is no setting stepps. Received: stepps=3."),
        ("command: translation\nsteps: 0", "--steps must be a whole number, at least 1.*: 0."),
        ("command: translation\nsteps: 1e3", "--steps must be a whole number.*: 1e3."),
        ("command: classification", "experiment of this command.*command: translation.*of classif"),
        ("steps: 3", "with the line `command: translation`. Received: .*, of None."),
        ("- 3", "with the line `command: translation`"),
        ("steps: [", "must be a file of YAML. Received: .*mine.yaml.*: while parsing"),
        (None, "No such file or directory: .*mine.yaml"),
    ],
)
def test_a_wrong_file_of_settings_is_refused_in_a_line(text, expected, tmp_path, capsys):
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        translation.main([f"--config={tmp_path}/mine.yaml", f"--run={tmp_path}/run"])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and said.count("\n") == 1
    assert re.search(expected, said), said


def test_an_experiment_of_another_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        language_model.main(["--config=imdb", "--run=none"])
    expected = "an experiment of this command.*Received: 'imdb', of classification"
    assert re.search(expected, capsys.readouterr().err)


def test_an_unknown_experiment_is_named_with_those_that_exist():
    expected = r"one of bert_imdb, demo, imdb, imdb_bert, multi30k.*Received: 'multi31k'"
    with pytest.raises(ValueError, match=expected):
        read_config("multi31k", "translation")


def test_every_experiment_fits_its_limits():
    paths = list(CONFIGS.glob("*.yaml"))
    assert len(paths) > 10
    for path in paths:
        cls = CLASSES[yaml.safe_load(path.read_text())["command"]]
        config = cls.load(path.stem)
        assert config.replace() == config


def test_a_config_survives_its_file(tmp_path):
    config = parse("--steps", "11", "--source", "über.txt")
    run = Run(tmp_path, TranslationConfig)
    run.save_config(config)
    assert run.config() == config


def test_dimensions_leave_the_published_size_alone_unless_asked():
    assert "num_layers" not in parse().dimensions()
    assert parse("--num-layers", "3", "--dropout", "0").dimensions()["num_layers"] == 3
    assert parse("--num-decoder-layers", "3").dimensions()["num_decoder_layers"] == 3
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        assert name not in parse().dimensions()
        assert parse(f"--{name.replace('_', '-')}", "0").dimensions()[name] == 0
    assert "activation" not in parse().dimensions()
    assert parse("--activation", "relu").dimensions()["activation"] == "relu"
    assert parse("--activation", "gelu_tanh").dimensions()["activation"] is gelu_tanh


def test_sizes_are_those_of_the_models():
    """Named in the settings too, so that --help needs no TensorFlow."""
    for table, config_class in (
        (kt.models.encoder_decoder.SIZES, TranslationConfig),
        (kt.models.encoder_only.SIZES, ClassificationConfig),
        (kt.models.bert_models.SIZES, PretrainingConfig),
    ):
        assert allowed(config_class.model_fields["size"]) == f"one of {', '.join(table)}"
    for model, sizes in SIZES.items():
        experiment = language_model.LanguageModelExperiment(
            language_model.LanguageModelConfig(model=model, size=sizes[0]), texts=([], [])
        )
        assert tuple(experiment.sizes()) == sizes
    assert allowed(TrainOptions.model_fields["strategy"]) == f"one of {', '.join(STRATEGIES)}"


HELP = [
    *cli.MODULES,
    *(f"translation {name}" for name in ("translate", "evaluate", "export")),
    *("classification classify", "language-model sample"),
]


def help_of(module, *subcommand):
    """What --help of a module prints, without TensorFlow."""
    code = "import runpy, sys; sys.argv = sys.argv[1:]\n"
    code += f"try: runpy.run_module({module!r}, run_name='__main__')\n"
    code += "finally: assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, module, *subcommand, "--help"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("command", HELP)
def test_help_has_an_example_and_needs_no_tensorflow(command, capsys):
    name, *subcommand = command.split()
    module = "train" if name == "demo" else f"train.{name.replace('-', '_')}"
    shown = help_of(module, *subcommand)
    assert shown.startswith(f"usage: keras-transformer {command} ")
    assert re.search(rf"\n *keras-transformer {command}\s", shown) and "python -m" not in shown
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert capsys.readouterr().out == shown, "however it is called"


def test_help_of_the_benchmark_says_how_a_clone_runs_it():
    assert re.search(r"\n *python -m train\.benchmark\s", help_of("train.benchmark"))


@pytest.mark.slow
def test_a_command_that_starts_tensorflow_prints_nothing_of_its_own():
    """Neither TensorFlow's notes nor, on a machine without a GPU, that CUDA does not start."""
    command = [sys.executable, "-m", "train.convert", "--run=none", "--to=onnx", "--output=none"]
    environment = {name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr.startswith("error: none ") and done.stderr.count("\n") == 1, done.stderr


NOTES = [
    b"WARNING: All log messages before absl::InitializeLog() is called\n",
    b"I0000 00:00:1 port.cc:153] oneDNN is on\n",
    b"W0000 00:00:1 gpu.cc:1] a warning\n",
    b"E0000 00:00:1 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)\n",
    b"Segmentation fault\n",
]


@pytest.mark.parametrize(
    ("level", "gpus", "shown"),
    [("0", 0, NOTES), ("1", 0, [NOTES[2], NOTES[4]]), ("2", 0, [NOTES[4]]), ("3", 0, [NOTES[4]]),
     ("1", 1, NOTES[2:]), ("2", 1, NOTES[3:]), ("3", 1, [NOTES[4]])],
)  # fmt: skip
def test_the_notes_of_a_start_have_the_level_that_is_asked_for(
    level, gpus, shown, monkeypatch, capfdbinary
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(command, "gpu_count", lambda: gpus)
    with command.without_start_up_notes():
        os.write(2, b"".join(NOTES))
    assert capfdbinary.readouterr().err == b"".join(shown)


def test_mistakes_need_no_tensorflow():
    command = [sys.executable, "-X", "importtime", "-m", "train.translation"]
    for flag, expected in {"--steps=0": "--steps must be", "--stepps=1": "unrecognized"}.items():
        done = subprocess.run([*command, "--run=none", flag], capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert done.returncode == 2 and expected in lines[0] and len(lines) == 1
        assert "tensorflow" not in done.stderr
