"""M2M100 and NLLB folders beside Hugging Face's own models and tokenizers, with random weights."""

import json

import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.decoding import beam_search
from keras_transformer.models import encoder_decoder
from tests.convert.test_marian import LONGEST, PAIRS, SPREAD, drawn_ids
from tests.reference import array

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
MADE_UP = 8  # rows of their table that no piece has


def train_spm(path, texts, size):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path.with_suffix("")), vocab_size=size,
        model_type="bpe", character_coverage=0.9995, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(index) for index in range(len(processor))]


def m2m100_tokenizer(path):
    import transformers

    texts = [text for pair in PAIRS()[:3000] for text in pair]
    pieces = train_spm(path / "sentencepiece.bpe.model", texts, 300)
    listed = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:-9]]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(listed)}))
    tokenizer = transformers.M2M100Tokenizer(
        str(path / "vocab.json"), str(path / "sentencepiece.bpe.model"), src_lang="en",
        tgt_lang="de",
    )  # fmt: skip
    tokenizer.save_pretrained(path)
    return tokenizer, tokenizer.get_lang_id("de"), len(listed) + 100 + MADE_UP


@pytest.fixture(scope="module", params=["m2m100"])
def folder(request, tmp_path_factory):
    """A folder as `save_pretrained` writes it; weights are large enough to be sure of tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp(request.param)
    tokenizer, language, size = globals()[f"{request.param}_tokenizer"](path)
    torch.manual_seed(5)
    config = transformers.M2M100Config(
        vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    )  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.generation_config.update(
        max_length=LONGEST, num_beams=4, forced_bos_token_id=language, bad_words_ids=[[1]]
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = float("norm.weight" in name)
            parameter.copy_(middle + SPREAD * torch.randn_like(parameter))
        model.model.shared.weight[2] *= 1.4
    model.save_pretrained(path)
    return path, model, tokenizer


@pytest.fixture(scope="module")
def converted(folder):
    return convert.read(folder[0])


def theirs(folder, model):
    """Their ids at ours: pad, unknown, </s> as start, </s>, pieces and languages, <s>, the rest."""
    size = model.get_layer("target_embedding").vocabulary_size
    made_up = MADE_UP if "M2M100" in type(folder[2]).__name__ else 0
    rest = range(size - 1 - made_up, size - 1)
    of = np.array([1, 3, 2, 2, *range(4, size - 1 - made_up), 0, *rest])
    assert sorted(set(of.tolist())) == list(range(folder[1].config.vocab_size))
    return of


def test_logits_are_those_of_hugging_face(folder, converted):
    import torch

    of = theirs(folder, converted.model)
    source, target = drawn_ids(5, 9, len(of), 1), drawn_ids(5, 7, len(of), 2)
    target[:, 0] = 2
    source[1, 5:] = 0
    logits = array(converted.model({"source_ids": source, "target_ids": target}))
    with torch.no_grad():
        expected = folder[1](
            input_ids=torch.tensor(of[source]),
            attention_mask=torch.tensor((source != 0).astype(int)),
            decoder_input_ids=torch.tensor(of[target]),
        ).logits.numpy()[..., of]
    expected[..., 2] = -1e9
    difference = np.abs(logits - expected).max()
    print(f"largest difference {difference:.1e} of {np.abs(expected[..., 3:]).max():.1f}")
    assert difference < 1e-4


@pytest.mark.parametrize(("num_beams", "penalty"), [(1, 1.0), (4, 1.0), (4, 0.0)])
def test_tokens_are_those_of_hugging_face(folder, converted, num_beams, penalty):
    import torch

    of, rows = theirs(folder, converted.model), 24
    source = drawn_ids(rows, 11, len(of), num_beams)
    functions = encoder_decoder.functions(converted.model)
    encoded = functions.encode(source)
    language = folder[1].generation_config.forced_bos_token_id
    found = beam_search(
        lambda *state: functions.step(encoded, *state),
        functions.start_cache(encoded, num_beams),
        num_beams=num_beams, limits=[LONGEST - 1] * rows, start_id=2, end_id=3, n_best=1,
        prefix=[[of.tolist().index(language)]] * rows, length_penalty=penalty,
        scoring="huggingface",
    )  # fmt: skip
    answer = folder[1].generate(
        torch.tensor(of[source]), num_beams=num_beams, length_penalty=penalty, max_length=LONGEST,
        early_stopping=False, do_sample=False, return_dict_in_generate=True, output_scores=True,
        forced_eos_token_id=2,
    )  # fmt: skip
    equal = 0
    for ours, row in zip(found.token_ids.numpy()[:, 0], answer.sequences.numpy(), strict=True):
        ours, row = of[ours[ours != 0]].tolist(), row[1:]
        equal += ours == row[row != 1].tolist()
    lengths = found.lengths.numpy().ravel()
    print(f"{equal} of {rows} rows equal; lengths {lengths.tolist()}")
    assert equal == rows
    assert len(set(lengths.tolist())) > 1 or (num_beams, penalty) == (4, 1.0)
    if num_beams > 1:
        scores = answer.sequences_scores.numpy()
        difference = np.abs(found.scores.numpy()[:, 0] - scores).max()
        print(f"scores differ by {difference:.1e}")
        assert difference < 1e-4
