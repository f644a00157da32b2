"""Every number of every command: what is out of range is refused before any work."""

import math
import re

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.convert.folder import Converted
from keras_transformer.decoding import BeamSearch
from keras_transformer.serving import RunFolder, SearchSettings, Translator
from keras_transformer.serving.settings import kept_search
from keras_transformer.tokenizers import SymbolTokenizer
from train import classification, language_model, options, pretraining, translation
from train.classification import ClassificationConfig
from train.convert import save_run
from train.language_model import LanguageModelConfig
from train.launch import __main__ as launch
from train.pretraining import PretrainingConfig
from train.settings import LIMITS, Settings, allowed, flag_of, setting
from train.training_config import LEAST_PIECES
from train.translation import TranslationConfig

NOWHERE = ["--run", "RUN"]
# Each command: what runs it, its flags but the one that is drawn, its settings.
COMMANDS = {
    "translation": (translation.main, ["--tsv=nowhere", *NOWHERE], TranslationConfig),
    "language_model": (language_model.main, ["--text=nowhere.txt", *NOWHERE], LanguageModelConfig),
    "classification": (classification.main, ["--tsv=nowhere", *NOWHERE], ClassificationConfig),
    "pretraining": (pretraining.main, ["--documents=nowhere", *NOWHERE], PretrainingConfig),
    "devices": (translation.main, ["--tsv=nowhere", *NOWHERE], options.TrainOptions),
    "translate": (translation.main, ["translate", *NOWHERE], translation.TranslateOptions),
    "evaluate BLEU": (
        translation.main,
        ["evaluate", "--source=nowhere", "--target=nowhere", *NOWHERE],
        translation.EvaluateOptions,
    ),
    "export": (
        translation.main,
        ["export", "--name=no", *NOWHERE],
        translation.TranslationExportOptions,
    ),
    "export a classifier": (
        classification.main,
        ["export", "--name=no", *NOWHERE],
        options.ExportOptions,
    ),
    "sample": (language_model.main, ["sample", *NOWHERE], language_model.SampleOptions),
    "evaluate nats": (
        language_model.main,
        ["evaluate", "--text=nowhere", *NOWHERE],
        language_model.EvaluateOptions,
    ),
    "launch": (launch.main, ["--workers=2"], launch.LaunchOptions),
}


def kind_of(field):
    words = allowed(field)
    return words.split(",")[0]


def limits_of(field):
    """Pairs of a kind of limit and its value, such as ("ge", 1)."""
    return [
        (name, getattr(limit, name))
        for limit in field.metadata
        for name in LIMITS
        if hasattr(limit, name)
    ]


def beyond(field):
    """Values just outside of each limit, and what is no such number at all."""
    whole = kind_of(field) == "a whole number"
    yield from ("nan", "inf", "-inf", "many", "", "1,5")
    if whole:
        yield "1.5"
    for name, value in limits_of(field):
        if name in ("gt", "lt"):
            yield value
        elif name == "multiple_of":
            yield 2 * value + 1
        else:
            step = -1 if name == "ge" else 1
            yield value + step if whole else math.nextafter(value, step * math.inf)


def numbers_of(cls):
    numbers = ("a whole number", "a number")
    return {name: field for name, field in cls.model_fields.items() if kind_of(field) in numbers}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_number_outside_of_its_limits_is_refused_before_any_work(command, tmp_path, capsys):
    run, flags, cls = COMMANDS[command]
    flags = [str(tmp_path / "run") if flag == "RUN" else flag for flag in flags]
    tried = 0
    for name, field in numbers_of(cls).items():
        assert limits_of(field), f"{name} has no limit"
        for value in beyond(field):
            rest = ["--", "true"] if run is launch.main else []
            with pytest.raises(SystemExit) as caught:
                run([*flags, f"{flag_of(name)}={value}", *rest])
            expected = f"error: {flag_of(name)} must be {allowed(field)}. Received: {value}.\n"
            assert (caught.value.code, capsys.readouterr().err) == (2, expected)
            tried += 1
    assert tried or cls is options.ExportOptions
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_choice_is_checked_with_the_numbers(command, tmp_path, capsys):
    run, flags, cls = COMMANDS[command]
    flags = [str(tmp_path / "run") if flag == "RUN" else flag for flag in flags]
    for name, field in cls.model_fields.items():
        if kind_of(field).startswith("one of"):
            rest = ["--", "true"] if run is launch.main else []
            with pytest.raises(SystemExit):
                run([*flags, f"{flag_of(name)}=other", *rest])
            expected = f"{flag_of(name)} must be {allowed(field)}. Received: other."
            assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flags", "expected"),
    [
        ("translation", "--hidden-dim=6 --num-heads=4", "divisible by --num-heads.*6 and 4"),
        ("classification", "--num-heads=3", "divisible by --num-heads.*128 and 3"),
        (
            "translation",
            "--tokens-per-batch=9 --max-length=10",
            "at least --max-length.*9, --max-length 10",
        ),
        ("translation", "--activation=soft", "a Keras activation name.*Received: soft"),
        (
            "language_model",
            "--model=gpt2",
            "one of 124M, 355M.*--model gpt2. Received: --model gpt2 and --size small",
        ),
        ("translation", "--warmup-steps=0", "at least 1 with --schedule.*: --warmup-steps 0, "),
        (
            "language_model",
            "--tokens=pieces --vocabulary-size=260",
            "at least 261.*: .* 260",
        ),
        ("language_model", "--context=9 --stride=10", "at most --context.*10, --context 9"),
        ("language_model", "--memory-length=9", "needs --model transformer_xl"),
        (
            "language_model",
            "--model=transformer_xl --accumulation-steps=2",
            "must be 1 with --model transformer_xl.*Received: --accumulation-steps 2",
        ),
        (
            "classification",
            "--tokens=pieces --vocabulary-size=260",
            "at least 261.*Received: --vocabulary-size 260, --tokens pieces",
        ),
        (
            "classification",
            "--from-scratch",
            "--from-scratch needs --pretrained.*Received: --from-scratch, no --pretrained",
        ),
        (
            "classification",
            "--pretrained=no --size=former",
            "Received: --pretrained no and --size former",
        ),
        ("pretraining", "--max-length=9 --positions=8", "at most --positions.*9, --positions 8"),
        ("pretraining", "--label-smoothing=0.1", "--label-smoothing must be 0"),
        ("pretraining", "--hold-out=1", "0 or at least 2 documents"),
        ("launch", "--launcher=slurm", "one of local, ray. Received: slurm"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    command, flags, expected, tmp_path, capsys
):
    run, given, _ = COMMANDS[command]
    given = [str(tmp_path / "run") if flag == "RUN" else flag for flag in given]
    with pytest.raises(SystemExit):
        run([*given, *flags.split(), *(["--", "true"] if command == "launch" else [])])
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert re.search(expected, message), message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_requirements_name_settings_of_their_class(command):
    _, _, cls = COMMANDS[command]
    for sentence in (*cls.requirements, *getattr(cls, "text_requirements", ())):
        named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", sentence)}
        assert named and named <= cls.model_fields.keys(), sentence


def test_several_mistakes_are_a_line_each(capsys):
    with pytest.raises(SystemExit):
        translation.main(["--steps=0", "--dropout=1", "--run=nowhere", "--tsv=nowhere"])
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: --dropout must be a number, at least 0 and below 1. Received: 1."
    assert second == "error: --steps must be a whole number, at least 1. Received: 0."


def test_help_prints_limits_and_defaults(capsys):
    with pytest.raises(SystemExit):
        language_model.main(["sample", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--top-p float draw among the most likely" in shown
    assert "(a number, above 0 and at most 1)" in shown
    assert "tokens to write (a whole number, at least 0; default: 500)" in shown


def test_a_setting_that_no_class_has_is_named():
    class Options(Settings):
        rate: float | None = setting(None, "90 % of it", gt=0)

    with pytest.raises(ValueError, match=r"There is no setting rates. Received: rates=3."):
        Options(rates=3)
    with pytest.raises(ValueError, match=r"--rate must be a number, above 0. Received: True."):
        Options(rate="True")


LINES = [f"{'abcdefgh'[i % 8]} {'hgfedcba'[i % 8]}\t{'xy'[i % 2]}" for i in range(40)]
TRAININGS = {
    "translation": ("--tsv", "".join(f"{line}\n" for line in LINES)),
    "language_model": ("--text", "".join(LINES * 50)),
    "classification": ("--tsv", "".join(f"{line}\n" for line in LINES)),
    "pretraining": ("--documents", "\n\n".join(f"{line}. {line}." for line in LINES)),
}
# Between what a text needs and the limit.
ROOM = {
    "translation": {"vocabulary_size": 280, "max_length": 8, "tokens_per_batch": 8},
    "language_model": {"model": "transformer_xl", "batch_size": 3},
    "classification": {"vocabulary_size": 15},
    "pretraining": {"vocabulary_size": 16, "label_smoothing": 0.0},
}


def nearest(field, lowest):
    """The lowest or highest number that a field allows, or None."""
    for name, value in limits_of(field):
        if (name == "ge" and lowest) or (name == "le" and not lowest):
            return value
        if (name == "gt" and lowest) or (name == "lt" and not lowest):
            return math.nextafter(value, math.inf if lowest else -math.inf)
    return None


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("command", TRAININGS)
def test_a_number_at_its_limit_is_accepted_to_the_end(command, end, tmp_path):
    """One step of training with all settings at their lowest, or at their highest."""
    run, _, cls = COMMANDS[command]
    flag, text = TRAININGS[command]
    (tmp_path / "text.txt").write_text(text)
    # Only the cosine does without a warm-up.
    small = {
        "schedule": "cosine" if end == "lowest" else "inverse_sqrt",
        "num_layers": 1,
        "hidden_dim": 8,
        "intermediate_dim": 8,
        "num_heads": 2,
        "steps": 1,
    }
    at_limit = {
        name: nearest(field, end == "lowest")
        for name, field in numbers_of(cls).items()
        if not (end == "highest" and name == "hold_out")  # leaves no text to learn from
    }
    at_limit = {name: value for name, value in at_limit.items() if value is not None}
    given = small | at_limit | ROOM[command]
    flags = [
        f"{flag_of(name)}={value}" for name, value in given.items() if name in cls.model_fields
    ]
    run([flag, str(tmp_path / "text.txt"), *flags, "--run", str(tmp_path / "run")])
    weights = RunFolder(tmp_path / "run").model().get_weights()
    assert end == "highest" or all(np.isfinite(array).all() for array in weights)


def check_released(folder, count, seed=2):
    """Runs of released models, whose vocabularies and lengths nobody here has chosen."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        size = int(draw.integers(5, LEAST_PIECES))
        tokenizer = SymbolTokenizer("".join(chr(0x4E00 + i) for i in range(size - 4)))
        longest = int(draw.choice([4, 300, 5000, 16_384]))
        search = SearchSettings(BeamSearch(2), longest, longest)
        model = kt.translation(size, size="tiny", num_layers=1, hidden_dim=2, num_heads=1)
        config = {"num_layers": 1, "hidden_dim": 2, "num_heads": 1} | kept_search(search)
        released = Converted("translation", model, tokenizer, settings=search, config=config)
        save_run(released, folder / str(number))
        translator = Translator.load(folder / str(number))
        assert translator.tokenizer.vocabulary_size == size
        assert translator.settings.max_source_length == longest


def test_a_released_model_is_not_held_to_the_limits_of_training(tmp_path, capsys):
    check_released(tmp_path, 2)
    with pytest.raises(SystemExit):
        translation.main(["--tsv=nowhere", *NOWHERE, "--max-length=5000"])
    assert "--tokens-per-batch must be at least --max-length" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_many_released_models_are_not_held_to_the_limits_of_training(seed, tmp_path):
    check_released(tmp_path, 40, seed)
