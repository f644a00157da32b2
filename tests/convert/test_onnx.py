"""Our models in onnxruntime, beside themselves; a file is compared when it is written."""

import pathlib
import re
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.serving import SearchSettings, Translator
from train.demo.corpus import demo_corpus

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "convert.md"
CORPUS = demo_corpus(600)
SMALL = {"num_layers": 2, "hidden_dim": 12, "intermediate_dim": 17, "num_heads": 3}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.tokenizers.train_sentencepiece([*CORPUS.sources, *CORPUS.targets], 400)


def noisy(model, scale=0.2):
    """Weights of which every one matters, biases and scales too."""
    generator = np.random.default_rng(7)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + scale * generator.normal(size=weight.shape))
    return model


def small_bert(**options):
    return kt.bert(50, size="tiny", **SMALL, **options)


MODELS = {
    "translation": lambda: kt.translation(50, size="tiny", **SMALL),
    "two vocabularies": lambda: kt.translation(
        50, 60, size="tiny", tie_output=False, output_bias=True, activation="gelu", **SMALL
    ),
    "as Marian": lambda: kt.translation(
        50,
        size="tiny",
        pre_norm=False,
        activation="silu",
        positions={"interleaved": False},
        source_end=False,
        **SMALL,
    ),
    "packed": lambda: kt.translation(50, size="tiny", packed=True, **SMALL),
    "language model": lambda: kt.language_model(50, **SMALL),
    "packed language model": lambda: kt.language_model(50, packed=True, **SMALL),
    "strided language model": lambda: kt.language_model(
        50, attention_pattern={"pattern": "strided", "block_size": 4}, **SMALL
    ),
    "gpt2": lambda: kt.gpt2(vocabulary_size=50, num_layers=2, hidden_dim=12, num_heads=3),
    "transformer_xl": lambda: kt.transformer_xl(50, 3, memory_length=4, **SMALL),
    "classifier": lambda: kt.classifier(50, 3, dtype="mixed_bfloat16", **SMALL),
    "bert": small_bert,
    "bert_pretraining": lambda: kt.bert_pretraining(small_bert()),
    "bert_classifier": lambda: kt.bert_classifier(small_bert(), 3),
}


@pytest.mark.parametrize("kind", MODELS)
def test_answers_are_ours(kind, tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("keras_transformer.convert.graphs.TOLERANCE", 1e-5)
    model = noisy(MODELS[kind]())
    path = convert.write(convert.Converted("", model, tokenizer), "onnx", tmp_path / "model")
    names = {file.stem for file in path.glob("*.onnx")}
    translates = "source_ids" in str(model.input)
    assert names == ({"model", "encoder", "decoder"} if translates else {"model"})


def test_the_loop_of_the_guide_translates_as_we_do(tokenizer, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    model = noisy(kt.translation(405, size="tiny", num_layers=2), 0.1)
    lengths = {"max_source_length": 64, "max_target_length": 20}
    ours = Translator(model, tokenizer, settings=SearchSettings(1, **lengths))
    convert.write(ours, "onnx", tmp_path / "converted" / "mine")
    blocks = re.findall(r'```python title="oracle"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    [loop] = [block for block in blocks if "onnxruntime" in block]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(loop, names)
    assert capsys.readouterr().out.startswith("['")
    texts = demo_corpus(24, seed=3).sources
    assert names["translate"](texts, 19) == ours(texts)


def test_a_file_that_is_refused_is_not_left_behind(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    from keras_transformer.convert import onnx as module

    tokens = keras.Input((None,), name="token_ids", dtype="int32")
    special = keras.layers.Lambda(lambda x: keras.ops.erfinv(x * 0.01))(
        keras.layers.Embedding(50, 4)(tokens)
    )
    unknown = convert.Converted("", keras.Model(tokens, special), tokenizer)
    with pytest.raises(convert.ConversionError, match="ONNX has no operation for Erfinv in model"):
        convert.write(unknown, "onnx", tmp_path / "model")
    small = convert.Converted("", MODELS["classifier"](), tokenizer)
    with pytest.raises(
        convert.ConversionError, match=r"dtype must be float32 for ONNX. Received: 'int8'"
    ):
        convert.write(small, "onnx", tmp_path / "model", dtype="int8")
    exact = module.example
    monkeypatch.setattr(
        module,
        "example",
        lambda model: {
            name: array + (name == "output.logits") for name, array in exact(model).items()
        },
    )
    with pytest.raises(convert.ConversionError, match=r"Nothing was written.*logits differs by 1"):
        convert.write(small, "onnx", tmp_path / "model")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(convert.ConversionError, match=r"This format needs tf2onnx\. Install it\."):
        convert.write(small, "onnx", tmp_path / "model")
    assert not list(tmp_path.iterdir())
