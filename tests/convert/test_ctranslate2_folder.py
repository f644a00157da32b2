"""Folders of CTranslate2 that are read without it: old and damaged files, settings, tokens."""

import json
import logging
import struct

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, ctranslate2_folder
from keras_transformer.convert.ctranslate2 import rows
from keras_transformer.convert.ctranslate2_file import ModelFile
from keras_transformer.convert.marian import NEVER
from keras_transformer.convert.tables import VocabularyPermutation, arrays_of
from keras_transformer.layers.positions import SinusoidalEncoding
from tests.convert.drawn import CORPUS
from tests.convert.model_bin import (
    SIZES,
    SOURCE,
    TARGET,
    a_ctranslate2,
    a_model,
    an_order,
    content_of,
    in_bfloat16,
    variables_of,
)
from tests.reference import array
from train import convert as command
from train.translation import main as translation

TEXTS = ["\u0628 \u0627  .", "", "\u0628 x \u064e \u200c"]
IDS = {
    "source_ids": np.array([[4, 5, 7, 3], [6, 3, 0, 0]], "int32"),
    "target_ids": np.array([[2, 4, 6, 5], [2, 7, 5, 0]], "int32"),
}
TOGETHER = ["num_heads", "pre_norm", "activation"]


def old(path, **options):
    """A folder as of version 2: no number of heads, no settings, two sides together."""
    without = [f"{side}/{name}" for side in ("encoder", "decoder") for name in
               (*TOGETHER, "scale_embeddings", "embeddings_0/weight")]  # fmt: skip
    model = a_model(num_heads=8, norm_epsilon=1e-5)
    table = variables_of(model, an_order(TARGET), an_order(SOURCE))["encoder/embeddings_0/weight"]
    names = {"version": 2, "specification": "TransformerBase", "revision": 2}
    variables = {"encoder/embeddings/weight": table}
    return a_ctranslate2(path, model, None, variables, without, **names | options)


def refused(path, message):
    with pytest.raises(ConversionError, match=message) as error:
        convert.read(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("make", [a_ctranslate2, old])
def test_a_folder_gives_the_numbers_the_tokens_and_the_search_of_its_model(make, tmp_path, caplog):
    model = make(tmp_path)
    found = convert.read(tmp_path)
    np.testing.assert_array_equal(array(found.model(IDS)), array(model(IDS)))
    for ours, theirs in zip(found.model.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(ours), array(theirs), err_msg=ours.path)
    assert found.tokenizer.tokenize(TEXTS).to_list() == [[4, 5, 8], [], [4, 1, 6, 7]]
    assert found.target_tokenizer.detokenize([[5, 1, 6, 4, 3, 0]]).numpy() == [b"a <unk> sh b"]
    names = found.target_tokenizer.pieces(range(8))
    assert names == ["<pad>", "<unk>", "<s>", "</s>", *TARGET[3:]]
    search = found.settings
    assert (search.num_beams, search.length_penalty, search.max_target_length) == (2, 1.0, 256)
    assert search.scoring == "huggingface_early_stopping" and not search.token_rules.forces_end
    assert search.token_rules.min_length == 2 and search.max_source_length == 1025
    assert not caplog.text


def test_the_end_of_sources_is_read_where_somebody_adds_it(tmp_path):
    expected = array(a_model(source_end=True)(IDS))
    without_end = array(a_model()(IDS))
    assert np.abs(expected - without_end).max() > 0.01
    a_ctranslate2(tmp_path, config={"add_source_eos": True})
    np.testing.assert_array_equal(array(convert.read(tmp_path).model(IDS)), expected)
    # Not where translations begin as those of Hugging Face's models, unless a tokenizer adds it.
    for start in ("</s>", "<blank>"):
        a_ctranslate2(tmp_path, config={"decoder_start_token": start})
        model = convert.read(tmp_path).model
        assert model.source_without_end is not None
        table = array(model.target_embedding.embeddings)
        np.testing.assert_array_equal(table[2], table[3 if start == "</s>" else 0])
        assert array(model.output_bias.bias)[2] == NEVER


BIAS = {
    "encoder/layer_0/self_attention/relative_attention_bias": np.ones((8, 2), "float32"),
    "encoder/layer_0/self_attention/relative_attention_max_distance": np.int32(20),
}


SMALLER = {
    "int8": lambda a: ((a * 50).astype("int8"), np.full(len(a), 50, "float32")),
    "int16": lambda a: ((a * 900).astype("int16"), np.float32(900)),
    "int16 without a scale": lambda a: ((a * 1000).astype("int16"), None),
    "float16": lambda a: (a.astype("float16"), None),
    "bfloat16": lambda a: (in_bfloat16(a), None),
}


@pytest.mark.parametrize("kind", SMALLER)
def test_smaller_weights_are_multiplied_out(kind, tmp_path):
    exact = variables_of(a_model(), an_order(TARGET), an_order(SOURCE))
    variables = {}
    for name, value in exact.items():
        if name.endswith("weight"):
            variables[name], scale = SMALLER[kind](value)
            variables |= {} if scale is None else {f"{name}_scale": scale}
    version = 3 if "without" in kind else 6
    a_ctranslate2(tmp_path, variables=variables, version=version)
    orders = an_order(TARGET), an_order(SOURCE)
    found = arrays_of(rows(convert.read(tmp_path).model, *orders))
    for name, stored in variables.items():
        if not name.endswith("_scale"):
            divisor = variables.get(f"{name}_scale", 1000 if kind.startswith("int") else 1)
            whole = stored.astype("float32") / np.reshape(np.float32(divisor), (-1, 1))
            np.testing.assert_array_equal(found[name], whole)
            np.testing.assert_allclose(found[name], exact[name], atol=0.03)


def test_an_alias_stands_for_a_variable_and_its_scale(tmp_path):
    table = np.arange(12).reshape(3, 4).astype("int8")
    variables = {"a/weight": table, "a/weight_scale": np.float32([1, 2, 4]), "n": np.int16(7)}
    aliases = [("b/weight", "a/weight"), ("m", "n"), ("c", "missing")]
    (tmp_path / "model.bin").write_bytes(content_of(variables, aliases))
    file = ModelFile(tmp_path / "model.bin")
    assert sorted(file.weights) == ["a/weight", "b/weight"] and file.scalars == {"n": 7, "m": 7}
    np.testing.assert_array_equal(file.weights["b/weight"], table / [[1], [2], [4]])


def test_aliases_multiply_no_memory(tmp_path):
    variables = {"a": np.ones((9, 9), "float32")}
    for count, is_allowed in ((3, True), (4, False)):
        aliases = [(f"a{i}", "a") for i in range(count)]
        (tmp_path / "model.bin").write_bytes(content_of(variables, aliases))
        if is_allowed:
            assert len(ModelFile(tmp_path / "model.bin").weights) == 4
        else:
            refused(tmp_path, "aliases repeat 81 numbers more than 4 times")


@pytest.mark.slow
def test_without_a_variable_the_numbers_are_those_of_its_default_or_it_is_refused(tmp_path):
    # CTranslate2 takes zeros for biases; the other defaults are what this model has.
    model = a_model(num_heads=8)
    variables = variables_of(model, an_order(TARGET), an_order(SOURCE))
    read = set()
    for name, value in variables.items():
        a_ctranslate2(tmp_path, model, without=[name])
        try:
            found = convert.read(tmp_path).model
        except ConversionError as error:
            assert "\n" not in str(error)
            continue
        read.add(name)
        is_bias = name.endswith("/bias")
        a_ctranslate2(tmp_path, model, variables={name: value * 0} if is_bias else {})
        expected = array(convert.read(tmp_path).model(IDS))
        np.testing.assert_array_equal(array(found(IDS)), expected, err_msg=name)
    settings = ("num_heads", "pre_norm", "activation", "scale_embeddings", "/bias")
    assert read == {name for name in variables if name.endswith(settings)}


@pytest.mark.parametrize("make", [a_ctranslate2, old])
def test_a_file_that_is_cut_or_too_long_is_refused(make, tmp_path):
    make(tmp_path)
    file = tmp_path / "model.bin"
    content = file.read_bytes()
    cuts = [len(content) * part // 20 for part in range(20)]
    for changed in (*(content[:cut] for cut in cuts), content[:-1], content + b"\0"):
        file.write_bytes(changed)
        refused(tmp_path, r"model\.bin (is damaged|must be of version)")
    file.write_bytes(content)
    convert.read(tmp_path)


def test_absurd_counts_allocate_nothing(tmp_path):
    a_ctranslate2(tmp_path)
    file = tmp_path / "model.bin"
    content = file.read_bytes()
    first = content.index(b"encoder/embeddings_0/weight\0") + 28
    most = struct.pack("<I", 2**32 - 1)
    count = 4 + 2 + 16 + 4  # behind version, name and revision
    for place, message in (
        (count, "is damaged"),  # of variables
        (first + 1, r"has the shape \(4294967295, 16\)"),
        (first + 10, "bytes"),
        (len(content) - 4, "is damaged"),  # of aliases
    ):
        file.write_bytes(content[:place] + most + content[place + 4 :])
        refused(tmp_path, message)
    for place, byte, message in (
        (first, 200, "has 200 axes"),
        (first + 9, 77, "unknown type, 77"),
        (first - 20, 0xFF, "is not UTF-8"),
        (0, 7, "must be of version 2 to 6. Received: 7"),
    ):
        file.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
        refused(tmp_path, message)


def test_a_width_that_no_other_array_has_builds_no_model(tmp_path, monkeypatch):
    tables = {
        "encoder/embeddings_0/weight": np.zeros((len(SOURCE) + 1, 50_000), "float32"),
        "decoder/embeddings/weight": np.zeros((len(TARGET) + 1, 50_000), "float32"),
    }
    a_ctranslate2(tmp_path, variables=tables)
    monkeypatch.setattr(ctranslate2_folder, "translation", None)
    refused(tmp_path, r"ffn/linear_0/weight must have the shape \(12, 50000\)")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"decoder/alibi": np.int8(1)}, r"decoder/alibi must be 0"),
        ({"decoder/start_from_zero_embedding": np.int8(1)}, r"zero_embedding must be 0"),
        ({"encoder/sliding_window": np.int32(9)}, r"encoder/sliding_window must be 0"),
        ({"decoder/final_logit_softcapping": np.float32(9)}, r"softcapping must be 0"),
        ({"encoder/activation": np.int8(4)}, r"encoder/activation must be 0 or 1 or 2 or 3"),
        ({"encoder/activation": np.int8(2)}, r"must have equal activation"),
        ({"decoder/pre_norm": np.int8(0)}, r"equal normalize_first"),
        ({"encoder/num_heads": np.int16(3)}, r"equal num_heads|must have the shape"),
        ({"encoder/num_heads": np.int16(0)}, r"num_heads must be a whole number"),
        ({"decoder/scale_embeddings": np.float32(3)}, r"must be 1 or the root of the width, 4"),
        ({"decoder/scale_embeddings": np.int8(0)}, r"equal scale_embedding"),
        ({"decoder/layer_0/self_attention/rotary_dim": np.int32(0)}, r"rotary_dim=0 is not sup"),
        ({"decoder/project_in/weight": np.ones((2, 2), "float32")}, r"project_in/weight is not"),
        ({"encoder/layer_0/layer_scalar": np.float32(2)}, r"layer_scalar=2.0 is not supported"),
        ({"encoder/embeddings_1/weight": np.ones((3, 2), "float32")}, r"embeddings_1/weight is"),
        ({"decoder/layer_0/ffn/linear_0/weight_zero": np.ones(3, "int32")}, r"AWQ"),
        ({"decoder/layer_0/ffn/linear_0/weight": np.ones((12, 16), "int32")}, r"Received: int32"),
        ({"encoder/layer_0/ffn/linear_0/weight": np.float32(1)}, r"linear_0/weight with two axes"),
        (BIAS, r"must have equal position_bias"),
        ({"encoder/position_encodings/encodings": np.ones(16, "float32")}, r"\(16, 16\) in this"),
        ({"encoder/position_encodings/encodings": np.ones((9, 8), "float32")}, r"\(9, 16\) in "),
        ({"decoder/layer_0/attention/head_dim": np.int32(4)}, r"head_dim must be 8"),
        ({"encoder/layer_0/self_attention/head_dim": np.int32(4)}, r"head_dim must be 8"),
        ({"encoder/layer_2/ffn/layer_norm/gamma": np.ones(16, "float32")}, r"must include enc"),
        ({"decoder/layer_norm/gamma": np.full(16, np.nan, "float32")}, r"finite numbers"),
        ({"decoder/position_encodings/encodings": np.ones((9, 16), "float32")}, r"equal positions"),
    ],
    ids=str,
)
def test_a_variable_that_is_not_supported_is_named(variables, message, tmp_path):
    a_ctranslate2(tmp_path, variables=variables)
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"add_source_bos": True}, r"add_source_bos must be False"),
        ({"decoder_start_token": None}, r"decoder_start_token must be a token of the vocabulary"),
        ({"decoder_start_token": "x"}, r"target_vocabulary\.txt must have 'x', which config"),
        ({"eos_token": "x"}, r"target_vocabulary\.txt must have 'x', which config"),
        ({"unk_token": 3}, r"unk_token must be a string"),
        ({"quantization_type": 1}, r"quantization_type must be None or 0"),
        ({"layer_norm_epsilon": "x"}, r"layer_norm_epsilon must be a number"),
    ],
    ids=str,
)
def test_a_setting_that_is_not_supported_is_named(config, message, tmp_path):
    a_ctranslate2(tmp_path, config=config)
    refused(tmp_path, message)


@pytest.mark.slow
def test_settings_that_matter_change_the_numbers_and_unknown_ones_are_named(tmp_path, caplog):
    before = array(a_ctranslate2(tmp_path, config={"new_setting": 7})(IDS))
    found = array(convert.read(tmp_path).model(IDS))
    np.testing.assert_array_equal(found, before)
    assert "new_setting=7" in caplog.text
    scale = 1 / np.sqrt(8)
    attentions = [f"{side}/layer_0/self_attention" for side in ("encoder", "decoder")]
    for variables, options in (
        ({f"{side}/scale_embeddings": np.int8(0) for side in ("encoder", "decoder")},
         {"scale_embedding": False}),
        ({f"{side}/scale_embeddings": np.float32(4) for side in ("encoder", "decoder")}, {}),
        ({f"{side}/activation": np.int8(3) for side in ("encoder", "decoder")},
         {"activation": "gelu"}),
        ({f"{name}/queries_scale": np.float32(scale) for name in attentions}, {}),
    ):  # fmt: skip
        a_ctranslate2(tmp_path, variables=variables)
        expected = array(a_model(**options)(IDS))
        np.testing.assert_array_equal(array(convert.read(tmp_path).model(IDS)), expected)
        assert (np.abs(expected - before).max() > 0.01) == bool(options)
    # Twice the scale are twice the queries: their weights and their biases.
    variables = {f"{name}/queries_scale": np.float32(2 * scale) for name in attentions}
    variables["decoder/scale_outputs"] = np.float32(0.5)
    a_ctranslate2(tmp_path, variables=variables)
    model = a_model()
    for stack in (model.encoder, model.decoder):
        [block] = stack.blocks
        for weight in block.self_attention.query_key_value:
            numbers = array(weight).copy()
            numbers[:16] *= 2
            weight.assign(numbers)
    norm = model.decoder.norm
    norm.gamma.assign(norm.gamma * 0.5)
    norm.beta.assign(norm.beta * 0.5)
    expected = array(model(IDS))
    np.testing.assert_allclose(array(convert.read(tmp_path).model(IDS)), expected, atol=1e-5)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("interleaved", [True, False])
def test_stored_sines_are_known_and_others_are_learned(interleaved, first, tmp_path):
    positions = {"interleaved": interleaved, "first_position": first, "max_wavelength": 10000}
    model = a_model(positions=positions)
    names = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
    sines = array(model.positions(np.zeros((1, 40, 16), "float32")))[0]
    a_ctranslate2(tmp_path, model, variables=dict.fromkeys(names, sines))
    found = convert.read(tmp_path).model
    assert isinstance(found.positions, SinusoidalEncoding)
    np.testing.assert_array_equal(array(found(IDS)), array(model(IDS)))
    a_ctranslate2(tmp_path, model, variables=dict.fromkeys(names, sines * np.float32(1.05)))
    found = convert.read(tmp_path)
    assert found.model.positions.max_sequence_length == 40
    assert found.settings.max_target_length == 40
    assert np.abs(array(found.model(IDS)) - array(model(IDS))).max() > 1e-3


def test_biases_that_attention_lacks_are_zeros(tmp_path):
    model = a_model()
    names = [f"decoder/layer_0/attention/linear_{i}/bias" for i in range(3)]
    a_ctranslate2(tmp_path, model, without=names)
    found = convert.read(tmp_path).model
    attention = found.decoder.blocks[0].cross_attention
    assert not array(attention.key_value.bias).any()
    assert array(found.decoder.blocks[0].self_attention.output_projection.bias).any()


def test_pieces_need_the_tokenizer_that_makes_them(tokenizer, tmp_path):
    pieces = tokenizer.pieces(range(4, tokenizer.vocabulary_size))
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "eng_Latn", "deu_Latn"]
    a_ctranslate2(tmp_path, config={"decoder_start_token": "</s>"})
    order = VocabularyPermutation([1, 3, 2, 2, 0, *range(4, len(names))])
    model = kt.translation(len(order), output_bias=True, **SIZES)
    (tmp_path / "model.bin").write_bytes(content_of(variables_of(model, order)))
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(names), "utf-8")
    refused(tmp_path, r"SentencePiece model that cuts the source texts into pieces such as '\u2581")
    tokenizer.save(tmp_path / "sentencepiece.bpe.model")
    found = convert.read(tmp_path)
    assert list(found.tokenizer.languages) == ["eng_Latn", "deu_Latn"]
    ids = found.tokenizer.tokenize(CORPUS.sources[:9]).to_list()
    assert ids == [[i + 1 for i in row] for row in tokenizer.tokenize(CORPUS.sources[:9]).to_list()]
    translator = convert.load(tmp_path, "eng_Latn", "deu_Latn")
    assert translator.target_tokenizer.language == "deu_Latn"
    assert isinstance(translator(["A dog runs."])[0], str)


def of_pieces(path, words, file=None, tokenizer=None, **config):
    """A folder with one vocabulary and a SentencePiece model of some name."""
    a_ctranslate2(path, config=config)
    order = VocabularyPermutation(range(len(words)))
    model = kt.translation(len(words), output_bias=True, **SIZES)
    (path / "model.bin").write_bytes(content_of(variables_of(model, order)))
    (path / "shared_vocabulary.json").write_text(json.dumps(words), "utf-8")
    if file is not None:
        tokenizer.save(path / file)
    return model


def test_the_tokens_of_the_settings_hold_with_a_tokenizer_of_ours(tokenizer, tmp_path):
    words = tokenizer.pieces(range(tokenizer.vocabulary_size))
    model = of_pieces(tmp_path, words, "tokenizer.model", tokenizer)
    table = array(model.target_embedding.embeddings)
    for config, ids in (
        ({}, [1, 2, 3]),
        ({"decoder_start_token": "</s>"}, [1, 3, 3]),
        ({"eos_token": words[9]}, [1, 2, 9]),
        ({"unk_token": words[9]}, [9, 2, 3]),
    ):
        content = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(content | config))
        found = convert.read(tmp_path).model.target_embedding
        np.testing.assert_array_equal(array(found.embeddings)[1:4], table[ids])
        (tmp_path / "config.json").write_text(json.dumps(content))


def test_a_sentencepiece_model_of_another_vocabulary_or_side_is_refused(tokenizer, tmp_path):
    words = tokenizer.pieces(range(tokenizer.vocabulary_size))
    others = [f"\u2581{index}z" for index in range(len(words) // 2 + 9)]
    mixed = [*words[: len(words) - len(others)], *others]
    of_pieces(tmp_path / "a", mixed, "sentencepiece.model", tokenizer)
    refused(tmp_path / "a", "must hold the tokenizer of its vocabulary")
    for file in ("source.model", "target.spm"):
        of_pieces(tmp_path / file, words, file, tokenizer)
        refused(tmp_path / file, f"model of each side. Received: only {file}")


def test_words_that_no_text_can_hold_are_named(tokenizer, tmp_path, caplog):
    words = tokenizer.pieces(range(tokenizer.vocabulary_size))
    of_pieces(tmp_path, [*words, "<2de>", "deu_Latn", "\u4e00"], "a.model", tokenizer)
    convert.read(tmp_path)
    assert "lacks 1 words of the vocabulary, which no text can hold: <2de>." in caplog.text


def test_pieces_of_fastbpe_need_their_tokenizer(tmp_path):
    a_ctranslate2(tmp_path)
    words = ["<blank>", "<s>", "</s>", "th", "e</w>", "c", "d", "e"]
    (tmp_path / "source_vocabulary.txt").write_text("".join(f"{word}\n" for word in words))
    refused(tmp_path, "cuts the source texts into pieces such as 'e</w>'")


def test_a_bias_that_only_excludes_the_start_stays_frozen(tmp_path):
    a_ctranslate2(tmp_path)
    assert convert.read(tmp_path).model.output_bias.trainable
    bias = np.zeros(len(TARGET) + 1, "float32")
    bias[1] = NEVER
    a_ctranslate2(tmp_path, variables={"decoder/projection/bias": bias})
    assert not convert.read(tmp_path).model.output_bias.trainable


def test_language_models_are_greedy_and_have_their_end(tokenizer, tmp_path):
    words = tokenizer.pieces(range(tokenizer.vocabulary_size))
    model = kt.language_model(len(words), 24, activation="relu", norm_epsilon=1e-6, **SIZES)
    table = list(rows(model))
    variables = arrays_of(table)
    for row in table:
        variables |= dict.fromkeys(row.twins, variables[row.names[0]])
    variables["decoder/num_heads"] = np.int16(2)
    variables["decoder/scale_embeddings"] = np.int8(bool(model.embedding.scale))
    names = {"specification": "TransformerDecoderSpec"}

    def write(revision=8, **config):
        (tmp_path / "model.bin").write_bytes(content_of(variables, revision=revision, **names))
        content = {"unk_token": "<unk>", "eos_token": "</s>", "layer_norm_epsilon": 1e-6}
        (tmp_path / "config.json").write_text(json.dumps(content | config))

    tokenizer.save(tmp_path / "tokenizer.model")
    (tmp_path / "vocabulary.json").write_text(json.dumps(words), "utf-8")
    write()
    found = convert.read(tmp_path)
    ids = np.array([[5, 9, 7, 30]], "int32")
    np.testing.assert_array_equal(array(found.model(ids)), array(model(ids)))
    assert found.settings.top_k == 1
    write(eos_token="no such")
    refused(tmp_path, "eos_token must be a token of the vocabulary. Received: 'no such'")
    for revision in (0, 9):
        write(revision)
        refused(tmp_path, f"revision 1 to 8. Received: a 'TransformerDecoderSpec' of.* {revision}")


def test_weights_of_hugging_face_beside_a_model_bin_are_theirs(tmp_path):
    a_ctranslate2(tmp_path, config={"model_type": "marian"})
    assert ctranslate2_folder.is_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not ctranslate2_folder.is_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target_vocabulary.txt", "a\nb\n", r"must hold 8 words, .* Received: 3"),
        ("target_vocabulary.json", "{}", r"must hold a list of tokens. Received: \{\}"),
        ("source_vocabulary.json", "[1]", r"must hold a list of tokens"),
        ("source_vocabulary.json", "[", r"must hold a vocabulary. Received"),
        ("source_vocabulary.txt", "<blank>\n<s>\n</s>\na\na\nb\nc\nd\n", r"distinct strings"),
        (
            "source_vocabulary.txt",
            "a\nb\nc\nd\ne\nf\ng\nh\ni\n",
            r"source_vocabulary\.txt must have '<unk>'",
        ),
        ("config.json", "[]", r"must hold a JSON object"),
    ],
)
def test_a_wrong_vocabulary_is_one_line(name, content, message, tmp_path):
    a_ctranslate2(tmp_path)
    (tmp_path / name).write_text(content)
    refused(tmp_path, message)


def test_a_missing_file_is_named(tmp_path):
    for name in ("config.json", "source_vocabulary.txt"):
        a_ctranslate2(tmp_path)
        (tmp_path / name).unlink()
        refused(tmp_path, rf"must hold .*{name}")
    a_ctranslate2(tmp_path, specification="WhisperSpec", revision=3)
    refused(tmp_path, r"must hold a TransformerSpec.* Received: a 'WhisperSpec' of revision 3")
    a_ctranslate2(tmp_path, revision=8)
    refused(tmp_path, r"of revision 2 to 7. Received: a 'TransformerSpec' of revision 8")


@pytest.mark.slow
@pytest.mark.soak
def test_the_commands_take_such_a_folder(tmp_path, capsys, monkeypatch):
    import io

    old(tmp_path / "theirs")
    run = ["--run", str(tmp_path / "run")]
    command.main(["--from", str(tmp_path / "theirs"), *run])
    (tmp_path / "a.src").write_text("\u0628 \u0627\n\u0627 .\n" * 4, "utf-8")
    (tmp_path / "a.tgt").write_text("b a\na '\n" * 4, "utf-8")
    files = ["--source", str(tmp_path / "a.src"), "--target", str(tmp_path / "a.tgt")]
    sizes = ["--max-length=20", "--tokens-per-batch=64", "--steps=60", "--warmup-steps=5",
             "--peak-rate=0.02", "--dropout=0"]  # fmt: skip
    for pretrained, tuned in (("theirs", "tuned"), ("run", "again")):
        flags = ["--pretrained", str(tmp_path / pretrained), "--run", str(tmp_path / tuned)]
        translation([*flags, *files, *sizes])
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\u0627 .\n".encode())))
        translation(["translate", "--run", str(tmp_path / tuned)])
        assert capsys.readouterr().out == "a '\n"
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert config["scoring"] == "huggingface_early_stopping" and config["num_beams"] == 2
    saved = kt.serving.Translator.load(tmp_path / "tuned").export(tmp_path / "saved", "tuned")
    logging.getLogger().setLevel(logging.WARNING)
    import tensorflow as tf

    answer = tf.saved_model.load(str(saved)).signatures["serving_default"]
    assert answer(text=tf.constant(["\u0627 ."]))["translation"].numpy() == [b"a '"]
