"""Folders of BART and mBART-50 beside Hugging Face's own models and tokenizers."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import bart
from keras_transformer.serving import Translator
from tests.convert.drawn import LONGEST, PAIRS, SPREAD, by_ctranslate2, drawn_ids
from tests.convert.foreign_tokenizers import MBART, differences, drawn_texts, train_spm
from tests.reference import array
from train import convert as command

pytestmark = pytest.mark.oracle
TEXTS = [pair[0] for pair in PAIRS()]
SHORT = [text for text in TEXTS if len(text) < 20][:12]
MADE_UP = 5  # rows of the table without a piece
POSITIONS = 40


def bart_tokenizer(path, texts):
    """Byte pairs in the released files, and their tokenizer, which `save_pretrained` writes."""
    import tokenizers
    import transformers

    byte_level = tokenizers.pre_tokenizers.ByteLevel
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = byte_level(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(byte_level.alphabet()), special_tokens=special,
        show_progress=False,
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    vocabulary = {**learned["vocab"], "<mask>": len(learned["vocab"])}
    merges = [" ".join(pair) for pair in learned["merges"]]
    (path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    return transformers.BartTokenizer.from_pretrained(path)


def mbart_tokenizer(path, texts):
    import transformers

    train_spm(path / "sentencepiece.bpe.model", texts, 300, **MBART)
    return transformers.MBart50Tokenizer.from_pretrained(path, src_lang="en_XX", tgt_lang="de_DE")


@pytest.fixture(scope="module", params=["bart", "mbart"])
def folder(request, tmp_path_factory):
    """A folder as `save_pretrained` writes it; weights are large enough to be sure of tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp(request.param)
    tokenizer = globals()[f"{request.param}_tokenizer"](
        path, [text for pair in PAIRS()[:3000] for text in pair]
    )
    tokenizer.save_pretrained(path)
    name = {"bart": "Bart", "mbart": "MBart"}[request.param]
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer) + MADE_UP, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_position_embeddings=POSITIONS, scale_embedding=name == "MBart",
        decoder_start_token_id=2,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    first = 0 if name == "Bart" else tokenizer.convert_tokens_to_ids("de_DE")
    model.generation_config.update(
        max_length=LONGEST, num_beams=4, forced_bos_token_id=first, forced_eos_token_id=2,
        bad_words_ids=[[1]],
    )  # fmt: skip
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            middle = float("norm" in key and key.endswith("weight"))
            spread = SPREAD * (2 if "positions" in key or "encoder_attn." in key else 1)
            parameter.copy_(middle + spread * torch.randn_like(parameter))
        model.final_logits_bias.copy_(0.5 * torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 2] += 3  # ends are likely
        model.final_logits_bias[0, [3, *range(len(tokenizer) - 1, config.vocab_size)]] = -40
    model.save_pretrained(path)
    return path, model, tokenizer


@pytest.fixture(scope="module")
def converted(folder):
    return convert.read(folder[0])


def their_ids(model):
    """Their ids at ours: pad, unknown, </s> as start, </s>, the pieces, <s>, those without one."""
    size = model.target_embedding.vocabulary_size - 1
    return np.array([1, 3, 2, 2, *range(4, size - MADE_UP), 0, *range(size - MADE_UP, size)])


def test_texts_have_the_ids_of_their_tokenizer(folder, converted, tmp_path):
    path, _, tokenizer = folder
    of, ours = their_ids(converted.model), converted.tokenizer
    # In mBART's, spaces at the end of a text are a token.
    texts = [text for text in drawn_texts(500, TEXTS) if not text[-1:].isspace()]
    if ours.vocabulary_size < len(of) - MADE_UP:  # mBART, whose <s> is in no text
        ours = ours.with_language("en_XX")
    expected = [row[:-1] for row in tokenizer(texts)["input_ids"]]
    assert not differences(ours, of, texts, expected, ties=5)
    joined = [text.decode() for text in ours.detokenize(ours.tokenize(texts)).numpy()]
    if (path / "merges.txt").exists():
        assert joined == tokenizer.batch_decode(expected, skip_special_tokens=True) == texts
    # As transformers 5 saves it: without the files of the released folders.
    (tmp_path / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
    one, other = (convert.load_tokenizer_of(folder) for folder in (path, tmp_path))
    assert one[1].tolist() == other[1].tolist()
    assert one[0].tokenize(texts).to_list() == other[0].tokenize(texts).to_list()


def test_logits_are_those_of_hugging_face(folder, converted):
    import torch

    of = their_ids(converted.model)
    source, target = drawn_ids(5, 31, len(of), 1), drawn_ids(5, 27, len(of), 2)
    target[:, 0] = 2
    source[1, 5:] = 0
    logits = array(converted.model({"source_ids": source, "target_ids": target}))
    with torch.no_grad():
        expected = folder[1](
            input_ids=torch.tensor(of[source]),
            attention_mask=torch.tensor((source != 0).astype(int)),
            decoder_input_ids=torch.tensor(of[target]),
        ).logits.numpy()[..., of]
    assert (logits[..., 2] < -50).all()  # of the start, which no text has
    expected[..., 2] = logits[..., 2]
    difference = np.abs(logits - expected).max()
    largest = np.abs(expected[..., 4 : -MADE_UP - 2]).max()
    print(f"largest difference {difference:.1e} of {largest:.1f}")
    assert difference < 1e-4 * largest


RULES = {
    "early": {"early_stopping": True, "length_penalty": 2.0, "no_repeat_ngram_size": 2,
              "min_length": 7},
    "free": {"forced_bos_token_id": None, "forced_eos_token_id": None, "length_penalty": 0.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "rules"), [("bart", "early"), ("bart", "free"), ("mbart", "early")],
    indirect=["folder"],
)  # fmt: skip
def test_translations_are_those_of_hugging_face(folder, rules, tmp_path):
    path, model, tokenizer = folder
    rules = RULES[rules]
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    settings = json.loads((path / "generation_config.json").read_text()) | rules
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    translator = convert.load(tmp_path)
    expected = generated(model, tokenizer, **rules)
    assert translator(["", *SHORT]) == ["", *expected]
    assert len(set(expected)) > 2


def generated(model, tokenizer, **rules):
    import torch

    with torch.no_grad():
        answer = model.generate(**tokenizer(SHORT, padding=True, return_tensors="pt"), **rules)
    return tokenizer.batch_decode(answer, skip_special_tokens=True)


@pytest.mark.parametrize(
    "folder", ["bart", pytest.param("mbart", marks=pytest.mark.soak)], indirect=True
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_written_is_what_was_read(folder, tmp_path):
    from safetensors.numpy import load_file

    path, model, tokenizer = folder
    translator = convert.load(path)
    folder = convert.write(translator, "huggingface", tmp_path / "written")
    one, other = (load_file(each / "model.safetensors") for each in (path, folder))
    assert one.keys() == other.keys()
    for name in one:
        first = 2 if "positions" in name else 0  # of rows that no position has
        np.testing.assert_array_equal(one[name][first:], other[name][first:], err_msg=name)
    settings = type(model).from_pretrained(folder).generation_config.to_diff_dict()
    theirs = model.generation_config.to_diff_dict()
    for name in settings.keys() & theirs.keys() - {"transformers_version"}:
        assert settings[name] == theirs[name], name
    texts = drawn_texts(100, TEXTS)
    again = type(tokenizer).from_pretrained(folder)
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    again = convert.load(folder)
    assert again.settings == translator.settings
    assert again.tokenizer.tokenize(texts).to_list() == (
        translator.tokenizer.tokenize(texts).to_list()
    )
    for one, other in zip(again.model.weights, translator.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)
    # A start that training has moved away from the end is a token of its own.
    table = translator.model.target_embedding.embeddings
    table.assign(table + np.eye(table.shape[0])[2][:, None])
    folder = convert.write(translator, "huggingface", tmp_path / "moved")
    assert convert.load(folder)(SHORT) == translator(SHORT)


@pytest.mark.usefixtures("unchecked")
def test_a_run_answers_as_theirs_and_as_ctranslate2(folder, tmp_path):
    run = tmp_path / "run"
    command.main(["--from", str(folder[0]), "--run", str(run)])
    translator = Translator.load(run, num_beams=1)
    assert translator.settings.max_source_length == POSITIONS
    assert translator.settings.max_target_length == LONGEST - 1
    expected = generated(*folder[1:], num_beams=1)
    assert [each[0].text for each in translator.n_best(SHORT)] == expected
    path = convert.write(translator, "ctranslate2", tmp_path / "ctranslate2")
    assert by_ctranslate2(path, translator, SHORT) == expected


@pytest.mark.soak
@pytest.mark.parametrize("folder", ["bart"], indirect=True)
def test_an_export_and_onnx_are_published(folder, tmp_path):
    import tensorflow as tf

    loaded = convert.load(folder[0])
    search = dataclasses.replace(loaded.settings.search, num_beams=1, num_best=1)
    settings = dataclasses.replace(loaded.settings, search=search)
    translator = Translator(
        loaded.model, loaded.tokenizer, loaded.target_tokenizer, settings=settings
    )
    path = translator.export(tmp_path / "served", "texts")
    served = tf.saved_model.load(path).signatures["serving_default"](tf.constant(SHORT))
    assert [text.decode() for text in served["translation"].numpy()] == translator(SHORT)
    convert.write(translator, "onnx", tmp_path / "onnx")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_layers": 3}, r"must include model.decoder.layers.2.fc1.weight"),
        ({"max_position_embeddings": 41}, r"must have the shape \(43, 32\).*Received: \(42, 32\)"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id must be 2, the id of the end, or"),
        ({"pad_token_id": 0}, "pad_token_id must be 1, as in the tokenizer"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings must be True"),
        ({"architectures": ["BartForCausalLM"]}, "architectures must be a list of one of"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(folder, tmp_path, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


@pytest.mark.parametrize("folder", ["mbart"], indirect=True)
@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "MBartTokenizer"},
         "tokenizer_class must be 'MBart50Tokenizer' or .*Received: 'MBartTokenizer'"),
        ("generation_config.json", {"forced_bos_token_id": 7}, "must be the id of a language"),
        ("generation_config.json", {"max_length": 42}, r"at most 40 new tokens.*Received: 41\."),
    ],
)  # fmt: skip
def test_what_an_mbart50_does_not_do_is_one_line(folder, tmp_path, file, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / file).read_text())
    (tmp_path / file).write_text(json.dumps(content | change))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


@pytest.mark.parametrize("folder", ["bart"], indirect=True)
def test_weights_without_a_head_are_those_of_the_base_model(folder, converted, tmp_path):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    folder[1].model.save_pretrained(tmp_path)
    found = convert.read(tmp_path).model
    found.output_bias.bias.assign(converted.model.output_bias.bias)
    for one, other in zip(found.weights, converted.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)


@pytest.mark.parametrize("folder", ["bart"], indirect=True)
def test_a_released_summariser_has_no_row_of_the_mask_and_begins_with_a_token(
    folder, tmp_path, caplog
):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    arrays, config = load_file(tmp_path / "model.safetensors"), folder[1].config.to_dict()
    size = len(folder[2]) - 1
    arrays["model.shared.weight"] = arrays["model.shared.weight"][:size]
    arrays["final_logits_bias"] = arrays["final_logits_bias"][:, :size]
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "generation_config.json").unlink()
    config |= {"vocab_size": size, "force_bos_token_to_be_generated": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = type(folder[1]).from_pretrained(tmp_path).generation_config.forced_bos_token_id
    caplog.clear()
    found = convert.read(tmp_path)
    of = np.array([1, 3, 2, 2, *range(4, size), 0])
    assert of[found.settings.search.token_rules.forced_bos_token_id] == theirs == 0
    assert found.tokenizer.vocabulary_size == found.model.target_embedding.vocabulary_size
    expected = [row[:-1] for row in folder[2](SHORT)["input_ids"]]
    assert [of[row].tolist() for row in found.tokenizer.tokenize(SHORT).to_list()] == expected
    # What ends a text of GPT-2 is a piece of theirs, but of no text.
    ours = found.tokenizer
    pieces = [*ours.pieces(range(size)), "<|endoftext|>"]
    [ids] = bart.with_first(pieces, ours.merges).tokenize(["<|endoftext|>"]).to_list()
    assert len(ids) > 2 and size not in ids
    assert "force_bos" not in caplog.text
