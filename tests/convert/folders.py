"""Small folders of every family, with random weights, made without the other libraries."""

import functools
import json
import pathlib
import shutil
import tempfile

import keras
from safetensors.numpy import save_file

import keras_transformer as kt
from keras_transformer.convert import Converted, bart, bert, huggingface, keras_hub, marian, t5
from keras_transformer.convert.tables import VocabularyPermutation, arrays_of
from keras_transformer.convert.tokenizers import MBART50_LANGUAGES
from keras_transformer.decoding import BeamSearch, HuggingFaceScoring
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.serving import Generator, SamplingSettings, SearchSettings, Translator
from keras_transformer.tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.tokenizers.sentencepiece_format import Model, PieceType
from tests.convert.test_opennmt import runs
from train.demo.corpus import demo_corpus

TEXTS = demo_corpus(300)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{one}" for one in LETTERS)]
BLOCK = {"num_layers": 1, "hidden_dim": 12, "num_heads": 3}
EXTRA = 5  # rows of tables without a piece


def save_config(path, config):
    (path / "config.json").write_text(json.dumps(config), "utf-8")


def config_of(path):
    return json.loads((path / "config.json").read_text("utf-8"))


def a_marian(path, **options):
    tokenizer = kt.tokenizers.train_sentencepiece([*TEXTS.sources, *TEXTS.targets], 400)
    model = kt.translation(
        400, **BLOCK, intermediate_dim=14, normalize_first=False, output_bias=True, **options
    )
    settings = SearchSettings(BeamSearch(2, scoring=HuggingFaceScoring(0.6)), 30, 30)
    huggingface.write(Translator(model, tokenizer, settings=settings), path)


def a_marian_of_two(path):
    a_marian(path, target_vocabulary_size=400)


def an_m2m100(path):
    names = _byte_fallback(path / "sentencepiece.bpe.model")
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *names]
    listed = json.dumps({piece: index for index, piece in enumerate(vocabulary)})
    (path / "vocab.json").write_text(listed, "utf-8")
    cutter = {"tokenizer_class": "M2M100Tokenizer", "language_codes": "wmt21", "src_lang": "en"}
    (path / "tokenizer_config.json").write_text(json.dumps(cutter))
    size = len(vocabulary) + 8 + EXTRA
    order = VocabularyPermutation([1, 3, 2, 2, 0, *range(4, size)])
    model = kt.translation(len(order), **BLOCK, intermediate_dim=14, output_bias=True)
    arrays = arrays_of(marian.rows(model, order, order))
    del arrays["final_logits_bias"]
    save_file(arrays, path / "model.safetensors")
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": 1, "attention_heads": 3, "ffn_dim": 14}.items()}  # fmt: skip
    save_config(path, {
        "model_type": "m2m_100", "vocab_size": size, "d_model": 12, **sides, "pad_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 2, "activation_function": "relu",
    })  # fmt: skip


def a_bart(path):
    learned = kt.tokenizers.train_byte_pairs(TEXTS.sources, 300)
    pieces = learned.pieces(range(300))
    pieces[2] = bart.START
    tokenizer = bart.with_first(pieces, learned.merges)
    _write_with_positions(path, (tokenizer, tokenizer), normalize_first=False)


def an_mbart(path):
    model = Model.FromString(kt.tokenizers.train_sentencepiece(TEXTS.sources, 400).model)
    for name in MBART50_LANGUAGES:
        model.pieces.add(piece=name, type=PieceType.CONTROL)
    model.trainer_spec.vocab_size = len(model.pieces)
    tokenizer = SentencePieceTokenizer(model.SerializeToString())
    tokenizers = [tokenizer.with_language(name) for name in ("en_XX", "de_DE")]
    _write_with_positions(path, tokenizers, normalize_first=True)


def _write_with_positions(path, tokenizers, **options):
    model = kt.translation(
        tokenizers[0].vocabulary_size + EXTRA - 1, **BLOCK, intermediate_dim=14, output_bias=True,
        max_sequence_length=32, embedding_norm=True, activation="gelu", **options,
    )  # fmt: skip
    settings = SearchSettings(BeamSearch(2, scoring=HuggingFaceScoring(0.6)), 32, 32)
    huggingface.write(Translator(model, *tokenizers, settings=settings), path)


def a_t5(path):
    tokenizer = kt.tokenizers.train_sentencepiece(TEXTS.sources, 400)
    (path / "spiece.model").write_bytes(tokenizer.model)
    cutter = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (path / "tokenizer_config.json").write_text(json.dumps(cutter))
    size = 400 + EXTRA
    order = VocabularyPermutation([0, 1, 0, 3, *range(4, size), 2])
    model = kt.translation(
        len(order), **BLOCK, intermediate_dim=14, key_dim=5, output_bias=True, use_bias=False,
        scale_embedding=False, normalization="rms",
        position_bias={"type": "t5", "num_buckets": 8, "max_distance": 9},
    )  # fmt: skip
    save_file(arrays_of(t5.rows(model, order, True)), path / "model.safetensors")
    save_config(path, {
        "model_type": "t5", "vocab_size": size, "d_model": 12, "d_kv": 5, "d_ff": 14,
        "num_layers": 1, "num_heads": 3, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9, "pad_token_id": 0, "eos_token_id": 3,
    })  # fmt: skip


def _byte_fallback(path):
    tokenizer = kt.tokenizers.train_sentencepiece(TEXTS.sources, 400)
    path.write_bytes(tokenizer.model)
    return tokenizer.pieces(range(4, 400))


def a_gpt2(path):
    tokenizer = kt.tokenizers.train_byte_pairs(TEXTS.sources, 290)
    model = kt.gpt2(vocabulary_size=290, max_sequence_length=32, **BLOCK)
    huggingface.write(Generator(model, tokenizer, SamplingSettings(32, 9)), path)


def a_llama(path):
    tokenizer = kt.tokenizers.train_byte_pairs(TEXTS.sources, 290)
    model = kt.language_model(
        290, **BLOCK, intermediate_dim=14, blocks="llama", norm_epsilon=1e-6,
        scale_embedding=False, tie_output=False,
    )  # fmt: skip
    huggingface.write(Generator(model, tokenizer, SamplingSettings(32, 9)), path)


def _bert_of(head, **options):
    backbone = kt.bert(len(PIECES), "tiny", 40, **BLOCK, intermediate_dim=14, **options)
    model = backbone if head is None else kt.bert_classifier(backbone, 3)
    return Converted("pretraining", model, WordPieceTokenizer(PIECES), labels=("a", "b", "c"))


def a_bert(path):
    huggingface.write(_bert_of("labels"), path)


def a_distilbert(path):
    converted = _bert_of("labels", pooler_activation="relu")
    arrays = arrays_of(bert.rows(converted.model, bert.DISTILBERT))
    del arrays[bert.TOKEN_TYPES]
    _heads_apart(path, arrays, "distilbert.", ("pre_classifier", "classifier"))
    converted.tokenizer.save(path / "vocab.txt")
    save_config(path, {
        "model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"],
        "vocab_size": len(PIECES), "n_layers": 1, "dim": 12, "n_heads": 3, "hidden_dim": 14,
        "max_position_embeddings": 40, "activation": "gelu", "pad_token_id": 0,
        "id2label": {"0": "a", "1": "b", "2": "c"},
    })  # fmt: skip


def a_roberta(path):
    kt.tokenizers.train_byte_pairs(TEXTS.sources, 300).save_files(
        path / "vocab.json", path / "merges.txt"
    )
    listed = json.loads((path / "vocab.json").read_text("utf-8"))
    theirs = ["<s>", "<pad>", "</s>", "<unk>", *(sorted(listed, key=listed.get)[4:])]
    vocabulary = {piece: index for index, piece in enumerate(theirs)}
    (path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    backbone = kt.bert(300 + EXTRA, "tiny", 40, **BLOCK, intermediate_dim=14, norm_epsilon=1e-5)
    order = VocabularyPermutation([1, 3, 0, 2, *range(4, 300 + EXTRA)])
    arrays = arrays_of(bert.rows(kt.bert_classifier(backbone, 2), bert.ROBERTA, order))
    _heads_apart(path, arrays, "roberta.", ("classifier",))
    save_config(path, {
        "model_type": "roberta", "architectures": ["RobertaForSequenceClassification"],
        "vocab_size": 300 + EXTRA, "num_hidden_layers": 1, "hidden_size": 12,
        "num_attention_heads": 3, "intermediate_size": 14, "max_position_embeddings": 42,
        "hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5,
    })  # fmt: skip


def _heads_apart(path, arrays, prefix, heads):
    named = {n if n.startswith(heads) else prefix + n: array for n, array in arrays.items()}
    save_file(named, path / "model.safetensors")


def a_bert_preset(path):
    keras_hub.write(_bert_of("labels", activation=gelu_tanh), path)


def a_gpt2_preset(path):
    tokenizer = kt.tokenizers.train_byte_pairs(TEXTS.sources, 290)
    model = kt.gpt2(vocabulary_size=290, max_sequence_length=32, intermediate_dim=14, **BLOCK)
    keras_hub.write(Generator(model, tokenizer, SamplingSettings(32, 9)), path)


def an_opennmt(path):
    shutil.copytree(runs() / "base", path, dirs_exist_ok=True)


def copied(make):
    """What makes a folder, once in a process: each later call copies it."""

    @functools.cache
    def made():
        folder = tempfile.TemporaryDirectory()
        keras.utils.set_random_seed(7)
        make(pathlib.Path(folder.name))
        return folder  # until the process ends

    return lambda path: shutil.copytree(made().name, path, dirs_exist_ok=True)


# Of each family: what makes a folder, and its files of pieces with the most that its table takes.
FAMILIES = {
    "marian": copied(a_marian),
    "marian of two vocabularies": copied(a_marian_of_two),
    "m2m100": copied(an_m2m100),
    "bart": copied(a_bart),
    "mbart": copied(an_mbart),
    "t5": copied(a_t5),
    "gpt2": copied(a_gpt2),
    "llama": copied(a_llama),
    "bert": copied(a_bert),
    "distilbert": copied(a_distilbert),
    "roberta": copied(a_roberta),
    "preset of bert": copied(a_bert_preset),
    "preset of gpt2": copied(a_gpt2_preset),
    "opennmt": copied(an_opennmt),
}
