"""config.json edited by hand: each setting is checked as its flag is, and nothing goes unsaid."""

import json
import math
import random
import shutil

import numpy as np
import pytest

from keras_transformer.data import ParallelText
from keras_transformer.files import DamagedFile
from keras_transformer.serving import RunFolder
from keras_transformer.tokenizers import train_sentencepiece
from train import classification, convert, language_model, pretraining, translation
from train.classification import ClassificationConfig
from train.language_model import LanguageModelConfig
from train.pretraining import PretrainingConfig
from train.run import Run
from train.settings import flag_of
from train.translation import TranslationConfig, TranslationExperiment

from .conftest import SETTINGS

CONFIGS = (TranslationConfig, LanguageModelConfig, ClassificationConfig, PretrainingConfig)
VALUES = (
    None, True, False, 0, 1, -1, 0.5, 5.0, 1e300, 10**30, math.inf, math.nan, "", "text", "5",
    "relu", [], [3], {}, {"a": 1}, [[["deep"]]], "x" * 1000, "é\n",
)  # fmt: skip


def edit(path, **changes):
    content = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(content))


def same(value, found):
    """Whether a value of JSON is what was found for it."""
    if isinstance(value, str) or isinstance(found, str):
        return found is not None and type(found)(value) == found
    if isinstance(value, bool) and not isinstance(found, bool):
        return False
    return value is not None and found is not None and float(value) == float(found)


@pytest.mark.parametrize("cls", CONFIGS)
def test_an_edited_setting_is_used_as_it_is_there_or_refused_in_a_line(cls, tmp_path):
    run, draw = Run(tmp_path, cls), random.Random(cls.__name__)
    accepted = refused = 0
    for name in (*cls.model_fields, "no_such"):
        for value in draw.sample(VALUES, 11):
            run.save_config(cls())
            edit(tmp_path, **{name: value})
            try:
                found = getattr(run.config(), name)
            except ValueError as error:
                assert str(error).count("\n") == 0 and len(str(error)) < 500
                assert str(run.config_file) in str(error)
                refused += 1
            else:
                usual = getattr(cls(), name)
                assert same(value, found) or (value is None and found == usual), (name, value)
                accepted += 1
    assert accepted > 40 and refused > 100


@pytest.mark.parametrize("cls", CONFIGS)
def test_a_deleted_setting_is_named(cls, tmp_path):
    run = Run(tmp_path, cls)
    for name in cls.model_fields:
        run.save_config(cls())
        content = json.loads(run.config_file.read_text())
        del content[name]
        for others in ({}, {"checksum": 5}):
            run.config_file.write_text(json.dumps(content | others))
            with pytest.raises(ValueError, match=f"Settings are missing: {flag_of(name)}\\.$"):
                run.config()
        del content["checksum"]
        run.config_file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"Settings are missing: {flag_of(name)}\\.$"):
            run.config()


def test_an_edit_is_named_once(tmp_path, caplog):
    run = Run(tmp_path, TranslationConfig)
    run.save_config(TranslationConfig())
    assert run.config() == TranslationConfig() and not caplog.messages
    edit(tmp_path, seed=3)
    for _ in range(2):
        assert Run(tmp_path, TranslationConfig).config().seed == 3
    expected = f"{run.config_file} was edited by hand. Its settings are used as they are there."
    assert caplog.messages == [expected]
    edit(tmp_path, seed=1)
    assert run.config() == TranslationConfig() and caplog.messages == [expected], "undone"


DEPTH = 100_000
NESTED = ("[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH)
NO_OBJECTS = ("[]", '[["steps", 3]]', "3", "null", '"text"', "", "{", "\xff", *NESTED)


@pytest.mark.parametrize("number", range(len(NO_OBJECTS)))
def test_a_file_that_holds_no_settings_is_named(number, tmp_path):
    run = Run(tmp_path, TranslationConfig)
    run.config_file.write_text(NO_OBJECTS[number], "latin-1")
    said = r"config.json is damaged: .*; restore it, or choose"
    with pytest.raises(DamagedFile, match=said) as e:
        run.config()
    assert str(e.value).count("\n") == 0 and len(str(e.value)) < 400


@pytest.mark.parametrize("content", NESTED)
def test_labels_nested_too_deep_are_named(content, tmp_path):
    run = Run(tmp_path, ClassificationConfig)
    run.save_config(ClassificationConfig())
    run.labels_file.write_text(content)
    with pytest.raises(DamagedFile, match=r"labels.json is damaged: .*too deeply. Run"):
        run.labels()


TEXTS = ["a b", "b a c"]


def write_run_of_two(folder):
    texts = ParallelText(TEXTS, TEXTS), None
    experiment = TranslationExperiment(TranslationConfig(), texts)
    source, experiment.target_tokenizer = (train_sentencepiece(TEXTS[:n], 264 + n) for n in (1, 2))
    experiment.make_tokenizer = lambda: source
    run = Run(folder / "run", TranslationConfig)
    run.draft().write(experiment)
    run.create()


@pytest.fixture
def run(made_once, tmp_path):
    """A run that has a tokenizer for each side."""
    written = made_once("run of two tokenizers", write_run_of_two)
    return Run(shutil.copytree(written / "run", tmp_path / "run"), TranslationConfig)


LOST = ["missing", "empty", "cut off", "a bit"]


@pytest.mark.parametrize("how", LOST)
def test_without_checksums_a_run_still_has_two_tokenizers(how, run):
    content = bytearray(run.checksums_file.read_bytes())
    if how == "missing":
        run.checksums_file.unlink()
    else:
        content[len(content) // 2] ^= 1
        cut = {"empty": 0, "cut off": len(content) // 2}.get(how, len(content))
        run.checksums_file.write_bytes(content[:cut])
    assert run.target_tokenizer().vocabulary_size == 266
    run.target_tokenizer_file.unlink()
    with pytest.raises(DamagedFile, match=r"target_tokenizer.model is missing"):
        run.target_tokenizer()


def test_a_second_tokenizer_that_is_missing_is_named(run):
    run.target_tokenizer_file.unlink()
    with pytest.raises(DamagedFile, match=r"target_tokenizer.model is missing"):
        run.target_tokenizer()


@pytest.mark.parametrize("said", [False, None, 0, 1, "yes", [], {}])
def test_what_the_config_says_of_tokenizers_must_fit_the_files(said, run):
    edit(run.path, target_tokenizer=said)
    with pytest.raises(DamagedFile, match=r"target_tokenizer in .*config.json must be true, as .*"):
        run.target_tokenizer()


def test_a_resumed_run_keeps_its_two_tokenizers(run):
    run.record(TranslationConfig(steps=9000))
    assert run.has_two_tokenizers() and run.config().steps == 9000


def refused(main, flags, capsys):
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, flags)))
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


@pytest.mark.slow
def test_every_command_checks_an_edited_config(run_of, text, tmp_path, capsys):
    run = shutil.copytree(run_of("translation"), tmp_path / "run")
    edit(run, max_length="many")
    where = ["--run", run]
    for main, flags in (
        (translation.main, ["translate", *where]),
        (translation.main, ["evaluate", *where, "--source", text[3], "--target", text[7]]),
        (translation.main, ["export", *where, "--name=a", "--directory", tmp_path / "out"]),
        (translation.main, [*text, *SETTINGS, *where]),
        (convert.main, [*where, "--to=ctranslate2", "--output", tmp_path / "out"]),
    ):
        assert "--max-length must be a whole number, at least 2. Received: many." in refused(
            main, flags, capsys
        )
    for main, flags in (
        (classification.main, ["classify"]),
        (language_model.main, ["sample"]),
        (pretraining.main, ["--documents", __file__]),
    ):
        assert "belongs to another command" in refused(main, [*flags, *where], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_pretrained_of_another_command_is_named_as_such(run_of, text, tmp_path, capsys):
    run = run_of("translation")
    flags = ["--text", text[3], "--pretrained", run, "--run", tmp_path / "tuned"]
    assert "--pretrained must be a finished run of keras-transformer language-model" in refused(
        language_model.main, flags, capsys
    )


WRONG_MODELS = {
    "unknown class": (("SinusoidalEncoding", "NoSuch"), "Could not locate class 'NoSuch'."),
    "float8": (('"float32"', '"float8_e4m3fn"'), "policy=float8_e4m3fn."),
    "int8": (('"name": "float32"', '"name": "int8"'), "policy=int8."),
    "nested": ((None, NESTED[0]), "maximum recursion depth"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_model_that_cannot_be_loaded_is_named(name, run_of, tmp_path, capsys):
    import zipfile

    run = shutil.copytree(run_of("translation"), tmp_path / "run")
    (old, new), expected = WRONG_MODELS[name]
    with zipfile.ZipFile(run / "model.keras") as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    content = entries["config.json"].decode()
    entries["config.json"] = new if old is None else content.replace(old, new)
    assert entries["config.json"] != content
    with zipfile.ZipFile(run / "model.keras", "w") as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content)
    said = refused(translation.main, ["translate", "--run", run], capsys)
    assert "model.keras holds no model that can be loaded: " in said and expected in said
    assert said.endswith(" Run its training command again to recreate the file.\n")


@pytest.mark.slow
def test_a_translation_of_two_vocabularies_survives_the_loss_of_checksums(run_of, tmp_path):
    from keras_transformer.serving import Translator

    run = shutil.copytree(run_of("translation"), tmp_path / "run")
    shutil.copy(run / "tokenizer.model", run / "target_tokenizer.model")
    (run / "checksums.npz").unlink()
    edit(run, target_tokenizer=True)
    translator = Translator.load(run)
    assert translator.target_tokenizer is not translator.tokenizer
    (run / "target_tokenizer.model").unlink()
    with pytest.raises(DamagedFile, match=r"target_tokenizer.model is missing"):
        Translator.load(run)
    for one, other in zip(RunFolder(run).model().weights, translator.model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
