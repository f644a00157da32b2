"""Texts of many scripts, and tokenizers of other libraries learned from them, in their files."""

import json
import random

import numpy as np

SCRIPTS = {
    "emoji": "🦜 👩‍🚀 🏳️‍🌈 👍🏽 🇩🇪 😀 ❤️ 1️⃣",
    "cjk": "日本語 東京都 中文字 你好、世界。 한국어 안녕 カタカナ ﾊﾝｶｸ ひらがな",
    "accents": "naïve façade Ångström Žluťoučký cre\u0301me ﬁn ½ Straße İstanbul Ελλάδα Привет",
    "code": "x_1 = f(a[i], b) if (n!=0): {'k': -3.5e10}; #include<io.h> a->b \\n <div/> 12345",
    "others": "नमस्ते ภาษาไทย العربية עברית \u200bzero … “quoted” don't we'll I'M 3.14 — №5",
}
SPACES = ["  ", "   ", "\t", "\n", " \n ", "\u00a0", "\u3000"]


def drawn_texts(number, plain, seed=0):
    """Sentences of `plain`, most with words of other scripts and other spaces in between."""
    draw = random.Random(seed)
    others = [word for words in SCRIPTS.values() for word in words.split(" ")]
    texts = []
    for _ in range(number):
        words = draw.choice(plain).split(" ")[:20]
        for _ in range(draw.randrange(6)):
            words.insert(draw.randrange(len(words) + 1), draw.choice(others))
        text = " ".join(words)
        if draw.random() < 0.3:
            place = draw.randrange(len(text) + 1)
            text = text[:place] + draw.choice(SPACES) + text[place:]
        texts.append(text)
    return texts


def train_spm(path, texts, size, **options):
    """Learns a SentencePiece model, by the options of a family, and writes it."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path), vocab_size=size,
        minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    path.with_name(f"{path.name}.model").rename(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


# What each family trained its model with.
T5 = {"model_type": "unigram", "character_coverage": 0.9995, "pad_id": 0, "eos_id": 1, "unk_id": 2,
      "bos_id": -1}  # fmt: skip
LLAMA = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "unk_id": 0,
         "bos_id": 1, "eos_id": 2, "pad_id": -1, "normalization_rule_name": "identity",
         "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True,
         "unk_surface": " \u2047 ", "character_coverage": 0.99995}  # fmt: skip
MBART = {"model_type": "unigram", "character_coverage": 0.9995, "unk_id": 0, "bos_id": 1,
         "eos_id": 2, "pad_id": -1}  # fmt: skip


def differences(tokenizer, theirs, texts, ids, ties=0):
    """The texts whose ids, back in their order, are others.

    In as many as `ties` texts the same pieces may stand in another order, "3 33" for "33 3": the
    score of Unigram is the same.
    """
    ours = [theirs[np.array(row, int)].tolist() for row in tokenizer.tokenize(texts).to_list()]
    others = [(t, a, list(b)) for t, a, b in zip(texts, ours, ids, strict=True) if a != list(b)]
    tied = [text for text, a, b in others if sorted(a) == sorted(b)]
    return [text for text, _, _ in others if text not in tied[:ties]]


def write_json(path, **content):
    path.write_text(json.dumps(content), "utf-8")
