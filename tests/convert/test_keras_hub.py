"""KerasHub's BERT and GPT-2 beside KerasHub itself, read and written, with random weights."""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import keras_hub as module
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.serving import Generator, SamplingSettings
from keras_transformer.tokenizers import train_byte_pairs, train_word_pieces
from tests.reference import array
from train import convert as command
from train.classification import ClassificationConfig, ClassificationExperiment
from train.demo.corpus import demo_corpus
from train.pretrained import fine_tuned_classifier

keras_hub = pytest.importorskip("keras_hub")
pytestmark = pytest.mark.oracle
CORPUS = demo_corpus(300)
SIZES = {
    "num_layers": 2, "num_heads": 5, "hidden_dim": 30, "intermediate_dim": 33,
    "max_sequence_length": 31,
}  # fmt: skip
TEXTS = [*demo_corpus(200, seed=5).sources, "naïve Café!", "日本 is 12,50 €", "x = f(y)  ;", ""]

SHORT = [text[:15] for text in TEXTS[:9]]


def noisy(model, seed=1, scale=0.3):
    draw = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        middle = float("gamma" in weight.name)
        weight.assign(middle + scale * draw.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def words():
    theirs = train_word_pieces(CORPUS.sources, 200).pieces(range(200))
    return keras_hub.models.BertTokenizer(theirs, lowercase=True, strip_accents=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs")
    train_byte_pairs(CORPUS.sources, 400).save_files(path / "vocabulary", path / "merges")
    vocabulary = json.loads((path / "vocabulary").read_text("utf-8"))
    pieces = [*sorted(vocabulary, key=vocabulary.get)[4:], "<|endoftext|>"]
    merges = (path / "merges").read_text("utf-8").split("\n")[1:-1]
    ids = {piece: index for index, piece in enumerate(pieces)}
    return keras_hub.models.GPT2Tokenizer(ids, merges)


@pytest.fixture(scope="module")
def backbone(words):
    return noisy(keras_hub.models.BertBackbone(**SIZES, vocabulary_size=203))


@pytest.fixture(scope="module")
def gpt2(pairs):
    return noisy(keras_hub.models.GPT2Backbone(**SIZES, vocabulary_size=pairs.vocabulary_size()))


def bert_inputs():
    draw = np.random.default_rng(3)
    ids = draw.integers(1, 203, (4, 13)).astype("int32")
    ids[1, 9:] = ids[2, 2:] = 0
    return {"token_ids": ids, "segment_ids": draw.integers(0, 2, ids.shape).astype("int32")}


def theirs_of(model, inputs, **more):
    mask = (inputs["token_ids"] != 0).astype("int32")
    return model({**inputs, "padding_mask": mask, **more})


def ids_of(tokenizer, texts):
    """Inside of a graph, as in their preprocessors."""
    cut = tf.function(tokenizer.tokenize)
    return cut(tf.constant(texts)).to_list()


def compare(found, expected, real=...):
    found, expected = array(found)[real], array(expected)[real]
    print(
        f"largest difference {np.abs(found - expected).max():.1e} of {np.abs(expected).max():.1f}"
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("given", ["folder", "object"])
def test_the_backbone_of_bert_is_theirs(backbone, words, tmp_path, given):
    if given == "folder":
        backbone.save_to_preset(tmp_path / "preset")
        words.save_to_preset(tmp_path / "preset")
        converted = convert.read(tmp_path / "preset")
    else:
        converted = convert.read_keras_hub(backbone, words)
    inputs = bert_inputs()
    ours, theirs = converted.model(inputs), theirs_of(backbone, inputs)
    compare(ours["vectors"], theirs["sequence_output"], inputs["token_ids"] != 0)
    compare(ours["pooled"], theirs["pooled_output"])
    assert converted.tokenizer.tokenize(TEXTS).to_list() == ids_of(words, TEXTS)
    assert converted.config["max_length"] == 31


def test_the_heads_of_bert_are_theirs(backbone, words, tmp_path):
    models, inputs = keras_hub.models, bert_inputs()
    cutter = models.BertTextClassifierPreprocessor(words, sequence_length=31)
    theirs = noisy(models.BertTextClassifier(backbone, 3, cutter, activation="softmax"))
    theirs.save_to_preset(tmp_path / "preset")
    ours = convert.load(tmp_path / "preset")
    logits = array(ours.model(inputs))
    compare(keras.ops.softmax(logits), theirs_of(theirs, inputs))
    found = ours.probabilities(SHORT)
    compare(found, theirs.predict(SHORT, verbose=0))

    theirs = noisy(models.BertMaskedLM(backbone, models.BertMaskedLMPreprocessor(words)))
    positions = np.array([[1, 5], [0, 3], [0, 1], [12, 4]])
    converted = convert.read_keras_hub(theirs)
    found = converted.model({**inputs, "masked_positions": positions})["masked_tokens"]
    compare(found, theirs_of(theirs, inputs, mask_positions=positions))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt2_is_theirs(gpt2, pairs, tmp_path, dtype):
    if dtype == "bfloat16":  # of the weights, which come as they are
        given = keras_hub.models.GPT2Backbone.from_config(gpt2.get_config() | {"dtype": dtype})
        given.set_weights([array(weight) for weight in gpt2.weights])
        gpt2 = keras_hub.models.GPT2Backbone.from_config(gpt2.get_config())
        gpt2.set_weights([array(weight).astype("float32") for weight in given.weights])
    else:
        given = gpt2
    cutter = keras_hub.models.GPT2CausalLMPreprocessor(pairs, 31)
    theirs = keras_hub.models.GPT2CausalLM(gpt2, cutter)
    keras_hub.models.GPT2CausalLM(given, cutter).save_to_preset(tmp_path / "preset")
    ours = convert.load(tmp_path / "preset")
    ids = np.random.default_rng(3).integers(1, 300, (4, 13)).astype("int32")
    compare(ours.model(ids), theirs_of(theirs, {"token_ids": ids}))
    found = ours.tokenizer.tokenize(TEXTS).to_list()
    assert [[i - 4 for i in row] for row in found] == ids_of(pairs, TEXTS)
    if dtype == "bfloat16":
        return
    theirs.compile(sampler="greedy", run_eagerly=True)
    for text in TEXTS[:1]:
        text = text[:9]
        length = 13 - len(ids_of(pairs, [text])[0])
        expected = theirs.generate(text, max_length=14)
        # Theirs puts that token before a text, without a word.
        found = ours([f"<|endoftext|>{text}"], max_tokens=length, temperature=1e-6)
        assert text + found[0] == expected


def bert_of(words, head, activation=gelu_tanh, **options):
    backbone = kt.bert(
        words.vocabulary_size, max_sequence_length=31, num_layers=2, hidden_dim=30, num_heads=3,
        intermediate_dim=21, activation=activation, **options,
    )  # fmt: skip
    heads = {
        "pretraining": lambda: kt.bert_pretraining(backbone),
        "mean": lambda: kt.bert_classifier(backbone, 3, pooling="mean"),
        "tokens": lambda: kt.bert_token_labeller(backbone, 3),
        "texts": lambda: kt.bert_classifier(backbone, 3),
    }
    return convert.Converted("pretraining", noisy(heads[head]()), words)


def test_their_bert_is_ours(tmp_path):
    words, inputs = train_word_pieces(CORPUS.sources, 200), bert_inputs()
    inputs["token_ids"] = np.minimum(inputs["token_ids"], 199)
    ours = bert_of(words, "pretraining")
    path = str(tmp_path)
    module.write(ours, tmp_path)
    cutter = keras_hub.models.Tokenizer.from_preset(path)
    assert ids_of(cutter, TEXTS) == words.tokenize(TEXTS).to_list()
    found = theirs_of(keras_hub.models.Backbone.from_preset(path), inputs)
    expected = kt.models.bert_backbone(ours.model)(inputs)
    compare(found["sequence_output"], expected["vectors"], inputs["token_ids"] != 0)
    compare(found["pooled_output"], expected["pooled"])


@pytest.mark.usefixtures("checked_here")
def test_their_gpt2_is_ours(tmp_path):
    cutter = train_byte_pairs(CORPUS.sources, 400)
    model = noisy(kt.gpt2(vocabulary_size=400, max_sequence_length=31, num_layers=2, hidden_dim=30,
                          num_heads=3))  # fmt: skip
    ours = Generator(model, cutter, SamplingSettings(context=31, max_tokens=9))
    path = convert.write(ours, "keras_hub", tmp_path / "preset")
    theirs = keras_hub.models.CausalLM.from_preset(str(path))
    assert ids_of(theirs.preprocessor.tokenizer, TEXTS) == cutter.tokenize(TEXTS).to_list()
    assert theirs.preprocessor.sequence_length == 31
    ids = np.random.default_rng(3).integers(1, 400, (4, 13)).astype("int32")
    compare(ours.model(ids), theirs_of(theirs, {"token_ids": ids}))
    again = convert.read(path)
    for one, other in zip(model.trainable_weights, again.model.trainable_weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)


def test_what_keras_hub_lacks_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    words, pairs = train_word_pieces(CORPUS.sources, 200), train_byte_pairs(CORPUS.sources, 400)
    sizes = {"vocabulary_size": 400, "num_layers": 1, "hidden_dim": 6, "num_heads": 3}
    settings = SamplingSettings(context=9, max_tokens=3)

    def generator(**options):
        model = kt.gpt2(**sizes, max_sequence_length=9, **options)
        return convert.Converted("language_model", model, pairs, settings=settings)

    letters = kt.tokenizers.SymbolTokenizer([chr(97 + i) for i in range(396)])
    of_letters = convert.Converted("language_model", generator().model, letters)
    for ours, message in (
        (bert_of(words, "tokens"), "labels of: texts. Received: tokens"),
        (bert_of(words, "mean"), "pooling: first. Received: mean or max"),
        (bert_of(words, "texts", "gelu"), "BERT has activation: gelu_tanh. Received: gelu."),
        (bert_of(words, "texts", norm_epsilon=1e-5), "norm_epsilon: 1e-12. Received: 1e-05"),
        (bert_of(words, "texts", normalize_first=True), "normalize_first: False. Received: True"),
        (generator(norm_epsilon=1e-6), "GPT-2 has norm_epsilon: 1e-05"),
        (generator(use_bias=False), r"KerasHub needs dense attention with biases.*use_bias=False"),
        (generator(key_dim=3), "as wide as the model.*key_dim=3"),
        (generator(tie_output=False), "GPT-2 has tie_output: True. Received: False"),
        (generator(logit_soft_cap=3.0), "GPT-2 has logit_soft_cap: None. Received: 3.0"),
        (of_letters, "tokenizer: BytePairTokenizer. Received: SymbolTokenizer"),
    ):
        with pytest.raises(convert.ConversionError, match=message) as error:
            convert.write(ours, "keras_hub", tmp_path / "preset")
        assert "\n" not in str(error.value)
    with pytest.raises(convert.ConversionError, match="dtype must be float32"):
        convert.write(generator(), "keras_hub", tmp_path / "preset", dtype="int8")
    wrong = {"output.logits": np.zeros((3, 7, 400))}
    writer = convert.writing.WRITERS["keras_hub"]
    spoiled = writer._replace(example=lambda ours: writer.example(ours) | wrong)
    monkeypatch.setitem(convert.writing.WRITERS, "keras_hub", spoiled)
    with pytest.raises(convert.ConversionError, match=r"Nothing was written.*logits differs by"):
        convert.write(generator(), "keras_hub", tmp_path / "preset")
    assert not list(tmp_path.iterdir())


def test_other_presets_are_refused_in_one_line(backbone, gpt2, words, pairs, tmp_path):
    for name, model, cutter in (("bert", backbone, words), ("gpt2", gpt2, pairs)):
        model.save_to_preset(tmp_path / name)
        cutter.save_to_preset(tmp_path / name)

    def edit(name, file, change):
        path = tmp_path / "edited"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / name, path)
        if change is None:
            (path / file).unlink()
        elif file.endswith(".json"):
            content = json.loads((path / file).read_text("utf-8"))
            change(content)
            (path / file).write_text(json.dumps(content), "utf-8")
        else:
            change(path / file)
        return path

    def without_query(path):
        with h5py.File(path, "a") as weights:
            del weights["layers/transformer_encoder_1/_self_attention_layer/query_dense"]

    weights, place = "model.weights.h5", r"transformer_encoder_1/_self\S+/query_dense/vars/0"
    in_config = lambda **new: lambda content: content["config"].update(new)  # noqa: E731
    of_class = lambda content: content.update(class_name="GemmaBackbone")  # noqa: E731
    for name, file, change, message in (
        ("bert", "config.json", of_class, "a BertBackbone or a GPT2Backbone.*GemmaBackbone"),
        ("bert", "config.json", in_config(num_segments=4), r"num_segments must be 2;.*ived: 4\.$"),
        ("bert", "config.json", in_config(num_layers=4), "must include model.weights.h5/layers/"),
        ("bert", "config.json", lambda content: content["config"].pop("num_heads"), "num_heads"),
        ("bert", "config.json", in_config(num_heads=6), r"\(30, 6, 5\).*Received: \(30, 5, 6\)"),
        ("gpt2", "config.json", in_config(vocabulary_size=90), r"must have the shape \(90, 30\)"),
        ("bert", weights, without_query, place),
        ("bert", weights, None, "must hold model.weights.h5"),
        ("bert", weights, lambda path: path.write_bytes(b"HDF"), "is damaged"),
        ("bert", "tokenizer.json", None, "must hold tokenizer.json"),
        ("bert", "tokenizer.json", in_config(suffix_indicator="@@"), "suffix_indicator must be"),
        ("bert", "assets/tokenizer/vocabulary.txt", lambda path: path.write_text("a\n"), "PAD"),
        ("gpt2", "assets/tokenizer/merges.txt", None, "must hold assets/tokenizer/merges.txt"),
        ("gpt2", "tokenizer.json", in_config(add_prefix_space=True), "must be False"),
    ):
        with pytest.raises(convert.ConversionError, match=message) as error:
            convert.read(edit(name, file, change))
        assert "\n" not in str(error.value)


def test_runs_in_half_precision_are_written_from_float32(tmp_path):
    sizes = {"num_layers": 1, "hidden_dim": 6, "num_heads": 3}
    model = kt.gpt2(vocabulary_size=400, max_sequence_length=9, dtype="mixed_bfloat16", **sizes)
    run = {"model": "gpt2", "size": "124M", "tokens": "pieces", "context": 9, **sizes}
    run["dtype"], pairs = "mixed_bfloat16", train_byte_pairs(CORPUS.sources, 400)
    given = convert.Converted("language_model", model, pairs, config=run)
    command.save_run(given, tmp_path / "run")
    ours = command.text_model_of(tmp_path / "run")
    assert {layer.compute_dtype for layer in ours.model.layers} == {"float32"}
    expected, found = (module.example(each)["output.logits"] for each in (ours, given))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantised_and_other_models_are_refused(words):
    quantised = keras_hub.models.BertBackbone(**{**SIZES, "num_layers": 1}, vocabulary_size=203)
    quantised.quantize("int8")
    with pytest.raises(convert.ConversionError, match=r"quantised weights.* Received: int8"):
        convert.read_keras_hub(quantised, words)
    with pytest.raises(
        convert.ConversionError, match=r"one of KerasHub's\. Received: <LanguageModel"
    ):
        convert.read_keras_hub(kt.gpt2(vocabulary_size=7, num_layers=1, hidden_dim=4, num_heads=2))
    other = keras_hub.models.DistilBertBackbone(**SIZES, vocabulary_size=203)
    with pytest.raises(convert.ConversionError, match="Received: DistilBertBackbone"):
        convert.read_keras_hub(other)


def test_names_of_older_files_are_known(backbone, words, tmp_path, caplog):
    backbone.save_to_preset(tmp_path)
    keras_hub.models.BertTokenizer(words.get_vocabulary(), lowercase=True).save_to_preset(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as weights:
        for layer in weights["layers"].values():
            if "_self_attention_layer" in layer:
                attention = layer["_self_attention_layer"]
                for part in ("query", "key", "value", "output"):
                    attention.move(f"{part}_dense", f"_{part}_dense")
        weights.move("layers", "_layer_checkpoint_dependencies")
    inputs = bert_inputs()
    theirs = keras_hub.models.Backbone.from_preset(str(tmp_path))
    found = convert.read(tmp_path).model(inputs)["pooled"]
    compare(found, theirs_of(theirs, inputs)["pooled_output"])
    assert "the tokenizer has strip_accents=False, ours strips accents" in caplog.text


def test_commands_read_tune_and_write_presets(backbone, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cutter = keras_hub.models.BertTextClassifierPreprocessor(words, sequence_length=31)
    given = noisy(keras_hub.models.BertTextClassifier(backbone, 3, cutter))
    given.save_to_preset("preset")
    config = ClassificationConfig(pretrained="preset", pooling="first", max_length=24)
    found = ClassificationExperiment(config, (None, None)).pretrained
    tokenizer, model = found.tokenizer, found.model
    tuned = fine_tuned_classifier(config, model, 5)
    assert tuned.output_shape == (None, 5)
    assert ids_of(tokenizer, SHORT) == ids_of(words, SHORT)
    again = convert.read("preset").model
    for name in ("encoder", "pooler"):
        layers = (tuned.get_layer(name), again.get_layer(name))
        for one, other in zip(*(layer.trainable_weights for layer in layers), strict=True):
            np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    command.main("--from preset --run run".split())
    command.main("--run run --to keras_hub --output written".split())
    theirs, inputs = keras_hub.models.TextClassifier.from_preset("written"), bert_inputs()
    for one, other in zip(given.trainable_weights, theirs.trainable_weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    compare(theirs_of(theirs, inputs), again(inputs))
    assert theirs.preprocessor.sequence_length == 31
