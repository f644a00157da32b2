"""Our models in onnxruntime, LiteRT and OpenVINO; files are compared when they are written."""

import pathlib
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import graphs
from keras_transformer.decoding import BeamSearch
from keras_transformer.serving import SearchSettings, Translator
from tests.convert.drawn import noisy
from train.demo.corpus import demo_corpus

oracle, soak = pytest.mark.oracle, pytest.mark.soak
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "to-other-formats.md"
FORMATS = {  # what runs each, and how its files end
    "onnx": ("onnxruntime", ".onnx"),
    "litert": ("ai_edge_litert", ".tflite"),
    "openvino": ("openvino", ".xml"),
}
SMALL = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 17, "num_heads": 3}
DEEP = {**SMALL, "num_layers": 2}  # for what is kept of each layer


MODELS = {
    "as Marian": lambda: kt.translation(
        50,
        60,
        size="tiny",
        tie_output=False,
        output_bias=True,
        normalize_first=False,
        activation="silu",
        positions={"interleaved": False},
        source_end=False,
        **SMALL,
    ),
    "language model": lambda: kt.language_model(50, **SMALL),
    "strided language model": lambda: kt.language_model(
        50, attention_pattern={"pattern": "strided", "block_size": 4}, **SMALL
    ),
    "gpt2": lambda: kt.gpt2(vocabulary_size=50, num_layers=2, hidden_dim=12, num_heads=3),
    "transformer_xl": lambda: kt.transformer_xl(50, 3, memory_length=4, **DEEP),
    "classifier": lambda: kt.classifier(50, 3, dtype="mixed_bfloat16", **SMALL),
    "bert_pretraining": lambda: kt.bert_pretraining(kt.bert(50, size="tiny", **SMALL)),
}
# Each model in one or two formats; the others are a soak. The guide's translation model, of two
# layers, is written in each.
WRITTEN = {
    "onnx": ("strided language model", "transformer_xl", "classifier"),
    "litert": ("as Marian", "language model", "transformer_xl", "bert_pretraining"),
    "openvino": ("gpt2", "transformer_xl", "bert_pretraining"),
}


@pytest.fixture(params=[pytest.param(format, marks=oracle) for format in FORMATS])
def format(request):
    pytest.importorskip(FORMATS[request.param][0])
    return request.param


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize(
    ("format", "kind"),
    [
        pytest.param(format, kind, marks=oracle if kind in WRITTEN[format] else soak)
        for format in FORMATS
        for kind in MODELS
    ],
    indirect=["format"],
)
def test_answers_are_ours(kind, format, tokenizer, tmp_path, demanding):
    model = noisy(MODELS[kind]())
    path = convert.write(convert.Converted("", model, tokenizer), format, tmp_path / "model")
    names = {file.stem for file in path.glob(f"*{FORMATS[format][1]}")}
    translates = "source_ids" in str(model.input)
    assert names == ({"model", "encoder", "decoder"} if translates else {"model"})


@pytest.fixture
def demanding(monkeypatch):
    """Files are compared in more and longer rows, and with a smaller tolerance."""
    for name, value in {
        "graphs.TOLERANCE": 1e-5,
        "examples.NUM_EXAMPLES": 5,
        "examples.EXAMPLE_LENGTH": 23,
    }.items():
        monkeypatch.setattr(f"keras_transformer.convert.{name}", value)


@pytest.fixture(scope="module")
def translated(tokenizer):
    """A translator, texts, and its translations of them."""
    keras.utils.set_random_seed(7)
    model = noisy(kt.translation(tokenizer.vocabulary_size, size="tiny", **DEEP))
    lengths = {"max_source_length": 64, "max_target_length": 20}
    ours = Translator(model, tokenizer, settings=SearchSettings(BeamSearch(1), **lengths))
    texts = demo_corpus(24, seed=3).sources
    return ours, texts, ours(texts)


def test_the_loop_of_the_guide_translates_as_we_do(
    format, translated, tmp_path, demanding, monkeypatch, capsys
):
    ours, texts, expected = translated
    path = convert.write(ours, format, tmp_path / "converted" / "mine")
    names = {file.stem for file in path.glob(f"*{FORMATS[format][1]}")}
    assert names == {"model", "encoder", "decoder"}
    blocks = re.findall(r'```python title="oracle"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    [loader] = [block for block in blocks if f"import {FORMATS[format][0]}" in block]
    [loop] = [block for block in blocks if "def translate" in block]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(loader, names)
    exec(loop, names)
    assert capsys.readouterr().out.startswith("['")
    assert names["translate"](texts, 19) == expected
    assert len(set(expected)) > 6


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize("length", [None, 5])
def test_a_functional_model_of_keras_layers_is_written(length, format, tokenizer, tmp_path):
    ids = keras.Input((length,), dtype="int32")
    vectors = keras.layers.Embedding(50, 4)(ids)
    inner = keras.Model(ids, [keras.layers.Dense(3)(vectors), keras.layers.Dense(2)(vectors)])
    ids = keras.Input((length,), dtype="int32")
    own = keras.Model([ids], inner(ids))
    path = convert.write(convert.Converted("", own, tokenizer), format, tmp_path / "model")
    assert list(path.glob(f"model{FORMATS[format][1]}"))


def test_a_model_without_an_embedding_or_not_functional_is_refused(format, tokenizer, tmp_path):
    numbers = keras.Input((5,))
    own = keras.Model(numbers, keras.layers.Dense(3)(numbers))
    with pytest.raises(convert.ConversionError, match=r"an embedding .* 0 embeddings\.$"):
        convert.write(convert.Converted("", own, tokenizer), format, tmp_path / "model")
    sequence = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(convert.ConversionError, match=r"Only a functional model .*<Sequential"):
        convert.write(convert.Converted("", sequence, tokenizer), format, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pattern", ["strided", pytest.param("local", marks=oracle)])
def test_a_decoder_with_a_pattern_decodes_more_tokens_than_a_block(pattern):
    model = kt.translation(
        50, size="tiny", attention_pattern={"pattern": pattern, "block_size": 4}, **SMALL
    )
    source, target = np.array([[5, 9, 7, 3]], "int32"), np.arange(4, 17, dtype="int32")[None]
    encoder, decoder = graphs.encoder_and_decoder(model)
    state, steps = encoder(tf.constant(source)), []
    for position, token in enumerate(target[0]):
        outputs = decoder(tf.constant([token]), tf.constant(position), *state.values())
        steps.append(outputs.pop("logits"))
        kept = {name: state[name] for name in state if name.startswith("encoded")}
        state = {**kept, **outputs}
    expected = model.logits(source, target)[0]
    np.testing.assert_allclose(np.concatenate(steps), expected, rtol=1e-4, atol=1e-4)


def test_a_decoder_with_fixed_blocks_is_refused(format, tokenizer, tmp_path):
    pattern = {"pattern": "fixed", "block_size": 8, "summary_size": 2}
    model = kt.translation(50, size="tiny", attention_pattern=pattern, **SMALL)
    with pytest.raises(convert.ConversionError, match=r"fixed blocks\. .*'block_size': 8"):
        convert.write(convert.Converted("", model, tokenizer), format, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_an_engine_cannot_hold_is_refused_in_one_line(format, tokenizer, tmp_path, capfd):
    tokens = keras.Input((None,), name="token_ids", dtype="int32")
    special = keras.layers.Lambda(lambda x: keras.ops.erfinv(x * 0.01))(
        keras.layers.Embedding(50, 4)(tokens)
    )
    unknown = convert.Converted("", keras.Model(tokens, special), tokenizer)
    capfd.readouterr()
    with pytest.raises(
        convert.ConversionError, match=r"model.* no operation for Erfinv\.$"
    ) as error:
        convert.write(unknown, format, tmp_path / "model")
    assert "\n" not in str(error.value)
    assert "Erfinv" not in capfd.readouterr().err
    small = convert.Converted("", MODELS["classifier"](), tokenizer)
    with pytest.raises(convert.ConversionError, match=r"dtype must be float32.* Received: 'int8'"):
        convert.write(small, format, tmp_path / "model", dtype="int8")
    assert not list(tmp_path.iterdir())


def test_a_file_that_answers_otherwise_is_not_left_behind(format, tokenizer, tmp_path, monkeypatch):
    writer = convert.writing.WRITERS[format]
    spoiled = writer._replace(
        example=lambda model: {
            name: array + (name == "output.logits") for name, array in writer.example(model).items()
        }
    )
    monkeypatch.setitem(convert.writing.WRITERS, format, spoiled)
    small = convert.Converted("", MODELS["classifier"](), tokenizer)
    with pytest.raises(convert.ConversionError, match=r"Nothing was written.*logits differs by 1"):
        convert.write(small, format, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("format", "library"), [("onnx", "tf2onnx"), ("openvino", "openvino")])
def test_a_writer_names_the_library_that_it_needs(
    format, library, tokenizer, tmp_path, monkeypatch
):
    small = convert.Converted("", MODELS["classifier"](), tokenizer)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        convert.ConversionError, match=rf"This format needs {library}\. Install it\."
    ):
        convert.write(small, format, tmp_path / "model")
    assert not list(tmp_path.iterdir())
