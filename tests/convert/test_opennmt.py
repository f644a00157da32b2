"""Runs of OpenNMT-tf 2.32 beside what it did with them, as record_opennmt.py recorded it."""

import atexit
import functools
import pathlib
import re
import shutil
import tempfile

import numpy as np
import pytest
import yaml

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert.opennmt import order_of
from keras_transformer.decoding import BeamSearch
from keras_transformer.serving import Translator
from tests.reference import array
from train import convert as command

RUNS = pathlib.Path(__file__).with_name("opennmt_runs.zip")
LONGEST = 30
NAMES = ["base", "shared", "post_norm"]


@functools.cache
def runs():
    """The folder of all runs, which lasts as long as this process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    shutil.unpack_archive(RUNS, folder.name)
    return pathlib.Path(folder.name)


@functools.cache
def run(name):
    """A converted run, what was recorded of it, and their ids at ours, of source and target."""
    converted = convert.read(runs() / name / "avg")
    sizes = [
        getattr(converted.model, f"{side}_embedding").vocabulary_size
        for side in ("source", "target")
    ]
    recorded = np.load(runs() / name / "recorded.npz")
    return converted, recorded, *map(order_of, sizes)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_opennmt(name):
    converted, recorded, source, target = run(name)
    given = {
        "source_ids": source.our_id_of[recorded["source_ids"]],
        "target_ids": target.our_id_of[recorded["target_ids"]],
    }
    logits = array(converted.model(given))
    expected = recorded["logits"][..., target.their_id_of]
    difference = np.abs(logits - expected).max()
    print(f"{name}: largest difference {difference:.1e} of {np.abs(expected).max():.1f}")
    assert difference < 1e-5
    given["source_ids"][given["source_ids"] == 0] = 3
    with_ends = array(converted.model(given))
    assert (np.abs(with_ends - logits)[1:].max() > 0.01) == (name == "shared"), "ends are ignored"
    np.testing.assert_array_equal(with_ends[0], logits[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_texts_and_greedy_translations_are_those_of_opennmt(name):
    converted, recorded, source, _ = run(name)
    texts = recorded["texts"].tolist()
    ids = converted.tokenizer.tokenize(texts)
    ends = [2] * (name == "shared")
    for row, ours in enumerate(ids.to_list()):
        assert [*source.their_id_of[ours], *ends] == recorded[f"ids_{row}"].tolist(), texts[row]
    rows = [[*row, 3] for row in ids.to_list()]
    source_ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, found in enumerate(rows):
        source_ids[row, : len(found)] = found
    functions = converted.model
    encoded = functions.encode(source_ids)
    found = BeamSearch(1)(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, 1),
        limits=[LONGEST + 1] * len(texts), start_id=2, end_id=3,
    )  # fmt: skip
    tokenizer = converted.target_tokenizer
    written = [text.decode() for text in tokenizer.detokenize(found.token_ids[:, 0]).numpy()]
    assert any(written)
    # Theirs joins an unknown piece as a sign of its own, and keeps a space at the end.
    expected = recorded["greedy"].tolist()
    assert [text.strip() for text in written] == [text.strip() for text in expected]


@pytest.fixture
def folder(tmp_path):
    return copied("base", tmp_path / "run")


def copied(name, path):
    """A run as training leaves it: the last checkpoint beside the settings."""
    shutil.copytree(runs() / name, path)
    for file in (path / "avg").iterdir():
        shutil.copy(file, path)
    shutil.rmtree(path / "avg")
    return path


@pytest.mark.slow
def test_a_run_is_made_translates_and_trains_on(tmp_path):
    folder = copied("post_norm", tmp_path / "theirs")
    (folder / "checkpoint").unlink()  # as in a copy of the last checkpoint alone
    change_settings(folder, "data", target_tokenization=None, source_tokenization={
        "mode": "none", "spacer_annotate": True, "sp_model_path": "source.model",
    })  # fmt: skip
    command.main(["--from", str(folder), "--run", str(tmp_path / "mine")])
    translator = Translator.load(tmp_path / "mine")
    converted, recorded, *_ = run("post_norm")
    texts = recorded["texts"].tolist()
    assert any(translator(texts))
    for one, other in zip(translator.model.weights, converted.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    for name in ("tokenizer", "target_tokenizer"):
        one, other = (getattr(model, name) for model in (translator, converted))
        assert one.tokenize(texts).to_list() == other.tokenize(texts).to_list()
    for settings in (translator.settings, converted.settings):
        search = settings.search
        assert (search.num_beams, search.scoring.length_penalty) == (4, 0.6)
    model = translator.model
    model.compile(kt.Adam(1e-2), kt.TokenCrossentropy(), clip_norm=1.0, run_eagerly=True)
    ids = np.random.default_rng(0).integers(4, 40, (8, 7)).astype("int32")
    inputs = {"source_ids": ids, "target_ids": ids}
    losses = model.fit(inputs, ids, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.oracle
@pytest.mark.slow
def test_ctranslate2_gives_sources_no_end_either(tmp_path):
    pytest.importorskip("ctranslate2")
    convert.write(convert.load(runs() / "base" / "avg"), "ctranslate2", tmp_path / "written")


def change_settings(folder, section, **values):
    file = folder / "data.yml"
    config = yaml.safe_load(file.read_text())
    config[section] |= values
    file.write_text(yaml.safe_dump(config))


def describe(text):
    return lambda folder: (folder / "model_description.py").write_text(text)


def drop(*names):
    return lambda folder: [file.unlink() for name in names for file in folder.glob(name)]


def drop_words(folder):
    words = (folder / "source.vocab").read_text("utf-8").split("\n")
    (folder / "source.vocab").write_text("\n".join(words[:-3]), "utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("*.index", "checkpoint"), r"not a folder with config\.json"),
        (drop("ckpt*.data*"), "cannot be read: "),
        (drop("*.yml"), "must hold the YAML file it was trained with"),
        (lambda folder: (folder / "data.yml").write_text("a: [1"), "must hold YAML"),
        (drop("model_description.py"), r"must hold model_description\.py"),
        (describe("model = "), "must be Python"),
        (describe("model = models.LuongAttention"), "must describe one of .*Received: None"),
        (describe("m = models.TransformerRelative"), "must describe one of .*Received: None"),
        (describe("m = Transformer(num_heads=h)"), "sizes as numbers and by keyword"),
        (describe("m = Transformer(None, None, 6, 512, 8)"), "sizes as numbers and by keyword"),
        (describe("m = Transformer(num_heads=0)"), "num_heads that divide 8. Received: 0"),
        (describe(f"m = {'-' * 10**5}1"), "must be Python"),
        (lambda folder: (folder / "data.yml").write_text("[" * 10**5), "must hold YAML"),
        (lambda folder: change_settings(folder, "data", source_vocabulary=[3]), "a string.*: .3"),
        (lambda folder: change_settings(folder, "data", source_tokenization=[3]), "a mapping or"),
        (describe("m = Transformer(num_heads=3)"), "num_heads that divide 8. Received: 3"),
        (describe("m = Transformer(ffn_activation=tf.nn.elu)"), "one of relu.*Received.*elu"),
        (describe("m = Transformer(position_encoder_class=None)"), "sinusoidal.*None, relu"),
        (drop("source.vocab"), r"names data/source\.vocab, which is missing. Put it next to it"),
        (drop_words, r"must hold 60 distinct words for the 61 rows .*Received: 58, \['<blank>'"),
        (drop("source.model"), r"names data/source\.model, which is missing. Put it next to it"),
        (
            lambda folder: change_settings(folder, "data", target_tokenization=None),
            r"must name a SentencePiece model .*target_tokenization.*Received: 2 of them",
        ),
        (
            lambda folder: change_settings(
                folder, "data",
                source_tokenization={"type": "OpenNMTTokenizer", "params": {"mode": "aggressive"}},
            ),
            "mode none and sp_model_path alone.*Received: .*aggressive",
        ),
        (
            lambda folder: change_settings(
                folder, "data", source_tokenization={"sp_model_path": "source.model"}
            ),
            "mode none and sp_model_path alone.*Received: .*source",
        ),
        (
            lambda folder: change_settings(
                folder, "data", source_sequence_controls={"start": True, "end": True}
            ),
            "start must be False or None",
        ),
        (
            lambda folder: shutil.copy(folder / "target.model", folder / "source.model"),
            "must have the pieces of source_vocabulary. Received: a model without",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(folder, change, message):
    change(folder)
    with pytest.raises(convert.ConversionError, match=message) as error:
        convert.read(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("counts", [[2, 1], [1, 2]])
def test_an_encoder_may_be_deeper_or_shallower_than_the_decoder(folder, counts, monkeypatch):
    whole = convert.read(folder).model
    read_all = convert.opennmt._arrays
    shallow = ("encoder", "decoder")[counts.index(1)]
    monkeypatch.setattr(convert.opennmt, "_arrays", lambda path: {
        name: array for name, array in read_all(path).items() if f"{shallow}/layers/1" not in name
    })  # fmt: skip
    converted = convert.read(folder)
    model = converted.model
    assert [model.encoder.num_layers, model.decoder.num_layers] == counts
    assert [converted.config[f"num{side}_layers"] for side in ("", "_decoder")] == counts
    for stack, other in ((model.encoder, whole.encoder), (model.decoder, whole.decoder)):
        for one, two in zip(stack.blocks[0].weights, other.blocks[0].weights, strict=True):
            np.testing.assert_array_equal(array(one), array(two))


def test_other_settings_are_named(folder, caplog):
    convert.read(folder)
    assert "not supported" not in caplog.text
    change_settings(folder, "params", coverage_penalty=0.2, label_smoothing=0.1)
    describe("m = Transformer(num_heads=2, maximum_relative_position=5)")(folder)
    convert.read(folder)
    for setting in (r"coverage_penalty=0\.2\.", "maximum_relative_position='5'"):
        assert re.search(rf"no effect here: {setting}", caplog.text)
