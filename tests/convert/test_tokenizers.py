"""Tokenizers from the files of other libraries beside these libraries, on 2,000 drawn texts."""

import base64
import functools
import itertools
import json
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.convert import ConversionError, load_tokenizer_of
from keras_transformer.convert.sentencepiece import read_model, rearranged
from keras_transformer.convert.tokenizer_json import SPACE
from keras_transformer.convert.tokenizers import FAIRSEQ_FILE, LLAMA_FILE, T5_FILE
from keras_transformer.tokenizers.word_pieces import PAD, UNKNOWN, WordPieceTokenizer
from tests.convert.foreign_tokenizers import (
    LLAMA,
    MBART,
    SPACES,
    T5,
    differences,
    drawn_texts,
    train_spm,
    write_json,
)
from train.demo.corpus import demo_corpus

SPECIAL = [PAD, UNKNOWN, "[CLS]", "[SEP]", "[MASK]"]
PLAIN = functools.cache(lambda: [text for pair in demo_corpus(2000) for text in pair][:4000])
LEARNED = functools.cache(lambda: drawn_texts(2000, PLAIN(), seed=1))
TEXTS = functools.cache(lambda: drawn_texts(2000, PLAIN(), seed=2))
FILES = {
    "t5": (T5_FILE, T5, "T5Tokenizer"),
    "llama": (LLAMA_FILE, LLAMA, "LlamaTokenizer"),
    "mbart": (FAIRSEQ_FILE, MBART, "MBartTokenizer"),
}

TIES = {"t5": 2, "mbart": 2, "llama": 0}  # of 2,000 texts


@pytest.fixture(scope="module", params=FILES)
def spm(request, tmp_path_factory):
    """A folder with the SentencePiece model of a family, and that model in sentencepiece."""
    folder = tmp_path_factory.mktemp(request.param)
    file, options, name = FILES[request.param]
    processor = train_spm(folder / file, LEARNED(), 900, **options)
    write_json(folder / "tokenizer_config.json", tokenizer_class=name)
    return request.param, folder, processor


def test_sentencepiece_models_give_the_ids_of_sentencepiece(spm):
    family, folder, processor = spm
    tokenizer, theirs = load_tokenizer_of(folder)
    ids = processor.encode(TEXTS())
    if family == "mbart":  # fairseq puts <pad> before all, and has unknown at 3
        ids = [[3 if i == processor.unk_id() else i + 1 for i in row] for row in ids]
    assert len({i for row in ids for i in row}) > 400
    assert differences(tokenizer, theirs, TEXTS(), ids, TIES[family]) == []


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_are_looked_up_in_a_vocabulary_as_marian_does(kind, tmp_path):
    """Unknown characters in a row are one piece, and a language begins a text."""
    processor = train_spm(tmp_path / "s.spm", PLAIN(), 300, model_type=kind)
    pieces = [processor.id_to_piece(index) for index in range(3, 290)]
    more = ["\u6771", "\u4eac", "\u6771\u4eac", "\u2581a\u6771", "\U0001f99c", ">>rus<<", ">>a<<"]
    more += [f"{a}{b}" for a, b in itertools.product(pieces[:20], pieces[:9])]
    names = [*dict.fromkeys(["<pad>", "<unk>", "<s>", "</s>", *pieces, *more])]
    ids = {name: index for index, name in enumerate(names)}
    tokenizer = rearranged(read_model(tmp_path / "s.spm"), names, True)
    odd = ["a \u6771 b", "a\u6771\u4eac", "\u6771\U0001f99c", ">>rus<<a", " >>rus<< a"]
    odd += ["a >>rus<<", ">>x<<", ">><<", "<<>>", "", ">>a\nb<< >>a<<"]
    texts = [*odd, *(prefix + text for text in TEXTS()[:300] for prefix in ("", ">>a<<"))]
    expected = []
    for text in texts:
        end = text.find("<<") + 2 if text.startswith(">>") else 1
        first = [text[:end]] if end > 1 else []
        cut = processor.encode(text[end:] if first else text, out_type=str)
        expected.append([ids.get(piece, 1) for piece in [*first, *cut]])
    assert tokenizer.tokenize(texts).to_list() == expected
    assert tf.function(tokenizer.tokenize)(tf.constant(texts)).to_list() == expected
    assert tokenizer.processor is None
    assert {ids["\u6771"], ids["\u6771\u4eac"], ids[">>rus<<"], 1} <= {
        i for row in expected for i in row
    }


def test_control_tokens_come_first_and_languages_and_sentinels_keep_their_names(spm):
    family, folder, processor = spm
    tokenizer, theirs = load_tokenizer_of(folder)
    first = {"t5": [0, 2, 0, 1, 3], "llama": [-1, 0, 1, 2, 3], "mbart": [1, 3, 0, 2, 4]}
    assert theirs[:5].tolist() == first[family]
    assert sorted({*theirs.tolist()} - {-1}) == list(range(max(theirs) + 1))
    size = len(processor)
    last = {
        "t5": (size, "<extra_id_99>", size + 99, "<extra_id_0>"),
        "mbart": (size + 4, "en_XX", size + 26, "<mask>"),
        "llama": (3, "<0x00>", 258, "<0xFF>"),
    }[family]
    places = np.argsort(theirs, kind="stable")[-(max(theirs) + 1) :]
    assert tokenizer.pieces([places[last[0]], places[last[2]]]) == [last[1], last[3]]


def test_control_tokens_in_a_text_are_text(spm):
    tokenizer, _ = load_tokenizer_of(spm[1])
    ids = tokenizer.tokenize(["a </s> b <extra_id_0> en_XX"]).to_list()[0]
    names = tokenizer.pieces(ids)
    assert not {"<s>", "</s>", "<extra_id_0>", "en_XX"} & set(names)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["split", "replace"])
def test_unigram_and_llama_json_give_the_ids_of_tokenizers(spm, layout, tmp_path):
    family, folder, _ = spm
    content = _json_of(family, read_model(folder / FILES[family][0]), layout)
    write_json(tmp_path / "tokenizer.json", **content)
    texts = [text for text in TEXTS() if not _is_listed(text, family, layout)]
    assert len(texts) > 1900
    _compare(tmp_path, texts, TIES[family])


def test_byte_level_json_gives_the_ids_of_tokenizers(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    for special in (["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]):
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=900, special_tokens=special, initial_alphabet=byte_level.alphabet(),
            show_progress=False,
        )  # fmt: skip
        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = byte_level(add_prefix_space=False)
        learner.train_from_iterator(LEARNED(), trainer)
        learner.save(str(tmp_path / "tokenizer.json"))
        theirs = _compare(tmp_path, TEXTS())
        assert theirs[:5].tolist() == ([-1] * 4 + [0] if len(special) == 1 else [1, 3, 0, 2, 4])


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece_json_gives_the_ids_of_tokenizers(lowercase, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    learner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNKNOWN))
    learner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    learner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = [UNKNOWN, PAD, *SPECIAL[2:]]  # padding is not their first
    learner.train_from_iterator(
        LEARNED(),
        tokenizers.trainers.WordPieceTrainer(
            vocab_size=900, special_tokens=special, show_progress=False
        ),
    )
    learner.save(str(tmp_path / "tokenizer.json"))
    theirs = _compare(tmp_path, TEXTS())
    assert theirs[:3].tolist() == [1, 0, 2]
    tokenizer, _ = load_tokenizer_of(tmp_path)
    assert tokenizer.lowercase == lowercase


def test_vocabularies_as_text_are_read_in_their_order(tmp_path):
    WordPieceTokenizer([*SPECIAL, "a", "##b"]).save(tmp_path / "vocab.txt")
    write_json(tmp_path / "tokenizer_config.json", do_lower_case=False)
    tokenizer, theirs = load_tokenizer_of(tmp_path)
    assert tokenizer.tokenize(["ab", "A"]).to_list() == [[5, 6], [1]]
    assert theirs.tolist() == list(range(7))


def test_gpt2s_two_files_are_read_behind_four_control_ids(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    write_json(tmp_path / "vocab.json", **{name: i for i, name in enumerate([*letters, "ab"])})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer, theirs = load_tokenizer_of(tmp_path)
    assert tokenizer.tokenize(["ab"]).to_list() == [[260]]
    assert theirs[:5].tolist() == [-1, -1, -1, -1, 0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"type": "WordLevel", "vocab": {}}}, "BPE, Unigram, WordPiece"),
        ({"pre_tokenizer": {"type": "Split"}}, "pre_tokenizer must be Split or B"),
        ({"pre_tokenizer": None}, "Received: none"),
        ({"normalizer": {"type": "NFC"}}, "normalizer must be missing"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "add_prefix_space"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": True}}, "ignore_me"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "each of the 256 bytes"),
    ],
)
def test_what_ours_cannot_do_is_refused_in_one_line(changes, said, tmp_path):
    content = {
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    }
    write_json(tmp_path / "tokenizer.json", **(content | changes))
    with pytest.raises(ConversionError, match=said) as error:
        load_tokenizer_of(tmp_path)
    assert "\n" not in str(error.value)


def test_a_space_before_byte_pairs_is_refused_whichever_file_holds_them(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = {"type": "BPE", "vocab": {name: i for i, name in enumerate(letters)}, "merges": []}
    level = {"type": "ByteLevel", "add_prefix_space": False}
    write_json(tmp_path / "tokenizer.json", model=model, pre_tokenizer=level)
    for value in (False, None):
        write_json(tmp_path / "tokenizer_config.json", add_prefix_space=value)
        load_tokenizer_of(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", add_prefix_space=True)
    with pytest.raises(ConversionError, match="add_prefix_space must be False or None"):
        load_tokenizer_of(tmp_path)


def test_missing_and_damaged_files_are_told(tmp_path):
    with pytest.raises(ConversionError, match=r"must hold spiece\.model"):
        load_tokenizer_of(tmp_path)
    (tmp_path / T5_FILE).write_bytes(b"no model")
    with pytest.raises(ConversionError, match="must be a SentencePiece model"):
        load_tokenizer_of(tmp_path)


def test_pieces_that_another_class_numbers_otherwise_are_refused(spm, tmp_path):
    family, folder, _ = spm
    other = {"t5": "Pegasus", "mbart": "Barthez", "llama": "XGLM"}[family] + "Tokenizer"
    (tmp_path / FILES[family][0]).write_bytes((folder / FILES[family][0]).read_bytes())
    write_json(tmp_path / "tokenizer_config.json", tokenizer_class=other)
    with pytest.raises(ConversionError, match=f"Received: a tokenizer_class of {other}"):
        load_tokenizer_of(tmp_path)


def test_a_unigram_file_that_lost_its_normalisation_is_refused(tmp_path, spm):
    family, folder, _ = spm
    if family == "llama":
        pytest.skip("llama does not normalise")
    content = _json_of(family, read_model(folder / FILES[family][0]), "split")
    write_json(tmp_path / "tokenizer.json", **(content | {"normalizer": None}))
    message = "must have a Precompiled normalizer if it splits at white space"
    with pytest.raises(ConversionError, match=message):
        load_tokenizer_of(tmp_path)


@pytest.mark.oracle
@pytest.mark.slow
def test_folders_saved_by_transformers_give_their_ids(spm, tmp_path):
    transformers = pytest.importorskip("transformers", "5")
    family, folder, _ = spm
    if family == "mbart":
        pytest.skip("transformers 5 loses the normalisation of mBART")
    saved = getattr(transformers, FILES[family][2]).from_pretrained(folder)
    saved.save_pretrained(tmp_path)
    texts = [text for text in TEXTS() if not _is_listed(text, family, "saved")]
    ids = saved(texts, add_special_tokens=False)["input_ids"]
    for path in (folder, tmp_path):
        assert differences(*load_tokenizer_of(path), texts, ids, TIES[family]) == []


def _compare(folder, texts, ties=0):
    tokenizers = pytest.importorskip("tokenizers")
    file = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [found.ids for found in file.encode_batch(texts, add_special_tokens=False)]
    tokenizer, theirs = load_tokenizer_of(folder)
    assert differences(tokenizer, theirs, texts, ids, ties) == []
    content = json.loads((folder / "tokenizer.json").read_text())
    del content["model"]["type"]  # as in the released files of GPT-2, BERT and DistilBERT
    write_json(folder / "tokenizer.json", **content)
    assert differences(load_tokenizer_of(folder)[0], theirs, texts[:99], ids[:99], ties) == []
    return theirs


def _is_listed(text, family, layout):
    """Whether a text belongs to the differences that the guide lists."""
    if family == "llama":
        return layout == "saved" and text.startswith(" ")
    if layout == "replace" and text[-1:].isspace():
        return True
    marked = itertools.pairwise(text)
    return any(a in SPACES and unicodedata.category(b)[0] == "M" for a, b in marked)


def _json_of(family, model, layout):
    """The tokenizer.json of a family in the layout of the released ones."""
    scored = [[piece.piece, piece.score] for piece in model.pieces]
    metaspace = {"type": "Metaspace", "replacement": "▁"}
    if family == "llama":
        ids = {name: index for index, (name, _) in enumerate(scored)}
        pairs = [
            (-score, ids[name[:cut]], ids[name[cut:]], [name[:cut], name[cut:]])
            for name, score in scored[259:]
            for cut in range(1, len(name))
            if name[:cut] in ids and name[cut:] in ids
        ]
        merges = [pair[-1] for pair in sorted(pairs)]
        before = [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]
        return {
            "added_tokens": [_added(name, ids[name]) for name in ("<unk>", "<s>", "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": before},
            "pre_tokenizer": None,
            "decoder": None,
            "model": {"type": "BPE", "vocab": ids, "unk_token": "<unk>", "fuse_unk": True,
                      "byte_fallback": True, "ignore_merges": False,
                      "merges": merges if layout == "split" else [" ".join(m) for m in merges]},
        }  # fmt: skip
    if family == "t5":
        scored += [[f"<extra_id_{index}>", 0.0] for index in range(99, -1, -1)]
        special, unknown = ["<pad>", "</s>", "<unk>", "<extra_id_99>", "<extra_id_0>"], 2
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>", "en_XX", "<mask>"]
        control, languages = special[:4], special[4:]
        scored = [*([n, 0.0] for n in control), *scored[3:], *([n, 0.0] for n in languages)]
        unknown = 3
    ids = {name: index for index, (name, _) in enumerate(scored)}
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    if layout == "split":
        parts = [{"type": "WhitespaceSplit"}, metaspace | {"add_prefix_space": True}]
        splitting = {"type": "Sequence", "pretokenizers": parts}
    else:
        spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
        normalizer = {"type": "Sequence", "normalizers": [normalizer, spaces]}
        splitting = metaspace | {"prepend_scheme": "always", "split": True}
    return {
        "added_tokens": [_added(name, ids[name]) for name in special],
        "normalizer": normalizer,
        "pre_tokenizer": splitting,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": scored},
    }


def _added(name, index):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": name, "id": index, "special": True, **flags}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["word pieces", "byte pairs"])
def test_added_tokens_are_refused_unless_they_are_special(kind, where, special, tmp_path):
    """Theirs finds them in a text before it splits it; ours would take "covid-19" apart."""
    tokenizers = pytest.importorskip("tokenizers")
    if kind == "word pieces":
        size = len(SPECIAL) + 1
        listed = {piece: index for index, piece in enumerate([*SPECIAL, "covid"])}
        model = {"type": "WordPiece", "vocab": listed, "unk_token": UNKNOWN}
        parts = {"normalizer": {"type": "BertNormalizer", "lowercase": True},
                 "pre_tokenizer": {"type": "BertPreTokenizer"}}  # fmt: skip
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in listed))
    else:
        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        size, listed = 256, {name: index for index, name in enumerate(letters)}
        model = {"type": "BPE", "vocab": listed, "merges": []}
        parts = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
        write_json(tmp_path / "vocab.json", **listed)
        (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    token = {"content": "covid-19", "special": special}
    if where == "added_tokens.json":
        write_json(tmp_path / where, **{"covid-19": size})
        names = ["covid-19"] if special else []
        write_json(tmp_path / "special_tokens_map.json", additional_special_tokens=names)
    elif where == "tokenizer_config.json":
        write_json(tmp_path / where, added_tokens_decoder={str(size): token})
    else:
        added = [token | {"id": size}]
        write_json(tmp_path / where, model=model, added_tokens=added, **parts)
    if special:
        tokenizer, _ = load_tokenizer_of(tmp_path)
        assert len(tokenizer.tokenize(["covid-19"]).to_list()[0]) > 1
        return
    message = "must not add tokens to its vocabulary unless they are special.*Received: 'covid-19'"
    with pytest.raises(ConversionError, match=message):
        load_tokenizer_of(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strip_accents": False}, "strip_accents must be None or True"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be True"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize must be True"),
        ({"never_split": ["covid-19"]}, "never_split must be None"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class of BertJapaneseTokenizer"),
        ({"added_tokens_decoder": {"5": "x"}}, "must be objects with a content"),
        ({"additional_special_tokens": 3}, "must be a list or a JSON object"),
        ({"tokenizer_class": 3}, "tokenizer_class must be a string"),
    ],
)
def test_settings_of_word_pieces_that_ours_have_not_are_refused(settings, said, tmp_path):
    WordPieceTokenizer([*SPECIAL, "a", "##b"]).save(tmp_path / "vocab.txt")
    write_json(tmp_path / "tokenizer_config.json", **settings)
    with pytest.raises(ConversionError, match=said):
        load_tokenizer_of(tmp_path)


def test_other_settings_of_a_tokenizer_are_named(tmp_path, caplog):
    WordPieceTokenizer([*SPECIAL, "a", "##b"]).save(tmp_path / "vocab.txt")
    usual = {"model_max_length": 512, "cls_token": "[CLS]", "padding_side": "right"}
    write_json(tmp_path / "tokenizer_config.json", **usual)
    load_tokenizer_of(tmp_path)
    assert caplog.text == ""
    write_json(tmp_path / "tokenizer_config.json", **usual, word_shape="x", auto_map={"a": "b"})
    load_tokenizer_of(tmp_path)
    assert "no effect here: word_shape='x', auto_map={'a': 'b'}." in caplog.text


STEPS = {
    "two of a kind": [{"type": "Prepend", "prepend": SPACE}] * 2,
    "another order": [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
                      {"type": "Prepend", "prepend": SPACE}],
    "another text": [{"type": "Replace", "pattern": {"String": "a"}, "content": SPACE}],
    "another setting": [{"type": "Prepend", "prepend": SPACE, "twice": True}],
}  # fmt: skip


@pytest.mark.parametrize("kind", STEPS)
def test_steps_of_a_normalizer_that_ours_have_not_are_refused(kind, tmp_path):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x41>": 3, "a": 4}
    content = {
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
        "normalizer": {"type": "Sequence", "normalizers": STEPS[kind]},
    }
    write_json(tmp_path / "tokenizer.json", **content)
    with pytest.raises(ConversionError, match=r"in this order|only spaces|twice is not supported"):
        load_tokenizer_of(tmp_path)


@pytest.mark.parametrize(
    "setting", [{"continuing_subword_prefix": "##"}, {"end_of_word_suffix": "</w>"}, {"new": 1},
                {"ignore_merges": 0}, {"dropout": 0.1}]
)  # fmt: skip
def test_settings_of_byte_pairs_that_ours_have_not_are_refused(setting, tmp_path):
    model = {"type": "BPE", "vocab": {}, "merges": []} | setting
    parts = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    write_json(tmp_path / "tokenizer.json", model=model, **parts)
    with pytest.raises(ConversionError, match=f"{next(iter(setting))} (must be|is not supported)"):
        load_tokenizer_of(tmp_path)
