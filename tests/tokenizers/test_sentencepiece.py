"""The tokenizer against the sentencepiece package, and on text that nobody expects."""

import gzip
import io
import itertools
import os
import random
import re

import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    SentencePieceTokenizer,
    SymbolTokenizer,
    train_byte_pairs,
    train_sentencepiece,
    train_word_pieces,
)
from keras_transformer.tokenizers.sentencepiece_format import Model

from .served import served_round_trip

SENTENCES = ["the cat sat on the mat", "a cat and a hat", "that hat sat there", "Grüße, 17 Äpfel"]
STRANGE = ["", " ", "  two  spaces ", "日本語", "cat🐈hat", "tab\there", "1234567", "▁", "ﬁne ½ …"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_sentencepiece(SENTENCES, 307)


def check_models_of_others(count):
    """Models of each type with drawn options of the trainer, beside sentencepiece itself."""
    texts = [*SENTENCES, "The cat, the mat: a hat!", "(don't) stop. 3.5 cats"] * 2
    texts_read = [*texts, *STRANGE, "cat. mat, (hat)", "x²™ a\u200cb Ⅷ", "<s>cat</s> <unk>"]
    for number in range(count):
        draw = random.Random(number)
        options = {
            "model_type": ("unigram", "bpe", "word", "char")[number % 4],
            "normalization_rule_name": draw.choice(["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"]),
            "character_coverage": draw.choice([0.98, 0.9995, 1.0]),
            "byte_fallback": draw.random() < 0.3,
            "user_defined_symbols": draw.choice([[], ["<mask>", "cat"], ["▁hat"]]),
            "control_symbols": draw.choice([[], ["<x>"]]),
            **{
                name: draw.random() < 0.5
                for name in (
                    "add_dummy_prefix", "remove_extra_whitespaces", "split_by_whitespace",
                    "split_by_number", "split_digits", "split_by_unicode_script",
                    "treat_whitespace_as_suffix", "allow_whitespace_only_pieces",
                    "vocabulary_output_piece_score", "use_all_vocab",
                )
            },
        }  # fmt: skip
        has_pieces = options["model_type"] in ("unigram", "bpe")
        options["byte_fallback"] &= has_pieces  # of no use to the others, which refuse it
        options["use_all_vocab"] &= not has_pieces
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=330,
            hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2,
            **options,
        )  # fmt: skip
        theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        ours = SentencePieceTokenizer(model.getvalue())
        expected = theirs.encode(texts_read)
        assert ours.tokenize(texts_read).to_list() == expected, options
        assert ours.processor.encode(texts_read) == expected
        space = [
            i for i, piece in enumerate(ours.pieces(range(ours.vocabulary_size))) if piece == "▁"
        ]
        rows = [*expected, *(space[:1] * draw.randrange(4) + row for row in expected)]
        rows += [[draw.randrange(4, ours.vocabulary_size) for _ in range(5)] for _ in range(9)]
        joined = [text.decode() for text in ours.detokenize(ours_ragged(rows)).numpy()]
        is_text = [[not theirs.is_control(i) for i in row] for row in rows]
        rows = [list(itertools.compress(*pair)) for pair in zip(rows, is_text, strict=True)]
        assert joined == theirs.decode(rows), options


def test_models_of_others_have_the_ids_of_sentencepiece():
    check_models_of_others(8)


@pytest.mark.soak
def test_many_models_of_others_have_the_ids_of_sentencepiece():
    check_models_of_others(200)


def test_pieces_equal_those_of_the_sentencepiece_package_on_real_sentences(data):
    sentences = []
    for name in ("val.en.gz", "val.de.gz"):
        with gzip.open(data / "multi30k" / name, "rt", encoding="utf-8") as file:
            sentences += file.read().splitlines()
    tokenizer = train_sentencepiece(sentences, 3001)
    reference = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    texts = sentences + STRANGE
    ours, theirs = tokenizer.tokenize(texts).to_list(), reference.encode(texts)
    different = [text for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]
    assert len(texts) > 2000 and different == [], "both must cut every sentence alike"
    joined = [text.decode() for text in tokenizer.detokenize(ours_ragged(ours)).numpy()]
    assert joined == reference.decode(theirs), "both must join the pieces alike"


@pytest.mark.parametrize("kind", ["pieces", "words", "with more pieces"])
def test_outside_of_a_graph_the_ids_are_the_same(kind, monkeypatch):
    texts = SENTENCES + STRANGE + ["a\0b", "e\u0301", "\ufeffx", "\u2028", "a" * 5000]
    if kind == "words":
        tokenizer = train_sentencepiece(SENTENCES, 30, "words")
    else:
        tokenizer = train_sentencepiece(SENTENCES, 307)
    if kind == "with more pieces":
        tokenizer._has_more, tokenizer._pieces = True, tokenizer._pieces[:290]
    if kind == "pieces":
        assert tokenizer.processor.encode(texts) == tokenizer.tokenize(texts).to_list()
    else:
        assert tokenizer.processor is None


def ours_ragged(ids):
    return tf.ragged.constant(ids, tf.int32, ragged_rank=1)


def test_ids_are_ragged_int32_without_start_and_end(tokenizer):
    ids = tokenizer.tokenize(SENTENCES[:3])
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32, "rows differ in length"
    assert ids.shape.as_list() == [3, None], "(batch, None)"
    assert int(tf.reduce_min(ids.flat_values)) > END_ID, "no control id in a tokenised text"


NORMALISED = {
    "½ x² ™ … ﬁ": "1\u20442 x2 TM ... fi",
    "a\u200cb\ufffdc": "a b c",
    "ding\x07\tdong\r\n": "ding dong",
    "\u3000two  spaces ": "two spaces",
    "cat 🐈‍⬛ hat": "cat 🐈‍⬛ hat",
    "日本語, Ωmega, naïve façade, 17 + 4 = 21": "日本語, Ωmega, naïve façade, 17 + 4 = 21",
    "<s> <unk> <pad> <0x41>": "<s> <unk> <pad> <0x41>",
    "": "",
}


def check_round_trips(normalization, texts, expected, folder):
    """Joined pieces of texts: eager, in a pipeline, served, without TensorFlow; after saving."""
    train_sentencepiece(SENTENCES, 307, normalization=normalization).save(folder / "model")
    tokenizer = SentencePieceTokenizer.load(folder / "model")
    served = served_round_trip(tokenizer, folder / "served")
    batches = tf.data.Dataset.from_tensors(texts).map(tokenizer.tokenize)
    processor = tokenizer.processor
    for joined in (
        tokenizer.detokenize(tokenizer.tokenize(texts)).numpy(),
        tokenizer.detokenize(next(iter(batches))).numpy(),
        served(tf.constant(texts)).numpy(),
        [text.encode() for text in processor.decode(processor.encode(texts))],
    ):
        assert [text.decode() for text in joined] == expected


def test_joined_pieces_give_the_normalised_text(tmp_path):
    check_round_trips("nmt_nfkc", [*NORMALISED], [*NORMALISED.values()], tmp_path)


def test_with_identity_only_the_sign_of_a_space_is_changed(tmp_path):
    texts = [*NORMALISED, "  a▁b"]
    check_round_trips("identity", texts, [*NORMALISED, "  a b"], tmp_path)


@pytest.mark.soak
def test_drawn_texts_are_restored_as_the_normalisation_says(tmp_path):
    draw = random.Random(3)
    parts = [*SENTENCES, *STRANGE, *NORMALISED, "\0", "</s>", "\ufeff", "e\u0301"]
    ranges = [(0, 0x80), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000), (0xE0000, 0x110000)]
    texts = [
        "".join(
            draw.choice(parts) if draw.random() < 0.3 else chr(draw.randrange(*draw.choice(ranges)))
            for _ in range(draw.randint(0, 12))
        )
        for _ in range(2000)
    ]
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False,
        remove_extra_whitespaces=True,
    )  # fmt: skip
    check_round_trips("nmt_nfkc", texts, normalizer.normalize(texts), tmp_path)
    check_round_trips("identity", texts, [text.replace("▁", " ") for text in texts], tmp_path)


@pytest.mark.parametrize(
    ("tokens", "normalization", "allowed"),
    [("pieces", "nfkd", "nmt_nfkc or identity"), ("words", "identity", "nmt_nfkc")],
)
def test_a_normalisation_that_is_not_there_is_refused(tokens, normalization, allowed):
    expected = f"normalization of {tokens} must be {allowed}. Received: .*={normalization!r}"
    with pytest.raises(ValueError, match=expected):
        train_sentencepiece(SENTENCES, 307, tokens, normalization)


def test_nothing_is_ever_unknown(tokenizer):
    ids = tokenizer.tokenize(STRANGE).flat_values.numpy()
    assert UNKNOWN_ID not in ids, "bytes stand in for unknown characters"


def test_invalid_utf_8_becomes_the_replacement_character(tokenizer):
    ids = tokenizer.tokenize([b"cat\xffhat", b"\xe2\x82", b"cat"])
    texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    assert texts[0] == "cat\N{REPLACEMENT CHARACTER}hat", "the rest of the text stays"
    assert set(texts[1]) == {"\N{REPLACEMENT CHARACTER}"}, "half a character is one too"
    assert texts[2] == "cat", "and its neighbours in the batch are untouched"


def test_half_a_character_in_bytes_is_still_valid_utf_8(tokenizer):
    first_byte = 4 + 0xF0  # of a four-byte character, whose other bytes never come
    [text] = tokenizer.detokenize([[first_byte]]).numpy()
    assert text.decode() == "\N{REPLACEMENT CHARACTER}", "the answer is always valid UTF-8"


def test_batch_of_zero_gives_zero_rows(tokenizer):
    ids = tokenizer.tokenize(tf.zeros([0], tf.string))
    assert ids.nrows() == 0, "no text, no row"
    assert tokenizer.detokenize(ids).shape == [0], "no row, no text"
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).shape == [0], "dense rows as well"


def test_control_ids_and_ids_outside_of_the_vocabulary_are_left_out(tokenizer):
    [cat] = tokenizer.tokenize(["cat hat"]).to_list()
    size = tokenizer.vocabulary_size
    dense = [START_ID, *cat, END_ID, PAD_ID, -1, size, 2**31 - 1]
    texts = tokenizer.detokenize([dense, [PAD_ID] * len(dense)]).numpy().tolist()
    assert texts == [b"cat hat", b""], "only pieces of text are joined"
    assert tokenizer.detokenize(ours_ragged([dense])).numpy().tolist() == [b"cat hat"], "ragged"


def test_number_is_cut_into_its_digits():
    tokenizer = train_sentencepiece(["1717 1717 1717 cat 17 17 1717"] * 5, 269)
    [ids] = tokenizer.tokenize(["1717"]).to_list()
    assert "".join(tokenizer.pieces(ids)) == "▁1717", "pieces label an axis"
    assert all(len(piece.strip("▁")) <= 1 for piece in tokenizer.pieces(ids)), "digit by digit"


def test_same_text_gives_the_same_vocabulary(tokenizer):
    again = train_sentencepiece(iter(SENTENCES), tokenizer.vocabulary_size)
    assert again.model == tokenizer.model, "training is deterministic"
    assert again.vocabulary_size == 307, "and of the size asked for"


def test_first_ids_are_pad_unknown_start_end_and_bytes(tokenizer):
    assert tokenizer.pieces(range(5)) == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"]
    assert (PAD_ID, UNKNOWN_ID, START_ID, END_ID) == (0, 1, 2, 3)


def test_saved_tokenizer_loads_equal(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    assert SentencePieceTokenizer.load(path).model == tokenizer.model, "the file is the model"
    assert os.listdir(path.parent) == ["tokenizer.model"], "and no draft stays behind"


def test_interrupted_save_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.save(path)
    assert path.read_bytes() == b"old", "a reader sees the old file or the new one"
    assert os.listdir(tmp_path) == ["tokenizer.model"], "and no draft stays behind"


def test_module_that_holds_a_tokenizer_can_be_exported(tokenizer, tmp_path):
    texts = served_round_trip(tokenizer, tmp_path)(tf.constant(["a cat", ""]))
    assert texts.numpy().tolist() == [b"a cat", b""], "the vocabulary travels with the graph"


def test_a_prefix_is_cut_together_with_the_text(tokenizer):
    texts = ["A dog runs.", "", "  "]
    prefixed = tokenizer.with_prefix("sum: ")
    expected = tokenizer.tokenize(["sum: " + text for text in texts]).to_list()
    assert prefixed.tokenize(texts).to_list() == expected
    assert prefixed.are_empty(texts).numpy().tolist() == [False, True, True]
    joined = tokenizer.with_prefix("un")  # whose pieces may go on into the text
    assert not joined.are_empty(["do"])[0]
    assert prefixed.processor is None and tokenizer.with_prefix("") is tokenizer
    assert prefixed.with_language(None).prefix == "sum: "


def test_new_random_seed_leaves_a_tokenizer_usable(tokenizer):
    other = train_sentencepiece(SENTENCES[:3], 289)
    tf.random.set_seed(17)  # throws away TensorFlow's kernels and what belongs to them
    for one in (tokenizer, other):
        texts = tf.data.Dataset.from_tensors(["a cat"]).map(one.tokenize).map(one.detokenize)
        assert next(iter(texts)).numpy().tolist() == [b"a cat"], "in a pipeline"
        assert one.detokenize(one.tokenize(["hat"])).numpy().tolist() == [b"hat"], "and alone"


def test_vocabulary_of_no_text_is_refused():
    for sentences in ([], ["", " "]):
        with pytest.raises(ValueError, match=r"needs text to learn from.*no sentence"):
            train_sentencepiece(sentences, 307)


def test_vocabulary_larger_than_the_text_allows_is_refused_with_the_maximum():
    with pytest.raises(ValueError, match=r"at most \d+ pieces.*vocabulary_size=9973") as error:
        train_sentencepiece(SENTENCES, 9973)
    most = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train_sentencepiece(SENTENCES, most).vocabulary_size == most, "the maximum is possible"


def test_vocabulary_smaller_than_the_alphabet_is_refused_with_the_minimum():
    with pytest.raises(ValueError, match=r"at least \d+ pieces.*vocabulary_size=263") as error:
        train_sentencepiece(SENTENCES, 263)
    least = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert train_sentencepiece(SENTENCES, least).vocabulary_size == least, "the minimum is possible"


def test_bytes_that_are_no_model_are_refused():
    for model in (b"", b"not a model"):
        with pytest.raises(ValueError, match=rf"SentencePiece model.*{len(model)} bytes"):
            SentencePieceTokenizer(model)


def test_a_score_that_is_no_number_is_refused():
    model = Model.FromString(train_sentencepiece(SENTENCES, 307).model)
    model.pieces[300].score = float("nan")
    with pytest.raises(ValueError, match=rf"nan, of the piece '{model.pieces[300].piece}'"):
        SentencePieceTokenizer(model.SerializeToString())


def test_model_with_other_control_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=29, minloglevel=2
    )
    with pytest.raises(ValueError, match=r"must be \['<pad>'.*Received: \['<unk>'"):
        SentencePieceTokenizer(model.getvalue())


TRAINERS = {train_sentencepiece: 307, train_word_pieces: 60, train_byte_pairs: 270}


@pytest.mark.parametrize("train", TRAINERS)
def test_one_string_is_no_text_to_learn_a_vocabulary_from(train):
    with pytest.raises(ValueError, match=r"several texts.*Received: one string, 'the cat'"):
        train("the cat", TRAINERS[train])


@pytest.mark.parametrize("make", [*TRAINERS, SymbolTokenizer])
def test_one_string_is_no_batch(make):
    tokenizer = make(SENTENCES, TRAINERS[make]) if make in TRAINERS else make()
    with pytest.raises(
        ValueError, match=r"put a single text into a list. Received: texts='the cat'"
    ):
        tokenizer.tokenize("the cat")
    with pytest.raises(ValueError, match=r"Received: strings of shape \(1, 2\)"):
        tokenizer.tokenize([["the", "cat"]])
