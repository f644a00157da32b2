"""--pretrained of translation and language models: runs and released folders, tuned by command."""

import dataclasses
import functools
import io
import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import Converted
from keras_transformer.models.lora import lora_of, merge_lora
from keras_transformer.serving import RunFolder, Translator
from keras_transformer.serving.settings import kept_search, scoring_of
from tests.convert.folders import FAMILIES
from tests.reference import array
from train import classification, language_model, translation
from train import convert as command
from train.demo.corpus import demo_corpus
from train.language_model import LanguageModelConfig
from train.pretrained import completed
from train.translation import TranslationConfig

from .conftest import run_eagerly

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]
SHORT = ["--warmup-steps=1", "--peak-rate=0.003", "--checkpoint-every=4", "--average=2"]
TUNING = [*SHORT, "--tokens-per-batch=1024", "--max-length=60"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    corpus = demo_corpus(120)
    (path / "a").write_text("\n".join(corpus.sources) + "\n", "utf-8")
    (path / "b").write_text("\n".join(corpus.targets) + "\n", "utf-8")
    for name in "ab":
        lines = (path / name).read_text("utf-8").splitlines()[:5]
        lines[0] = " ".join(lines)  # more tokens than a BART here has positions
        (path / f"few_{name}").write_text("\n".join(lines) + "\n", "utf-8")
    return path


def pair_flags(files):
    return ["--source", str(files / "a"), "--target", str(files / "b")]


def losses(run):
    """The loss of each epoch."""
    history = (run / "history.csv").read_text().splitlines()
    place = history[0].split(",").index("loss")
    return [float(row.split(",")[place]) for row in history[1:]]


def family_of(name, tmp_path):
    path = tmp_path / "theirs"
    path.mkdir()
    FAMILIES[name](path)
    return path / "avg" if (path / "avg").exists() else path


def stopped_at(run, step):
    """Takes away what came after a step, as if the process had been killed there."""
    (run / "model.keras").unlink()
    for path in (run / "checkpoints").iterdir():
        number = re.search(r"\d+", path.name)
        if number and int(number[0]) > step:
            path.unlink()


OTHERS = [("marian of two vocabularies", True), ("m2m100", False), ("bart", True)]


@pytest.mark.parametrize(
    ("name", "is_run"),
    [*(pytest.param(*each, marks=pytest.mark.soak) for each in OTHERS), ("t5", False)],
)
def test_a_translation_model_is_tuned_from_a_folder_or_a_run(name, is_run, files, tmp_path, capsys):
    pretrained = family_of(name, tmp_path)
    before = convert.read(pretrained)
    if is_run:
        command.save_run(before, tmp_path / "converted")
        pretrained = tmp_path / "converted"
    run = tmp_path / "run"
    flags = [*pair_flags(files), *TUNING, "--pretrained", str(pretrained), "--run", str(run)]
    flags += ["--valid-source", str(files / "few_a"), "--valid-target", str(files / "few_b")]
    if name == "m2m100":
        flags += ["--target-language=de"]  # the source's is that of the folder
    if name == "t5":
        flags += ["--source-prefix", "sum: "]
    if name == "bart":
        flags += ["--lora-rank=2", "--lora-targets=value,widen,narrow"]
        with pytest.raises(SystemExit):
            translation.main([*flags, "--steps=8"])
        assert "--max-length must be at most 32 tokens, the positions" in capsys.readouterr().err
        flags += ["--max-length=32"]
    translation.main([*flags, "--steps=8"])
    weights = RunFolder(run).model().get_weights()
    stopped_at(run, 4)
    translation.main([*flags, "--steps=8"])
    said = capsys.readouterr().out
    assert "Resuming from step 4 of 8." in said
    for one, other in zip(weights, RunFolder(run).model().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    translation.main([*flags, "--steps=8"])
    assert "is already trained: nothing to do." in capsys.readouterr().out
    found = losses(run)
    assert len(found) > 1 and found[-1] < found[0]

    tuned, settings = Translator.load(run), json.loads((run / "config.json").read_text())
    kept = tuned.settings
    theirs = before.settings
    assert kept == dataclasses.replace(theirs, max_source_length=kept.max_source_length)
    assert kept.search.scoring == scoring_of(settings["scoring"], settings["length_penalty"])
    models = before.model, tuned.model
    one, other = ([layer.name for layer in model.layers] for model in models)
    assert one == other
    for layer in ("positions", "encoder", "decoder")[name in ("bart", "t5") :]:
        one, other = (model.get_layer(layer).get_config() for model in models)
        assert {**one, "dtype": ""} == {**other, "dtype": ""}
    one, other = (each.tokenizer.tokenize(["A dog"]).to_list()[0] for each in (tuned, before))
    assert one[-2:] == other[-2:]
    few = ["--source", str(files / "few_a"), "--target", str(files / "few_b")]
    with run_eagerly(False):  # long searches
        assert len(tuned(["A dog runs.", "a"])) == 2
        translation.main(["evaluate", "--run", str(run), *few])
    assert "BLEU: " in capsys.readouterr().out
    if name == "t5":
        assert tuned.tokenizer.prefix == settings["source_prefix"] == "sum: "
        assert tuned.target_tokenizer.prefix == ""
        with pytest.raises(SystemExit):
            translation.main([*flags, "--prepared", "p", "--run", str(tmp_path / "other")])
    if name == "m2m100":
        out = ["--name", "tuned", "--directory", str(tmp_path / "out")]
        translation.main(["export", "--run", str(run), *out])
        assert "Published" in capsys.readouterr().out
        assert (settings["source_language"], settings["target_language"]) == ("en", "de")
        assert not tuned.model.get_layer("output_bias").trainable


@pytest.mark.parametrize("name", [name for name, _ in OTHERS])
def test_a_tuning_is_built_with_the_settings_and_weights_of_its_family(
    name, files, tmp_path, capsys
):
    pretrained = family_of(name, tmp_path)
    before = convert.read(pretrained)
    settings = {"target_language": "de"} if name == "m2m100" else {}
    if name == "bart":
        flags = [*pair_flags(files), f"--pretrained={pretrained}", f"--run={tmp_path}/run"]
        said = refused(translation.main, flags, capsys)
        assert "--max-length must be at most 32 tokens, the positions" in said
        settings = {"max_length": 32}
    config = TranslationConfig(
        source=str(files / "a"), target=str(files / "b"), pretrained=str(pretrained), **settings
    )
    tuning = translation.TranslationExperiment(config)
    theirs = kept_search(before.settings)
    for setting in ("num_beams", "length_penalty", "max_target_length", "scoring"):
        assert getattr(tuning.config, setting) == theirs[setting], setting
    tokenizer = tuning.make_tokenizer()
    assert tuning.columns(tokenizer)[0]["source"].lengths.min() > 1
    model = tuning.build(tokenizer, None)
    for one, other in zip(model.weights, before.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    assert [layer.name for layer in model.layers] == [layer.name for layer in before.model.layers]
    if name == "m2m100":
        languages = tuning.config.source_language, tuning.config.target_language
        assert languages == ("en", "de"), "the source's is that of the folder"
        assert not model.get_layer("output_bias").trainable


def test_a_tuned_model_begins_as_the_one_that_it_tunes(files, tmp_path):
    """After one step of almost no rate; dropout and dtype are those of the command."""
    pretrained = family_of("marian", tmp_path)
    flags = [*pair_flags(files), *TUNING, "--pretrained", str(pretrained), "--steps=1"]
    flags += ["--peak-rate=1e-12", "--run", str(tmp_path / "run"), "--dropout=0.5", "--remat"]
    translation.main([*flags, "--dtype=mixed_bfloat16", "--num-beams=3"])
    tuned, before = RunFolder(tmp_path / "run").model(), convert.read(pretrained).model
    for one, other in zip(tuned.weights, before.weights, strict=True):
        if "seed" not in one.path:
            np.testing.assert_allclose(array(one), array(other), atol=1e-9, err_msg=one.path)
    encoder = tuned.get_layer("encoder")
    assert (encoder.dropout, encoder.remat) == (0.5, True)
    assert tuned.get_layer("embedding_dropout").rate == 0.5
    assert encoder.compute_dtype == tuned.get_layer("decoder").compute_dtype == "bfloat16"
    assert Translator.load(tmp_path / "run").settings.search.num_beams == 3


@pytest.mark.parametrize(
    ("name", "is_run"),
    [pytest.param("gpt2", False, marks=pytest.mark.soak), ("preset of gpt2", True)],
)
@pytest.mark.usefixtures("told_results")
def test_a_gpt2_is_tuned_from_a_folder_or_a_run(name, is_run, files, tmp_path, capsys):
    pretrained = family_of(name, tmp_path)
    if is_run:
        command.main(["--from", str(pretrained), "--run", str(tmp_path / "converted")])
        pretrained = tmp_path / "converted"
    run = tmp_path / "run"
    flags = ["--text", str(files / "a"), "--hold-out=0.2", *SHORT, "--batch-size=4"]
    flags += ["--pretrained", str(pretrained), "--run", str(run), "--evaluate-every=4"]
    language_model.main([*flags, "--steps=8"])
    said = capsys.readouterr().out
    if is_run:
        weights = RunFolder(run).model().get_weights()
        stopped_at(run, 4)
        language_model.main([*flags, "--steps=8"])
        assert "Resuming from step 4 of 8." in capsys.readouterr().out
        for one, other in zip(weights, RunFolder(run).model().get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    settings = json.loads((run / "config.json").read_text())
    assert (settings["model"], settings["tokens"], settings["context"]) == ("gpt2", "pieces", 32)
    found = losses(run)
    assert len(found) > 1 and found[-1] < found[0]
    assert "nats a token" in said
    language_model.main(["evaluate", "--run", str(run), "--text", str(files / "a")])
    language_model.main(["sample", "--run", str(run), "--prompt", "The", "--length=5"])
    said = capsys.readouterr().out
    assert "nats a token" in said and "The" in said
    if not is_run:
        out = ["--name", "tuned", "--directory", str(tmp_path / "out")]
        language_model.main(["export", "--run", str(run), *out])
        assert "Published" in capsys.readouterr().out


def test_the_nats_of_a_converted_gpt2_are_those_of_its_logits(files, tmp_path, capsys):
    """Its ids have no control ids among them: 0 is a token, and counts."""
    pretrained = family_of("preset of gpt2", tmp_path)
    found = convert.read(pretrained)
    table = found.model.get_layer("embedding").embeddings
    table.assign(array(table) * 20)
    command.save_run(found, tmp_path / "run")
    text = "! A dog runs! It is ten past six!"
    (tmp_path / "text").write_text(text)
    flags = ["evaluate", "--run", str(tmp_path / "run"), "--text", str(tmp_path / "text")]
    language_model.main([*flags, "--context=32", "--stride=32"])
    nats = float(re.search(r"([\d.]+) nats a token", capsys.readouterr().out)[1])
    ids = found.tokenizer.tokenize([text]).numpy()[0] - found.tokenizer.first_id
    assert len(ids) <= 32
    logits = array(found.model(ids[None, :-1].astype("int32")))[0].astype("float64")
    log_sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    expected = (log_sums - logits[np.arange(len(ids) - 1), ids[1:]]).mean()
    assert nats == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "model", [pytest.param("transformer", marks=pytest.mark.soak), "transformer_xl"]
)
def test_a_run_of_our_own_is_tuned(model, files, tmp_path, capsys):
    first = ["--text", str(files / "a"), *SHORT, "--model", model, "--num-layers=1"]
    first += ["--hidden-dim=16", "--num-heads=2", "--intermediate-dim=20", "--context=24"]
    first += ["--memory-length=9"] if model == "transformer_xl" else []
    language_model.main([*first, "--batch-size=4", "--steps=2", "--run", str(tmp_path / "first")])
    capsys.readouterr()
    flags = ["--text", str(files / "a"), *SHORT, "--pretrained", str(tmp_path / "first")]
    flags += ["--batch-size=6", "--steps=4", "--run", str(tmp_path / "run"), "--peak-rate=1e-12"]
    language_model.main(flags)
    models = [RunFolder(tmp_path / name).model() for name in ("first", "run")]
    for one, other in zip(*(each.trainable_weights for each in models), strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=1e-9, err_msg=one.path)
    settings = json.loads((tmp_path / "run/config.json").read_text())
    assert settings["model"] == model and settings["context"] == 24
    assert settings["memory_length"] == (9 if model == "transformer_xl" else None)
    language_model.main(["sample", "--run", str(tmp_path / "run"), "--length=5"])


def test_a_run_of_our_own_translation_is_tuned(files, run_of, tmp_path, monkeypatch, capsys):
    flags = [*pair_flags(files), *TUNING, "--pretrained", str(run_of("translation")), "--steps=2"]
    translation.main([*flags, "--run", str(tmp_path / "run")])
    assert Translator.load(tmp_path / "run").settings.search.num_beams == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog.\nIt is\n")))
    capsys.readouterr()
    with run_eagerly(False):
        translation.main(["translate", "--run", str(tmp_path / "run")])
    assert capsys.readouterr().out.count("\n") == 2


TUNED = {
    "marian of two vocabularies": (translation, ["--source={a}", "--target={b}"]),
    "gpt2": (language_model, ["--text={a}", "--batch-size=4"]),
    "bert": (classification, ["--tsv={tsv}", "--max-length=16", "--tokens-per-batch=64"]),
}
LORA = ["--lora-rank=3", "--lora-targets=query, output"]


def tuned_run(name, files, tmp_path, *more):
    """Tunes a model of a family for 8 steps; returns its folder and the call that does so again."""
    (trainer, flags), pretrained = TUNED[name], family_of(name, tmp_path)
    rows = [f"{'A dog' if i % 2 else 'It is'} {i}\t{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "tsv").write_text("\n".join(rows) + "\n")
    places = {"a": files / "a", "b": files / "b", "tsv": tmp_path / "tsv"}
    flags = [*(flag.format(**places) for flag in flags), *SHORT, "--steps=8", *more]
    flags += ["--pretrained", str(pretrained), "--run", str(tmp_path / "run")]
    trainer.main(flags)
    return pretrained, functools.partial(trainer.main, flags)


def check_that_it_resumes_without_its_pretrained(run, pretrained, again, capsys):
    expected = RunFolder(run).model().get_weights()
    stopped_at(run, 4)
    shutil.rmtree(pretrained)
    capsys.readouterr()
    again()
    assert "Resuming from step 4 of 8." in capsys.readouterr().out
    for one, other in zip(expected, RunFolder(run).model().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    again()
    assert "is already trained: nothing to do." in capsys.readouterr().out
    stopped_at(run, 0)
    said = refused(lambda _: again(), (), capsys)
    assert "theirs holds no run" in said, "no weights to begin with"


@pytest.mark.soak
@pytest.mark.parametrize("name", TUNED)
def test_a_stopped_tuning_resumes_without_its_pretrained(name, files, tmp_path, capsys):
    more = ["--max-length=60"] if name.startswith("marian") else []
    pretrained, again = tuned_run(name, files, tmp_path, *more)
    check_that_it_resumes_without_its_pretrained(tmp_path / "run", pretrained, again, capsys)


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.soak), "bert"])
def test_lora_trains_only_its_matrices_is_merged_and_resumes_without_its_pretrained(
    name, files, tmp_path, capsys
):
    pretrained, again = tuned_run(name, files, tmp_path, *LORA)
    trained = keras.saving.load_model(tmp_path / "run" / "model.keras", compile=False)
    lora = lora_of(trained)
    assert (lora.rank, lora.alpha, lora.targets) == (3, 6.0, ("query", "output"))
    theirs = {array(weight).tobytes() for weight in convert.read(pretrained).model.weights}
    for weight in trained.weights:
        is_new = "_lora_" in weight.name or "head" in weight.path
        if weight.trainable or weight.dtype == "float32":
            assert weight.trainable == is_new
            assert is_new or array(weight).tobytes() in theirs, weight.path
    expected = RunFolder(tmp_path / "run").model()
    assert lora_of(expected) is None
    for one, other in zip(merge_lora(trained).get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    check_that_it_resumes_without_its_pretrained(tmp_path / "run", pretrained, again, capsys)


def refused(main, flags, capsys):
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_flags_that_contradict_are_refused_in_one_line(files, tmp_path, capsys):
    marian, gpt2 = tmp_path / "marian", tmp_path / "gpt2"
    for path in (marian, gpt2):
        path.mkdir()
        FAMILIES[path.name](path)
    pair, run = pair_flags(files), ["--run", str(tmp_path / "run")]
    for given, message in (
        (
            ["--size=big"],
            f"has its own dimensions and vocabulary. Received: --pretrained {marian} and --size "
            "big.",
        ),
        (["--num-layers=3"], "and --num-layers 3."),
        (["--vocabulary-size=300"], "and --vocabulary-size 300."),
        (["--no-normalize-first"], "and --no-normalize-first."),
        (["--target-language=de"], "Only multilingual models"),
    ):
        flags = [*pair, "--pretrained", str(marian), *given, *run]
        assert message in refused(translation.main, flags, capsys), given
    said = refused(translation.main, [*pair, "--pretrained", str(gpt2), *run], capsys)
    assert "a folder of Marian" in said and "whose model is a language_model" in said
    text = ["--text", str(files / "a"), *run]
    for given, message in (
        (["--model=transformer"], "--model must be gpt2, as of --pretrained."),
        (["--tokens=bytes"], "--tokens must be pieces, as of --pretrained."),
        (["--context=33"], "--context must be at most 32"),
        (["--num-heads=2"], "and --num-heads 2."),
        (["--packed"], "--packed ends each document with the id 3, which the model of --pre"),
    ):
        flags = [*text, "--pretrained", str(gpt2), *given]
        assert message in refused(language_model.main, flags, capsys), given
    said = refused(language_model.main, [*text, "--pretrained", str(marian)], capsys)
    assert "a folder of GPT-2" in said
    for main, flags in ((translation.main, pair), (language_model.main, text)):
        said = refused(main, [*flags, "--pretrained=none", *run], capsys)
        assert "none holds no run" in said
    assert not (tmp_path / "run").exists()


def test_a_setting_of_zero_is_taken_from_what_is_tuned():
    """OpenNMT-tf's length penalty is 0 by default, and a Transformer-XL may have no memory."""
    config = TranslationConfig(pretrained="runs/theirs")
    theirs = Converted("", None, None, config={"num_beams": 3, "length_penalty": 0.0})
    found = completed(config, pretrained=theirs)
    assert (found.num_beams, found.length_penalty) == (3, 0.0)
    before = found.replace(num_beams=2)
    found = completed(config, before=before)
    assert (found.num_beams, found.length_penalty) == (2, 0.0)


def test_without_pretrained_settings_are_the_usual_ones():
    config = TranslationConfig()
    assert (config.num_beams, config.length_penalty, config.scoring) == (5, 1.0, "gnmt_heuristic")
    config = LanguageModelConfig()
    assert (config.model, config.size, config.tokens) == ("transformer", "small", "characters")
    assert config.context == 256
