import json
import pathlib
import random

import pytest
import tensorflow as tf

from keras_transformer.tokenizers import BytePairTokenizer, load_tokenizer, train_byte_pairs

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "First Citizen:\nBefore we proceed  any further, hear me speak.",
    "naïve café e\u0301 \u00a0 ½ ²³ Ⅷ",
    "日本語のテキスト 한국어",
    "🦜🏽 👩‍👩‍👧 flags 🇩🇪",
    "def f(x):\n\treturn x**2  # ok\n\n\n",
    "don't I'LL they've 100000",
    " ",
    "",
]
# What is easily cut elsewhere than GPT-2 cuts it.
HARD_TEXTS = [
    "he's  'tis ' 's",
    "    if x:\n        return  \t \n\n  y  ",
    "a\u00a0 b \u3000c\u2009\u0085",
    "१६, ६ ६६",
    "<s>a</s> <pad><unk> <|endoftext|>a",
    "a\x00b \x00 \x1c\xad",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_pairs(TEXTS * 3, 350)


def test_every_text_comes_back_as_it_was(tokenizer):
    ids = tokenizer.tokenize(TEXTS)
    assert ids.dtype == tf.int32 and tokenizer.vocabulary_size == 350
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == TEXTS
    assert ids.row_lengths().numpy()[0] < 30 and ids.to_list()[-1] == []
    hard_ids = tokenizer.tokenize(HARD_TEXTS)
    assert [text.decode() for text in tokenizer.detokenize(hard_ids).numpy()] == HARD_TEXTS
    together = [*ids.to_list(), *hard_ids.to_list()]
    for text, row in zip([*TEXTS, *HARD_TEXTS], together, strict=True):
        assert tokenizer.tokenize([text]).to_list()[0] == row, "alone as in a batch"


def mixtures():
    """Letters, digits, signs and kinds of space in any order."""
    draw = random.Random(7)
    some = "abs '\n\t  \u00a0é६1.日😀\u0301\u0085\u2028"
    for _ in range(999):
        yield "".join(draw.choices(some, k=draw.randint(1, 13)))


@pytest.mark.parametrize("is_in_graph", [False, True])
def test_ids_are_those_of_hugging_face(tokenizer, is_in_graph, tmp_path):
    tokenizer.save(tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text("utf-8"))
    merges = [tuple(pair.split(" ")) for pair in kept["merges"]]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(kept["vocabulary"], merges))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [*TEXTS, *HARD_TEXTS, *mixtures(), pathlib.Path(__file__).read_text()]
    tokenize = tf.function(tokenizer.tokenize) if is_in_graph else tokenizer.tokenize
    for row, text in zip(tokenize(tf.constant(texts)).to_list(), texts, strict=True):
        assert row == theirs.encode(text).ids, text


def test_released_files_are_read_with_their_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text("utf-8"))
    # GPT-2's vocabulary: bytes and pairs first, <|endoftext|> last, nothing else.
    pieces = sorted(kept["vocabulary"], key=kept["vocabulary"].get)[4:]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(kept["merges"]) + "\n")
    released = BytePairTokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    expected = [[i - 4 for i in row] for row in tokenizer.tokenize(TEXTS).to_list()]
    assert released.tokenize(TEXTS).to_list() == expected
    assert released.control_ids == (346,)
    ends = released.tokenize(["a! <|endoftext|><|endoftext|>b", "a! ", "b"]).to_list()
    assert ends[0] == [*ends[1], 346, 346, *ends[2]]
    shifted = BytePairTokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt", 4)
    assert shifted.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
    assert shifted.vocabulary_size == 351 and shifted.control_ids == (0, 1, 2, 3, 350)
    shifted.save(tmp_path / "shifted.json")
    again = load_tokenizer(tmp_path / "shifted.json")
    assert again.detokenize(again.tokenize(TEXTS)).numpy()[0].decode() == TEXTS[0]


def test_strange_ids_and_bytes_are_welcome(tokenizer):
    assert tokenizer.control_ids == (0, 1, 2, 3)
    ids = tf.constant([[-7, 0, 2, 3, 2**30], [1] * 5])
    assert tokenizer.detokenize(ids).numpy().tolist() == [b"", b""]
    broken = tokenizer.detokenize(tokenizer.tokenize([b"a\xffb"])).numpy()[0]
    assert broken.decode() == "a\ufffdb"
    assert tokenizer.tokenize(tf.zeros([0], tf.string)).shape[0] == 0


def test_a_tokenizer_is_the_same_after_saving_and_in_a_graph(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.model")
    assert isinstance(loaded, BytePairTokenizer)
    again = tf.function(lambda text: loaded.detokenize(loaded.tokenize(text)))
    assert again(tf.constant(TEXTS)).numpy().tolist() == [text.encode() for text in TEXTS]
    assert loaded.pieces([0, 3]) == ["<pad>", "</s>"]


def test_a_start_piece_is_put_before_every_text_and_left_out_when_joined(tokenizer, tmp_path):
    pieces = [*tokenizer.pieces(range(tokenizer.vocabulary_size)), "<mask>", "<first>"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    first = BytePairTokenizer(vocabulary, tokenizer.merges, start_piece="<first>")
    first.save(tmp_path / "tokenizer.model")
    first = load_tokenizer(tmp_path / "tokenizer.model")
    start = len(pieces) - 1
    assert first.start_id == start
    expected = [[start, *row] for row in tokenizer.tokenize(["", *TEXTS]).to_list()]
    assert first.tokenize(["", *TEXTS]).to_list() == expected
    joined = first.detokenize(tf.ragged.constant([[*row, start - 1] for row in expected]))
    assert [text.decode() for text in joined.numpy()] == ["", *TEXTS]
    assert first.tokenize(tf.zeros([0], tf.string)).shape[0] == 0


def test_vocabularies_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="Received: vocabulary_size=260"):
        train_byte_pairs(TEXTS, 260)
    with pytest.raises(ValueError, match="must be 0, 1, 2 and so on"):
        BytePairTokenizer({"a": 1, "b": 3}, [])
    with pytest.raises(ValueError, match=r"256 bytes. Received: none for 255 of them"):
        BytePairTokenizer({"a": 0}, [])
    bytes_only = train_byte_pairs(TEXTS, 261)
    listed = {piece: i for i, piece in enumerate(bytes_only.pieces(range(261)))}
    with pytest.raises(ValueError, match="start_piece must be in the vocabulary"):
        BytePairTokenizer(listed, bytes_only.merges, start_piece="<x>")
