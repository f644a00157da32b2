"""MarianMT folders beside Hugging Face's own model and tokenizer, with random weights."""

import itertools
import json
import shutil

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.decoding import BeamSearch, HuggingFaceScoring
from keras_transformer.serving import Translator
from tests.convert.drawn import LONGEST, PAIRS, SPREAD, drawn_ids
from tests.reference import array
from train import convert as command
from train.training_config import LEAST_PIECES

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
ENDS = 8.0
TEXTS = [
    "It is ten past six.",
    "the 3rd of May, 12,50 €",
    ">>deu<< Good morning!",
    "naïve 日本 🦜",
    "a",
]


def train_spm(path, texts, size):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=size,
        model_type="unigram", character_coverage=0.9995, minloglevel=2,
    )  # fmt: skip
    path.with_suffix(".model").rename(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(index) for index in range(len(processor))][3:]


@pytest.fixture(scope="module", params=[True, False], ids=["shared", "separate"])
def folder(request, tmp_path_factory):
    """A folder as `save_pretrained` writes it; weights are large enough to be sure of tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path, shared = tmp_path_factory.mktemp("marian"), request.param
    pairs = PAIRS()[:3000]
    size = 300 if shared else 244  # with the control ids, fewer than we train
    sides = [train_spm(path / f"{name}.spm", [pair[side] for pair in pairs], size)
             for side, name in enumerate(("source", "target"))]  # fmt: skip
    if shared:
        sides = [[*sides[0], *(piece for piece in sides[1] if piece not in sides[0])]] * 2
    names = ("vocab.json",) if shared else ("vocab.json", "target_vocab.json")
    sizes = []
    for name, pieces in zip(names, sides, strict=False):
        listed = ["</s>", "<unk>", *pieces, ">>deu<<", ">>fra<<", "<pad>"]
        (path / name).write_text(json.dumps({piece: i for i, piece in enumerate(listed)}))
        sizes.append(len(listed))
    torch.manual_seed(5)
    config = transformers.MarianConfig(
        vocab_size=sizes[0], decoder_vocab_size=sizes[-1], share_encoder_decoder_embeddings=shared,
        d_model=32, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, scale_embedding=True,
        activation_function="swish", pad_token_id=sizes[-1] - 1, eos_token_id=0,
        decoder_start_token_id=sizes[-1] - 1,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.generation_config.update(
        max_length=LONGEST, num_beams=4, forced_eos_token_id=0, bad_words_ids=[[sizes[-1] - 1]]
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                middle = float("norm.weight" in name)
                parameter.copy_(middle + SPREAD * torch.randn_like(parameter))
        model.final_logits_bias.copy_(0.5 * torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 0] += ENDS
    model.save_pretrained(path)
    tokenizer = transformers.MarianTokenizer(
        str(path / "source.spm"), str(path / "target.spm"), str(path / "vocab.json"),
        target_vocab_file=None if shared else str(path / "target_vocab.json"),
        separate_vocabs=not shared, source_lang="en", target_lang="de",
    )  # fmt: skip
    return path, model, tokenizer


@pytest.fixture(scope="module")
def converted(folder):
    return convert.read(folder[0])


def theirs(folder, size):
    """Their ids at ours."""
    config = folder[1].config
    control = [config.pad_token_id, 1, config.decoder_start_token_id, config.eos_token_id]
    return np.array([*control, *(index for index in range(size) if index not in control)])


def test_logits_are_those_of_hugging_face(folder, converted):
    import torch

    sizes = converted.model.target_embedding.vocabulary_size
    source, target = drawn_ids(5, 9, sizes - 8, 1), drawn_ids(5, 7, sizes - 8, 2)
    target[:, 0] = 2
    source[1, 5:] = 0
    logits = array(converted.model({"source_ids": source, "target_ids": target}))
    of = theirs(folder, folder[1].config.decoder_vocab_size)
    of_source = theirs(folder, folder[1].config.vocab_size)
    with torch.no_grad():
        expected = folder[1](
            input_ids=torch.tensor(of_source[source]),
            attention_mask=torch.tensor((source != 0).astype(int)),
            decoder_input_ids=torch.tensor(of[target]),
        ).logits.numpy()[..., of]
    assert (logits[..., 2] < -50).all()  # of the start, which no text has
    expected[..., 2] = logits[..., 2]
    difference = np.abs(logits - expected).max()
    print(f"largest difference {difference:.1e} of {np.abs(expected[..., 3:]).max():.1f}")
    assert difference < 1e-4


@pytest.mark.parametrize(
    ("folder", "num_beams", "penalty"), [(True, 1, 1.0), (True, 4, 0.0), (False, 3, 2.0)],
    indirect=["folder"], ids=["shared-1-1.0", "shared-4-0.0", "separate-3-2.0"],
)  # fmt: skip
def test_tokens_are_those_of_hugging_face(folder, converted, num_beams, penalty):
    import torch

    size = converted.model.target_embedding.vocabulary_size
    rows = 24
    source = drawn_ids(rows, 11, size - 8, num_beams)
    functions = converted.model
    encoded = functions.encode(source)
    found = BeamSearch(num_beams, 1, HuggingFaceScoring(penalty))(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, num_beams),
        limits=[LONGEST - 1] * rows, start_id=2, end_id=3,
    )  # fmt: skip
    of_source = theirs(folder, folder[1].config.vocab_size)
    expected = folder[1].generate(
        torch.tensor(of_source[source]), num_beams=num_beams, length_penalty=penalty,
        max_length=LONGEST, early_stopping=False, do_sample=False,
    ).numpy()  # fmt: skip
    of = theirs(folder, folder[1].config.decoder_vocab_size)
    equal = 0
    for ours, row in zip(found.token_ids.numpy()[:, 0], expected, strict=True):
        ours = of[ours[: list(ours).index(3)]].tolist() if 3 in ours else of[ours].tolist()
        row = row[1:].tolist()
        equal += ours == row[: row.index(0)] if 0 in row else ours == row
    print(f"{equal} of {rows} rows equal; lengths {found.lengths.numpy().ravel().tolist()}")
    assert equal == rows


def test_texts_have_the_ids_of_their_tokenizer(folder, converted):
    of = theirs(folder, folder[1].config.vocab_size)
    pairs = PAIRS()[3000:4000]
    texts = [*TEXTS, *(pair[0] for pair in pairs)]
    ours = converted.tokenizer.tokenize(texts).to_list()
    expected = folder[2](texts)["input_ids"]
    different = [
        text for text, ids, row in zip(texts, ours, expected, strict=True)
        if of[ids].tolist() != row[:-1]
    ]  # fmt: skip
    assert not different
    of = theirs(folder, folder[1].config.decoder_vocab_size)
    ours = converted.target_tokenizer.tokenize([pair[1] for pair in pairs])
    expected = folder[2](text_target=[pair[1] for pair in pairs])["input_ids"]
    assert [of[row].tolist() for row in ours.to_list()] == [row[:-1] for row in expected]
    texts = folder[2].batch_decode(expected, skip_special_tokens=True)
    known = [1 not in row for row in expected]  # they leave out what is unknown, we write a sign
    joined = converted.target_tokenizer.detokenize(ours).numpy()
    assert sum(known) > 900
    assert [text.decode() for text in joined[known]] == list(itertools.compress(texts, known))


def test_a_run_translates_as_theirs_does(folder, tmp_path):
    import torch

    command.main(["--from", str(folder[0]), "--run", str(tmp_path / "run")])
    translator = Translator.load(tmp_path / "run")
    texts = [text for text in TEXTS if text.isascii()]
    given = folder[2](texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = folder[1].generate(**given, num_beams=4, max_length=LONGEST)
    expected = folder[2].batch_decode(expected, skip_special_tokens=True)
    assert translator(texts) == expected
    if not folder[1].config.share_encoder_decoder_embeddings:
        assert translator.tokenizer.vocabulary_size < LEAST_PIECES and all(expected)
    with pytest.raises(SystemExit):
        command.main(["--from", str(folder[0]), "--run", str(tmp_path / "run")])


@pytest.mark.soak
@pytest.mark.parametrize("folder", [False], indirect=True, ids=["separate"])
def test_a_model_of_two_vocabularies_is_exported(folder, tmp_path):
    translator = convert.load(folder[0])
    assert translator.tokenizer.vocabulary_size < LEAST_PIECES
    assert translator.export(tmp_path / "served", "marian").endswith("marian/1")


def test_tables_that_are_not_tied_are_each_read(folder, tmp_path):
    """With one vocabulary as well: source, target and output then have a table each."""
    import torch
    import transformers

    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    config = transformers.MarianConfig.from_pretrained(folder[0])
    config.tie_word_embeddings = False
    torch.manual_seed(7)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(SPREAD * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    test_logits_are_those_of_hugging_face((tmp_path, model), convert.read(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder_layers": 4}, r"must include model.encoder.layers.3.fc1.weight"),
        ({"encoder_ffn_dim": 64}, r"equally many ffn_dim. Received: \[64, 48\]"),
        ({"activation_function": "mish"}, "activation_function must be 'gelu' or .*'mish'"),
        ({"d_model": 64}, r"must have the shape .*64.* Received: .*32"),
        ({"eos_token_id": None}, "eos_token_id must be a whole number.*Received: None"),
        ({"pad_token_id": 10**6}, "pad_token_id must be below .*Received: 1000000"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(folder, tmp_path, change, message):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    config = json.loads((folder[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(convert.ConversionError, match=message):
        convert.read(tmp_path)
    del config["encoder_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(convert.ConversionError, match=r"config\.json must have 'encoder_layers'"):
        convert.read(tmp_path)
