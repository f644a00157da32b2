"""Folders of T5, T5 v1.1 and mT5 beside Hugging Face's own models and tokenizers."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.decoding import BeamSearch, HuggingFaceScoring
from keras_transformer.serving import Translator
from tests.convert.drawn import LONGEST, PAIRS, SPREAD, by_ctranslate2, drawn_ids
from tests.convert.foreign_tokenizers import T5, differences, drawn_texts, train_spm
from tests.reference import array
from train import convert as command

pytestmark = pytest.mark.oracle
EXTRA_IDS, MADE_UP = 7, 9  # pieces that no text has, and rows of the table without a piece
# Of each family: its settings, and whether it has a projection to logits of its own.
FORMS = {
    "t5": ({"feed_forward_proj": "relu"}, False),
    "v1.1": ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, True),
    "byt5": (
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 3,
         "num_decoder_layers": 1}, True,
    ),
    "mt5": ({"feed_forward_proj": "gated-gelu", "num_decoder_layers": 1}, True),
}  # fmt: skip


@pytest.fixture(scope="module", params=FORMS)
def folder(request, tmp_path_factory):
    """A folder as `save_pretrained` writes it; weights are large enough to be sure of tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("folder")
    if request.param == "byt5":
        tokenizer = transformers.ByT5Tokenizer(extra_ids=EXTRA_IDS)
    else:
        texts = [text for pair in PAIRS()[:3000] for text in pair]
        train_spm(path / "spiece.model", texts, 300, **T5)
        tokenizer = transformers.T5Tokenizer.from_pretrained(path, extra_ids=EXTRA_IDS)
    tokenizer.save_pretrained(path)
    settings, has_own_output = FORMS[request.param]
    kind = "MT5" if request.param == "mt5" else "T5"
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer) + MADE_UP, d_model=32, d_kv=6, d_ff=48, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=20,
        decoder_start_token_id=0, **{"num_layers": 2} | settings,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.generation_config.update(max_length=LONGEST, num_beams=4, bad_words_ids=[[0]])
    with torch.no_grad():
        if has_own_output:
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        for name, parameter in model.named_parameters():
            middle = float("layer_norm.weight" in name)
            spread = SPREAD / 2 if "Attention" in name else SPREAD
            parameter.copy_(middle + spread * torch.randn_like(parameter))
        output = model.lm_head.weight
        if has_own_output:
            output *= 0.2
        output[1] *= 2 if has_own_output else 4  # ends are likely, and what is in no text is not
        output[[0, 2, *range(len(tokenizer) - EXTRA_IDS, len(output))]] = 0
    model.save_pretrained(path)
    return path, model, tokenizer


@pytest.fixture(scope="module")
def converted(folder):
    return convert.read(folder[0])


def their_ids(model):
    """Their ids at ours: pad, unknown, pad as start, </s>, and the others."""
    size = model.target_embedding.vocabulary_size
    return np.array([0, 2, 0, 1, *range(3, size - 1)])


def test_texts_have_the_ids_of_their_tokenizer(folder, converted):
    of = their_ids(converted.model)
    texts = drawn_texts(500, [pair[0] for pair in PAIRS()])
    expected = [row[:-1] for row in folder[2](texts)["input_ids"]]
    assert not differences(converted.tokenizer, of, texts, expected, ties=5)


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
    difference, largest = np.abs(logits - expected).max(), np.abs(expected[..., 3:]).max()
    print(f"largest difference {difference:.1e} of {largest:.1f}")
    assert difference < 1e-4


def test_a_folder_that_their_library_read_and_wrote_is_the_same(folder, converted, tmp_path):
    """It calls every model tied, and ties those whose tables are equal."""
    type(folder[1]).from_pretrained(folder[0]).save_pretrained(tmp_path)
    for file in folder[0].iterdir():
        if not (tmp_path / file.name).exists():
            shutil.copy(file, tmp_path)
    for one, other in zip(convert.read(tmp_path).model.weights, converted.model.weights,
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(array(one), array(other))


@pytest.mark.parametrize(
    ("folder", "num_beams", "penalty"), [("t5", 4, 0.0), ("byt5", 1, 1.0)], indirect=["folder"]
)
def test_tokens_are_those_of_hugging_face(folder, converted, num_beams, penalty):
    import torch

    of, rows = their_ids(converted.model), 24
    source = drawn_ids(rows, 11, len(of), num_beams)
    functions = converted.model
    encoded = functions.encode(source)
    rules = converted.settings.search.token_rules
    search = BeamSearch(num_beams, 1, HuggingFaceScoring(penalty), rules)
    found = search(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, num_beams),
        limits=[LONGEST - 1] * rows, start_id=2, end_id=3,
    )  # fmt: skip
    answer = folder[1].generate(
        torch.tensor(of[source]), num_beams=num_beams, length_penalty=penalty, max_length=LONGEST,
        do_sample=False,
    ).numpy()  # fmt: skip
    equal = 0
    for ours, row in zip(found.token_ids.numpy()[:, 0], answer, strict=True):
        row = row[1:].tolist()  # with pad id 0, Hugging Face fills beams up with ends
        row = row[: row.index(1) + 1] if 1 in row else row
        equal += of[ours[ours != 0]].tolist() == row
    lengths = found.lengths.numpy().ravel()
    print(f"{equal} of {rows} rows equal; lengths {lengths.tolist()}")
    assert equal == rows
    assert len(set(lengths.tolist())) > 1


SHORT = [pair[0] for pair in PAIRS() if len(pair[0]) < 20][:12]


def generated(model, tokenizer, texts):
    import torch

    with torch.no_grad():
        answer = model.generate(**tokenizer(texts, padding=True, return_tensors="pt"))
    found = tokenizer.batch_decode(answer, skip_special_tokens=True)
    # Theirs keeps a space of a text whose first piece is one.
    is_bytes = "ByT5" in type(tokenizer).__name__
    return found if is_bytes else [text.lstrip() for text in found]


def served_texts(translator, path, name, texts):
    import tensorflow as tf

    path = translator.export(path, name)
    assert path.endswith(f"{name}/1")
    answer = tf.saved_model.load(path).signatures["serving_default"](tf.constant(texts))
    return [text.decode() for text in answer["translation"].numpy()]


@pytest.mark.parametrize("folder", ["t5"], indirect=True)
@pytest.mark.usefixtures("unchecked_exports")
def test_a_run_writes_what_theirs_does_and_is_exported(folder, tmp_path):
    run = tmp_path / "run"
    command.main(["--from", str(folder[0]), "--run", str(run)])
    # What begins a task: the run's prefix is in what is served, too.
    translator = convert.load(folder[0], source_prefix="It is ")
    alone = Translator(translator.model, translator.tokenizer, settings=translator.settings)
    assert translator.target_tokenizer.prefix == alone.target_tokenizer.prefix == ""
    translator = Translator.load(run, source_prefix="It is ")
    expected = generated(*folder[1:], ["It is " + text for text in SHORT])
    assert translator([*SHORT, "", " "]) == [*expected, "", ""]
    assert served_texts(translator, tmp_path / "served", "t5", SHORT) == expected


@pytest.mark.parametrize(
    "folder", ["t5", "byt5", *(pytest.param(n, marks=pytest.mark.soak) for n in ("v1.1", "mt5"))],
    indirect=True,
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_a_written_folder_is_theirs_again(folder, converted, tmp_path, caplog):
    """Their library writes the same texts with it, and it is read as what was written."""
    import transformers

    has_pieces = hasattr(converted.tokenizer, "with_prefix")
    prefix = "It is " if has_pieces else ""
    translator = convert.load(folder[0], source_prefix=prefix)
    assert translator.settings.max_source_length == (512 if has_pieces else 1024)
    settings = dataclasses.replace(translator.settings, max_source_length=300)
    translator = Translator(translator.model, translator.tokenizer, settings=settings)
    # A start that was trained apart from the padding, which no model sees.
    table = translator.model.target_embedding.embeddings
    row = 0.5 * array(table)[2]
    table.assign(keras.ops.slice_update(table, (2, 0), row[None]))
    path = convert.write(translator, "huggingface", tmp_path / "model")
    assert ("does not hold the source prefix 'It is '" in caplog.text) == has_pieces
    again, model = convert.read(path), translator.model
    for one, other in zip(model.weights, again.model.weights, strict=True):
        one, other = array(one), array(other)
        if one.shape == table.shape:
            one, other = one[1:], other[1:]
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert again.settings == translator.settings
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    cutter = transformers.AutoTokenizer.from_pretrained(path)
    if has_pieces:
        assert again.tokenizer.model == converted.tokenizer.model
        assert len(cutter) == len(folder[2])
        assert cutter.convert_tokens_to_ids("<extra_id_3>") == len(cutter) - 4
    expected = generated(theirs, cutter, [prefix + text for text in SHORT])
    assert translator(SHORT) == expected


def greedy(path):
    read = convert.read(path)
    search = read.settings.search
    rules = dataclasses.replace(search.token_rules, forces_end=True)  # as the engine does
    search = dataclasses.replace(search, num_beams=1, num_best=1, token_rules=rules)
    settings = dataclasses.replace(read.settings, search=search)
    return Translator(read.model, read.tokenizer, settings=settings)


@pytest.mark.parametrize("folder", ["t5", "byt5"], indirect=True)
@pytest.mark.usefixtures("unchecked")
def test_ctranslate2_does_the_same(folder, tmp_path):
    """Over distances that share buckets, too."""
    pytest.importorskip("ctranslate2")
    translator = greedy(folder[0])
    path = convert.write(translator, "ctranslate2", tmp_path / "ctranslate2")
    texts = [" ".join(pair[0] for pair in PAIRS()[i : i + 1 + i % 7]) for i in range(24)]
    assert max(map(len, translator.tokenizer.tokenize(texts).to_list())) > 40
    assert by_ctranslate2(path, translator, texts) == translator(texts)


@pytest.mark.soak
@pytest.mark.parametrize("folder", ["byt5"], indirect=True)
def test_an_export_and_onnx_of_bytes_are_published(folder, tmp_path, monkeypatch):
    translator, texts = greedy(folder[0]), ["", "a", "naïve 🦜", *SHORT]
    assert served_texts(translator, tmp_path / "served", "byt5", texts) == translator(texts)
    monkeypatch.setattr("keras_transformer.convert.examples.EXAMPLE_LENGTH", 31)
    convert.write(translator, "onnx", tmp_path / "onnx")


@pytest.mark.parametrize("folder", ["byt5"], indirect=True)
def test_a_run_of_bytes_writes_what_theirs_does(folder, tmp_path):
    run = tmp_path / "run"
    command.main(["--from", str(folder[0]), "--run", str(run)])
    config = json.loads((run / "config.json").read_text())
    assert (config["num_layers"], config["num_decoder_layers"]) == (3, 1)
    translator = Translator.load(run)
    texts = ["a", "naïve 🦜", *(pair[0][:20] for pair in PAIRS()[:9])]
    expected = generated(*folder[1:], texts)
    assert len(set(expected)) > 5
    assert translator(["", *texts]) == ["", *expected]
    with pytest.raises(ValueError, match="source_prefix needs a SentencePieceTokenizer"):
        Translator.load(run, source_prefix="It is ")


@pytest.mark.parametrize("folder", ["v1.1"], indirect=True)
def test_tuning_lowers_the_loss(folder):
    import keras_transformer as kt

    translator = convert.load(folder[0])
    sources, targets = zip(*PAIRS()[:64], strict=True)
    tokens = [kt.data.tokenize(side, translator.tokenizer) for side in (sources, targets)]
    batches = kt.data.TokenBatches(*tokens, tokens_per_batch=1024, max_length=64)
    model = kt.add_lora(translator.model, rank=4)
    model.compile(kt.Adam(3e-3), kt.TokenCrossentropy(0.1), clip_norm=1.0)
    losses = model.fit(batches.epoch(), epochs=24, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("folder", ["t5"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_decoder_layers": 3}, "must include decoder.block.2.layer.2.DenseReluDense.wi.weig"),
        ({"relative_attention_num_buckets": 6}, "attention_num_buckets must be a multiple"),
        ({"relative_attention_num_buckets": 12}, r"bias.weight must have the shape \(12, 4\)"),
        ({"feed_forward_proj": "gated-relu"}, "feed_forward_proj must be 'relu' or 'gated-gelu'"),
        ({"decoder_start_token_id": 5}, "decoder_start_token_id must be the id of padding or"),
        ({"pad_token_id": 5}, "pad_token_id must be 0, as in the tokenizer"),
        ({"vocab_size": 100}, r"shared.weight must have the shape \(100, 32\)"),
        ({"architectures": ["T5EncoderModel"]}, "architectures must be a list of one of"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(folder, tmp_path, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((folder[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)


def test_a_vocabulary_may_be_smaller_than_any_that_is_learned_here(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    lines = ["to be or not to be", "that is the question", "a cat sat on the mat"]
    path = tmp_path / "t5"
    path.mkdir()
    train_spm(path / "spiece.model", lines, 20, **T5)
    tokenizer = transformers.T5Tokenizer.from_pretrained(path, extra_ids=0)
    tokenizer.save_pretrained(path)
    torch.manual_seed(5)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=len(tokenizer), d_model=16, d_kv=4, d_ff=24, num_heads=2, num_layers=1,
            decoder_start_token_id=0,
        )
    ).eval()  # fmt: skip
    model.generation_config.update(max_length=9, num_beams=2, bad_words_ids=[[0]])
    model.save_pretrained(path)
    command.main(["--from", str(path), "--run", str(path / "run")])
    with torch.no_grad():
        written = model.generate(**tokenizer(lines, padding=True, return_tensors="pt"))
    expected = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert Translator.load(path / "run")(lines) == expected
