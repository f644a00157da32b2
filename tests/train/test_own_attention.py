"""--import and --attention: a class of the user's own in the commands."""

import io
import json
import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.files import save_arrays
from keras_transformer.layers.block import NotRegistered, registered_attention
from keras_transformer.serving import Translator
from keras_transformer.serving.publishing.c_api import ask
from train import convert, translation
from train.run import Run
from train.settings import import_modules

from .conftest import SETTINGS

NAME = "mine>TemperedAttention"
# Under a name that no other test has registered in this process.
MODULE = (pathlib.Path(__file__).parents[1] / "own_attention.py").read_text("utf-8")
MODULE = MODULE.replace('"own"', '"mine"').replace("TemperatureAttention", "TemperedAttention")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the module; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("nowhere")  # so that `sys.path` is restored
    (tmp_path / "my_attention.py").write_text(MODULE)
    yield tmp_path
    forget()


def forget():
    """As in a new process: nothing has imported the module."""
    sys.modules.pop("my_attention", None)
    keras.saving.get_custom_objects().pop(NAME, None)


def message(capsys, main, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_module_that_cannot_be_imported_is_named_in_a_line(folder):
    (folder / "broken.py").write_text("1 / 0")
    (folder / "wrong.py").write_text("def f(:\n")
    expected = "current folder or an installed one. Received: {}, {}: "
    for name, error in (
        ("no_such", "ModuleNotFoundError"),
        ("broken", "ZeroDivisionError"),
        ("wrong", "SyntaxError"),
    ):
        with pytest.raises(ValueError, match=expected.format(name, error)) as caught:
            import_modules(["json", name])
        assert "\n" not in str(caught.value)


def test_a_class_is_found_with_and_without_its_package(folder):
    expected = r"No attention is .* TemperedAttention.*--import.* classes are .*AdditiveAttention"
    with pytest.raises(NotRegistered, match=expected):
        registered_attention("TemperedAttention")
    import_modules(["my_attention"])
    own = keras.saving.get_custom_objects()[NAME]
    for name in ("TemperedAttention", NAME):
        assert registered_attention(name) is own
    keras.saving.register_keras_serializable(package="other")(type("TemperedAttention", (own,), {}))
    with pytest.raises(NotRegistered, match="Several attentions are registered as Tempered"):
        registered_attention("TemperedAttention")
    keras.saving.get_custom_objects().pop("other>TemperedAttention")
    with pytest.raises(NotRegistered, match="No attention is registered as FeedForward"):
        registered_attention("FeedForward")


def test_a_pretrained_run_that_resumes_names_the_missing_module(tmp_path, monkeypatch):
    run = Run(tmp_path, None)
    monkeypatch.setattr(Run, "exists", lambda self: True)
    monkeypatch.setattr(Run, "tokenizer", lambda self: None)
    monkeypatch.setattr(Run, "target_tokenizer", lambda self: None)
    run.model_file.write_text("")
    block = kt.EncoderBlock(num_heads=2, intermediate_dim=7)
    inputs = keras.Input((5, 6))
    content = keras.Model(inputs, block(inputs)).to_json()
    content = content.replace('"attention": null', f'"attention": "{NAME}"')
    save_arrays(run.pretrained_file, [("json", np.frombuffer(content.encode(), "u1"))])
    with pytest.raises(NotRegistered, match=f"No attention is registered as {NAME}.*--import"):
        run.pretrained()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_exports")
def test_a_training_and_all_that_use_it_import_the_module(folder, text, monkeypatch, capsys, eager):
    flags = [*text[:2], *text[4:6], *SETTINGS, "--steps=3", "--attention=TemperedAttention"]
    flags += ["--run", "run"]
    assert "--import" in message(capsys, translation.main, *flags)
    own = ["--import", "my_attention"]
    translation.main([*flags, *own])
    assert json.loads((folder / "run" / "config.json").read_text())["attention"] == NAME
    model = Translator.load("run").model
    assert [w for w in model.weights if w.name == "temperature" and np.ptp(w) > 0], "it learns"
    capsys.readouterr()
    translation.main([*flags, *own])
    assert "already trained" in capsys.readouterr().out

    # Of all that a new process is asked for, nothing works without the module.
    commands = {
        "translate": (translation.main, ["translate", "--run", "run"]),
        "train": (translation.main, flags),
        "tune": (translation.main, [*text[:2], *text[4:6], "--pretrained", "run", "--run", "b"]),
        "convert": (convert.main, ["--run", "run", "--to", "huggingface", "--output", "c"]),
    }
    for main, arguments in commands.values():
        forget()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
        error = message(capsys, main, *arguments)
        assert "--import" in error and error.count("\n") == 1, error
    assert not (folder / "b").exists() and not (folder / "c").exists()

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\nde\n")))
    translation.main([*commands["translate"][1], *own])
    translations = capsys.readouterr().out.splitlines()
    assert len(translations) == 2
    translation.main(["export", "--run", "run", "--name", "mine", *own])
    [answer] = ask("saved_models/mine/1", [{"inputs": {"text": ["abc", "de"]}}])
    assert answer["outputs"]["translation"] == translations, "without the module"
    forget()
    error = message(capsys, convert.main, *commands["convert"][1], *own)
    assert "attention=TemperedAttention" in error
