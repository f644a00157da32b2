"""What a library user does in a few lines: texts in, texts out, nothing of `train/`."""

import math
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch, GNMTScoring, Sampling
from keras_transformer.serving import (
    Classifier,
    Generator,
    SamplingSettings,
    SearchSettings,
    Translator,
)
from keras_transformer.serving.served_model import TEXTS_AT_A_TIME, answering_threads, side_by_side

from .conftest import SETTINGS, SMALL

SENTENCES = ["A dog.", "It is ten.", "Zwei Hund"]


@pytest.fixture(scope="module")
def translate(model, tokenizer):
    return Translator(model, tokenizer, settings=SETTINGS)


@pytest.fixture(scope="module")
def classify():
    tokenizer = kt.tokenizers.SymbolTokenizer("abc dog")
    model = kt.classifier(tokenizer.vocabulary_size, 3, **SMALL)
    return Classifier(model, tokenizer, ["bad", "good", "schön"], max_length=7)


@pytest.fixture(scope="module")
def write():
    tokenizer = kt.tokenizers.SymbolTokenizer()
    model = kt.language_model(tokenizer.vocabulary_size, **SMALL)
    return Generator(model, tokenizer, kt.serving.SamplingSettings(context=11, max_tokens=5))


def test_many_texts_keep_their_order_and_single_translations(translate):
    words = "A dog runs in the park It is ten".split()
    texts = [" ".join(words[: 1 + n % 3]) + f" {n}" for n in range(TEXTS_AT_A_TIME + 5)]
    some = translate(texts)
    assert [translate([texts[row]])[0] for row in (0, 3, 68)] == [some[row] for row in (0, 3, 68)]
    assert translate([]) == [] and translate([""]) == [""]


def test_batches_are_answered_side_by_side_in_order():
    together = threading.Barrier(3, timeout=20)

    def answered(rows):
        together.wait()  # only passed if three threads answer at once
        return rows

    order = list(range(63, 0, -1))
    first, second, third = side_by_side(answered, order, threads=3)
    assert [*first, *second, *third] == order
    assert [len(rows) for rows in side_by_side(list, [5, 6, 7], threads=2)] == [2, 1]
    assert list(side_by_side(list, [], threads=2)) == [[]], "one empty batch has all keys"


def test_an_error_in_a_batch_is_raised():
    def fail(rows):
        raise LookupError(rows)

    with pytest.raises(LookupError):
        list(side_by_side(fail, [1, 2], threads=2))


def test_threads_are_those_that_tensorflow_is_set_to(monkeypatch):
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 5)
    assert answering_threads() == 5
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert answering_threads() == 1, "a GPU"


def test_the_first_of_n_best_is_the_translation_with_its_score(translate):
    best = translate.n_best(SENTENCES)
    assert [hypotheses[0].text for hypotheses in best] == translate(SENTENCES)
    answer = translate.answer(SENTENCES)
    np.testing.assert_allclose([each[0].score for each in best], answer["score"], rtol=1e-5)
    assert [each[0].num_tokens for each in best] == answer["length"].tolist()
    assert all(first.score >= second.score for first, second in best)
    (begun,) = translate.n_best(SENTENCES[:1], prefixes=["Zwei"], max_length=5)
    assert all(hypothesis.text.startswith("Zwei") for hypothesis in begun)


def test_scores_are_those_of_the_search_without_its_penalty():
    keras.utils.set_random_seed(3)
    tokenizer = kt.tokenizers.SymbolTokenizer("abcdefg")  # a text has one cut only
    model = kt.translation(tokenizer.vocabulary_size, size="tiny", **SMALL)
    search = BeamSearch(3, scoring=GNMTScoring(0.0))
    settings = SearchSettings(search, max_target_length=9)
    translate = Translator(model, tokenizer, settings=settings)
    sources = ["abba", "cafe", "g"]
    compared = 0
    for source, hypotheses in zip(sources, translate.n_best(sources), strict=True):
        for text, score, num_tokens in hypotheses:
            if len(text) + 1 == num_tokens < 9:  # no control id among them, and an end
                np.testing.assert_allclose(translate.score([source], [text]), [score], rtol=1e-4)
                compared += 1
    assert compared
    targets = ["a", "", "bcdefg"]
    together = translate.score(sources, targets)
    alone = [translate.score([s], [t])[0] for s, t in zip(sources, targets, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert translate.score([], []).shape == (0,)


def test_characters_stream_whole_after_a_stray_byte(write):
    tokenizer, text = write.tokenizer, "a\U0001f99cb".encode()
    ids = [[*tokenizer.tokenize([part]).numpy().tolist()[0]] for part in ("a", "\U0001f99c", "b")]
    stray = ids[1][1]  # a byte that begins no character
    written = list(write._pieces([], [*ids[0], stray, *ids[1], *ids[2]]))
    assert "".join(written) == "a\ufffd\U0001f99cb" and text.decode()[1] in written[-2]


def test_lone_surrogates_are_read_as_replacement_characters(translate, classify, write):
    bad, good = "d\ud800", "d\ufffd"
    assert translate([good, bad]) == translate([bad, good])
    assert translate.n_best([bad], [bad]) == translate.n_best([good], [good])
    assert translate.score([bad], [bad]) == translate.score([good], [good])
    np.testing.assert_array_equal(classify.probabilities([bad]), classify.probabilities([good]))
    assert write([bad]) == write([good])
    assert list(write.stream(bad, 3)) == list(write.stream(good, 3))
    assert write.score([bad]) == write.score([good])
    for served, given in ((translate, (bad, bad)), (classify, (bad,)), (write, (bad,))):
        assert served.attention(*given).page().encode()


def test_attention_of_a_sentence_is_a_figure_and_a_page(translate, classify, write):
    attention = translate.attention("A dog runs.")
    weights = attention.scores["cross"][-1]
    assert weights.shape == (
        3,
        len(attention.row_tokens["cross"]),
        len(attention.column_tokens["cross"]),
    )
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert len(attention.figure().axes) == 3 + 1, "a panel a head, and the colour bar"
    assert "A dog runs." in attention.page()
    assert translate.attention("A dog", "Zwei").column_tokens["encoder"][-1] == "</s>"
    for model, kind in ((classify, "encoder"), (write, "decoder")):
        (layer,) = model.attention("a dog").scores[kind]
        assert layer.shape == (3, 5, 5), "three heads, five letters"
        assert model.attention("a dog").figure() and "a dog" in model.attention("a dog").page()


def test_probabilities_belong_to_the_labels(classify):
    probabilities = classify.probabilities(["a dog", "cab", ""])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    best = [classify.labels[column] for column in probabilities.argmax(axis=1)]
    assert classify(["a dog", "cab", ""]) == best


def test_bert_classifies_with_its_special_tokens():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s"]
    tokenizer = kt.tokenizers.WordPieceTokenizer(pieces)
    backbone = kt.bert(len(pieces), size="tiny", max_sequence_length=6, **SMALL)
    model = kt.bert_classifier(backbone, num_labels=2)
    classify = Classifier(model, tokenizer, ["bad", "good"], max_length=6)
    inputs = {"token_ids": np.array([[2, 5, 6, 7, 3]]), "segment_ids": np.zeros((1, 5), "int32")}
    expected = keras.ops.softmax(model(inputs))
    np.testing.assert_allclose(classify.probabilities(["a dogs"]), expected, rtol=1e-5)
    assert classify.attention("a dogs").row_tokens["encoder"] == [
        "[CLS]", "a", "dog", "##s", "[SEP]",
    ]  # fmt: skip
    with pytest.warns(UserWarning, match=r"1 of 2 texts are longer than 4 tokens .* texts 1\."):
        classify(["a", "a a a dogs"])
    with pytest.raises(ValueError, match=r"at least 3 tokens .* Received: max_length=2"):
        Classifier(model, tokenizer, ["bad", "good"], max_length=2)


@pytest.mark.slow
def test_streamed_pieces_join_to_the_continuation(write):
    (at_once,) = write(["dög"], temperature=1.0, seed=3)
    pieces = list(write.stream("dög", 5, temperature=1.0, seed=3))
    assert "".join(pieces) == at_once
    assert len("".join(write.stream("", 30, top_k=3))) > 11, "longer than the context"
    two = write(["dog", "dog"], temperature=5.0, seed=3)
    assert two[0] != two[1], "every prompt has a seed of its own"
    assert two == [write(["dog"], temperature=5.0, seed=seed)[0] for seed in (3, 4)]


@pytest.mark.slow
def test_a_stream_keeps_the_spaces_between_words():
    tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ten dogs"], 280)
    size, (ids,) = tokenizer.vocabulary_size, tokenizer.tokenize(["a dog runs"]).to_list()
    assert len(set(ids)) == len(ids)
    following = np.zeros(size, "int32")
    following[ids[:-1]] = ids[1:]
    functions = types.SimpleNamespace(
        weights=[],
        start_cache=lambda batch_size, num_beams: (),
        step=lambda token_ids, parents, position, cache: (
            99.0 * tf.one_hot(tf.gather(following, token_ids), size),
            cache,
        ),
        logits=lambda token_ids: tf.one_hot(token_ids, size),
    )
    settings = kt.serving.SamplingSettings(context=17, max_tokens=5, empty_prompt="a")
    write = Generator(functions, tokenizer, settings)
    prompt = tokenizer.detokenize([ids[:1]]).numpy()[0].decode()
    (text,) = write([prompt], max_tokens=len(ids) - 1)
    assert "".join(write.stream(prompt, len(ids) - 1)) == text and prompt + text == "a dog runs"


def test_a_stream_keeps_every_space():
    tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ten dogs"], 280)
    model = kt.language_model(tokenizer.vocabulary_size, **SMALL)
    write = Generator(model, tokenizer, SamplingSettings(17, 5, empty_prompt="a"))
    names = tokenizer.pieces(range(tokenizer.vocabulary_size))
    some = [names.index(name) for name in ("\u2581", "\u2581a", "a", "o", "</s>", "<0x0A>")]
    draw = np.random.default_rng(3)
    for length in (2, 4, 4, 7, 7, 11, 11, 16, 16):
        ids = draw.choice(some, length, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1]).tolist()
        whole = tokenizer.detokenize([ids]).numpy()[0].decode()
        for prompt in range(length):
            before = tokenizer.detokenize([ids[:prompt]]).numpy()[0].decode()
            pieces = write._pieces(ids[:prompt], ids[prompt:])
            assert before + "".join(pieces) == whole, [names[i] for i in ids]


def test_an_empty_prompt_is_replaced_where_the_tokenizer_leaves_nothing_of_it():
    tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ten dogs"], 280)
    model = kt.language_model(tokenizer.vocabulary_size, **SMALL)
    settings = kt.serving.SamplingSettings(context=40, max_tokens=15, empty_prompt="ten dogs")
    write = Generator(model, tokenizer, settings)
    both = write(["", "a", "  "], temperature=0.01)
    assert [both[0], both[2]] == write(["ten dogs"] * 2, temperature=0.01)
    assert write(["  "], seed=3) == write(["ten dogs"], seed=3)
    with pytest.raises(ValueError, match=r"empty_prompt must have .*Received: empty_prompt='\\n'"):
        Generator(model, tokenizer)


def test_limits_of_a_model_with_learned_positions_are_checked():
    tokenizer = kt.tokenizers.SymbolTokenizer("abc")
    writer = kt.language_model(tokenizer.vocabulary_size, max_sequence_length=16, **SMALL)
    with pytest.raises(ValueError, match=r"at most the 16 positions .*Received: context=256"):
        Generator(writer, tokenizer)
    settings = kt.serving.SamplingSettings(context=16, max_tokens=8)
    assert len(Generator(writer, tokenizer, settings)(["a"], max_tokens=15)[0]) == 15
    pieces = kt.tokenizers.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    backbone = kt.bert(6, size="tiny", max_sequence_length=6, **SMALL)
    with pytest.raises(ValueError, match=r"at most its 6 positions. Received: max_length=512"):
        Classifier(kt.bert_classifier(backbone, 2), pieces, ["bad", "good"])


def test_texts_may_be_any_iterable_of_strings(translate, classify):
    texts = np.array(SENTENCES)
    assert translate(texts) == translate(SENTENCES) == translate(text for text in SENTENCES)
    assert classify(("a", "dog")) == classify(["a", "dog"])


def test_scores_of_texts_are_those_of_the_model(write):
    ids = write.tokenizer.tokenize(["dog"]).to_list()[0]
    log_probs = keras.ops.log_softmax(write.model(np.array([ids]))[0], axis=-1)
    expected = float(log_probs[0, ids[1]] + log_probs[1, ids[2]])
    np.testing.assert_allclose(write.score(["dog", "d"]), [expected, 0.0], rtol=1e-5)
    with pytest.raises(ValueError, match=r"context of 11 tokens. Received: text 1 is longer"):
        write.score(["dog", "twelve letters"])


def test_a_model_trained_on_custom_ids_translates():
    """Letters spelled backwards, cut by a table of the user's own and learned with `fit`."""
    keras.utils.set_random_seed(1)
    tokenizer = kt.tokenizers.train_sentencepiece(["abcd " * 3, "dcba " * 3], 272)
    draw = np.random.default_rng(5)
    texts = ["".join(draw.choice(list("abcd"), draw.integers(1, 4))) for _ in range(400)]
    source = tokenizer.tokenize(texts).to_tensor(0).numpy()
    target = tokenizer.tokenize([text[::-1] for text in texts])
    ends = np.full((len(texts), 1), kt.tokenizers.END_ID)
    labels = keras.ops.concatenate([target.to_tensor(0).numpy(), ends * 0], axis=1)
    labels = np.array(labels)
    labels[np.arange(len(texts)), target.row_lengths().numpy()] = kt.tokenizers.END_ID
    inputs = np.concatenate([ends * 0 + kt.tokenizers.START_ID, labels[:, :-1]], axis=1)
    source = np.concatenate([source, ends * 0], axis=1)
    source[np.arange(len(texts)), (source > 0).sum(1)] = kt.tokenizers.END_ID
    model = kt.translation(272, size="tiny", num_layers=1, dropout=0.0, hidden_dim=32, num_heads=2)
    model.compile(kt.Adam(0.01), kt.TokenCrossentropy())
    inputs = np.where(inputs == kt.tokenizers.END_ID, 0, inputs)
    translate = Translator(model, tokenizer)
    before = translate.score(["ab"], ["ba"])
    model.fit({"source_ids": source, "target_ids": inputs}, labels, epochs=3, verbose=0)
    assert translate.score(["ab"], ["ba"]) > before + 1, "the weights are shared, not copied"


MISTAKES = {
    "a single text": (lambda t, c, w: t("A dog."), r"list of strings.* Received: texts='A dog.'"),
    "bytes": (lambda t, c, w: c([b"a"]), r"list of strings"),
    "a number": (lambda t, c, w: w([1]), r"list of strings"),
    "unequal sides": (lambda t, c, w: t.score(["a"], []), r"Received: 1 sources, 0 targets"),
    "missing prefixes": (lambda t, c, w: t.n_best(["a"], []), r"0 prefixes for 1 texts"),
    "no temperature": (lambda t, c, w: w(["a"], temperature=0.0), r"temperature"),
    "too many tokens": (lambda t, c, w: w(["a"], max_tokens=11), r"max_tokens=11"),
    "no top token": (lambda t, c, w: w.stream("a", 5, top_k=0), r"top_k"),
    "a share above 1": (lambda t, c, w: w(["a"], top_p=1.5), r"top_p"),
    "another model": (
        lambda t, c, w: Translator(c.model, c.tokenizer),
        r"come from translation\(\).*Received: a model of the kind classifier",
    ),
    "a translation": (
        lambda t, c, w: Generator(t.model, t.tokenizer),
        r"come from language_model\(\).*of the kind translation",
    ),
    "a language model": (
        lambda t, c, w: Classifier(w.model, w.tokenizer, ["a", "b"]),
        r"come from classifier\(\) or bert_classifier\(\).*of the kind language_model",
    ),
    "a path": (
        lambda t, c, w: Generator("runs/mine", w.tokenizer),
        r"'runs/mine' without start_cache",
    ),
    "a bare backbone": (
        lambda t, c, w: Classifier(kt.bert(7, size="tiny", **SMALL), c.tokenizer, ["a"]),
        r"bert_classifier\(\).*of the kind bert\.",
    ),
    "None among texts": (lambda t, c, w: t(["a", None]), r"Received: texts\[1\]=None"),
    "NaN among texts": (lambda t, c, w: t.n_best(["a", math.nan]), r"Received: texts\[1\]=nan"),
    "a number among prefixes": (lambda t, c, w: t.n_best(["a"], [3]), r"Received: prefixes\[0\]=3"),
    "bytes among targets": (
        lambda t, c, w: t.score(["a", "b"], ["a", b"\xff"]),
        r"Received: targets\[1\]=b'\\xff'",
    ),
    "None among prompts": (lambda t, c, w: w(["a", None]), r"Received: prompts\[1\]=None"),
    "None of another input": (
        lambda t, c, w: t.answer(["a"], "translate_nbest", target_prefix=[None], max_length=[0]),
        r"Received: target_prefix\[0\]=None",
    ),
    "a number among examples": (
        lambda t, c, w: t.export("nowhere", "a", ["a", 3]),
        r"Received: examples\[1\]=3",
    ),
    "nothing": (lambda t, c, w: c(None), r"list of strings.* Received: texts=None"),
    "a number for a prompt": (lambda t, c, w: w.stream(5, 3), r"prompt must be a string.*prompt=5"),
    "a list to attend to": (lambda t, c, w: t.attention(["a"]), r"source must be a string"),
    "no token to attend to": (lambda t, c, w: w.attention(""), r"at least one token.*text=''"),
    "a negative limit": (
        lambda t, c, w: t.n_best(["a"], max_length=-1),
        r"max_length .* at least 0",
    ),
    "half a seed": (lambda t, c, w: w(["a"], seed=0.5), r"seed must be an integer.*seed=0.5"),
    "a seed of 64 bits": (lambda t, c, w: w(["a"], seed=2**31), r"seed must be an integer"),
    "half a token": (lambda t, c, w: w(["a"], max_tokens=2.5), r"max_tokens must be an integer"),
    "numbers for labels": (
        lambda t, c, w: Classifier(c.model, c.tokenizer, [0, 1, 2]),
        r"labels must be a list of strings.*\[0, 1, 2\]",
    ),
    "a larger source tokenizer": (
        lambda t, c, w: Translator(t.model, Larger(), t.tokenizer),
        r"embed every id of the tokenizer. Received: a model of 307 ids, a tokenizer of 999",
    ),
    "a larger classifier tokenizer": (
        lambda t, c, w: Classifier(c.model, Larger(), ["a", "b", "c"]),
        r"embed every id of the tokenizer",
    ),
    "a larger generator tokenizer": (
        lambda t, c, w: Generator(w.model, Larger()),
        r"score every id of the tokenizer",
    ),
    "no attention to show": (
        lambda t, c, w: Generator(without_scores(w.model), w.tokenizer).attention("a"),
        r"must have a method attention_scores",
    ),
    "no penalty": (lambda t, c, w: GNMTScoring(length_penalty=-1), r"length_penalty=-1"),
}


def without_scores(model):
    """A language model that has no more than what `Generator` needs."""
    names = ("weights", "start_cache", "step", "logits")
    return types.SimpleNamespace(**{name: getattr(model, name) for name in names})


class Larger:
    vocabulary_size = 999


BAD = ("3", None, True, float("nan"), float("inf"), -float("inf"), -1, 2**40, 16.5)
NUMBERS = {  # name: (what takes it, values that are bad for others and not for this one)
    "num_beams": (lambda t, w, bad: BeamSearch(num_beams=bad), ()),
    "num_best": (lambda t, w, bad: BeamSearch(num_beams=5, num_best=bad), (None,)),
    "length_penalty": (lambda t, w, bad: GNMTScoring(length_penalty=bad), (2**40, 16.5)),
    "max_source_length": (lambda t, w, bad: SearchSettings(max_source_length=bad), ()),
    "max_target_length": (lambda t, w, bad: SearchSettings(max_target_length=bad), ()),
    "context": (lambda t, w, bad: SamplingSettings(context=bad, max_tokens=1), ()),
    "max_tokens": (lambda t, w, bad: SamplingSettings(max_tokens=bad), (None,)),
    "temperature": (lambda t, w, bad: Sampling(temperature=bad), (2**40, 16.5)),
    "top_k": (lambda t, w, bad: Sampling(top_k=bad), (None,)),
    "top_p": (lambda t, w, bad: Sampling(top_p=bad), ()),
    "max_length": (lambda t, w, bad: t.n_best(["a"], max_length=bad), ()),
    "max_tokens of a call": (lambda t, w, bad: w(["a"], max_tokens=bad), (None,)),
    "max_tokens of a stream": (lambda t, w, bad: w.stream("a", bad), ()),
    "temperature of a call": (lambda t, w, bad: w(["a"], temperature=bad), (None, 2**40, 16.5)),
    "top_k of a call": (lambda t, w, bad: w(["a"], top_k=bad), (None,)),
    "top_p of a call": (lambda t, w, bad: w(["a"], top_p=bad), (None,)),
    "seed": (lambda t, w, bad: w(["a"], seed=bad), (-1,)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers_are_refused_wherever_they_are_given(name, translate, write):
    take, allowed = NUMBERS[name]
    for bad in BAD:
        if any(bad is value or (bad == value and bad is not True) for value in allowed):
            continue
        with pytest.raises(ValueError, match=rf"{name.split()[0]} must be .*Received"):
            take(translate, write, bad)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_arguments_are_refused_before_any_work(mistake, translate, classify, write):
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        make(translate, classify, write)


def test_truncation_warns(translate, write):
    with pytest.warns(UserWarning, match=r"1 of 2 texts are longer than 13 tokens .* texts 1\."):
        translate(["A dog", "A dog runs in the park. " * 5])
    with pytest.warns(UserWarning, match="truncated at the beginning"):
        write(["a text of many letters"])


@pytest.mark.slow
def test_packages_are_imported_on_first_use_or_by_loading_a_model(model, tmp_path):
    code = (
        "import sys, keras, keras_transformer as kt\n"
        "assert not [room for room in kt.ROOMS if f'keras_transformer.{room}' in sys.modules]\n"
        "keras.saving.load_model(sys.argv[1])\n"
        "assert set(kt.ROOMS) <= set(dir(kt))\n"
        "for room in kt.ROOMS:\n"
        "    assert getattr(kt, room).__name__ == f'keras_transformer.{room}'\n"
    )
    model.save(tmp_path / "model.keras")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.keras")], check=True)
    with pytest.raises(AttributeError, match="no attribute 'attic'"):
        kt.attic  # noqa: B018


@pytest.mark.slow
def test_keras_alone_says_which_package_a_saved_model_needs(model, tmp_path):
    model.save(tmp_path / "model.keras")
    code = "import sys, keras; keras.saving.load_model(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "model.keras")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode == 1
    # Keras imports no package of others by itself. It asks for the import, and then shows what it
    # looks for: the package is the first word of the module.
    assert last.startswith("TypeError: Could not locate class 'TranslationModel'. Make sure"), last[
        :500
    ]
    asked, _, config = last.partition(" Full object config: ")
    assert "make sure they are all imported" in asked
    module = "keras_transformer.models.encoder_decoder"
    assert config.startswith(f"{{'module': '{module}', 'class_name': 'TranslationModel'")
    assert "'registered_name': 'keras_transformer>TranslationModel'" in config


def own_model(size):
    """A model of the user's own for `size` ids, and the names of its methods that were called."""
    calls = []

    def step(encoded, token_ids, parents, position, cache):
        calls.append("step")
        return tf.zeros([1, token_ids.shape[1], size]), cache

    def language_step(token_ids, parents, position, cache):
        return step(None, token_ids, parents, position, cache)

    def classify(token_ids):
        calls.append("logits")
        return tf.zeros([tf.shape(token_ids)[0], size])

    common = {"weights": [], "start_cache": lambda *_: (), "logits": classify}
    translation = types.SimpleNamespace(encode=lambda ids: ids, step=step, **common)
    return translation, types.SimpleNamespace(step=language_step, **common), calls


def test_no_model_is_called_before_it_is_asked():
    tokenizer = kt.tokenizers.SymbolTokenizer("abc")
    translation, language_model, calls = own_model(tokenizer.vocabulary_size - 1)
    few = [
        (Translator(translation, tokenizer), "score every id of the tokenizer"),
        (Generator(language_model, tokenizer), "score every id of the tokenizer"),
        (Classifier(language_model, tokenizer, ["a", "b"]), "one logit per label"),
    ]
    assert not calls
    for served, message in few:
        with pytest.raises(ValueError, match=message):
            served(["a"])
    assert calls
