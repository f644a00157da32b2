import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import BeamSearch, TokenRules
from keras_transformer.models import translation
from keras_transformer.serving import SearchSettings, Translator
from keras_transformer.serving.settings import scoring_of
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID
from keras_transformer.tokenizers.sentencepiece_format import Model, PieceType

from .conftest import SENTENCES, SETTINGS, SMALL


def ask(translator, signature, **inputs):
    outputs = translator.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {key: value.numpy() for key, value in outputs.items()}


def nbest(translator, texts, prefixes=None, lengths=None):
    count = len(texts)
    return ask(
        translator,
        "translate_nbest",
        text=texts,
        target_prefix=prefixes or [""] * count,
        max_length=lengths or [0] * count,
    )


def log_softmax(scores):
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


@pytest.mark.slow
def test_one_beam_translates_as_greedy_decoding_with_the_keras_model_does(model, tokenizer):
    settings = SearchSettings(BeamSearch(1), max_source_length=13, max_target_length=11)
    translator = Translator(model, tokenizer, settings=settings)
    for text in SENTENCES:
        source = np.array([[*tokenizer.tokenize([text]).numpy()[0][:12], END_ID]])
        target, total = [START_ID], 0.0
        while target[-1] != END_ID:
            ids = {"source_ids": source, "target_ids": np.array([target])}
            scores = log_softmax(np.array(model(ids))[0, -1])
            allowed = scores.copy()
            allowed[[PAD_ID, START_ID]] = -np.inf
            best = END_ID if len(target) == settings.max_target_length else int(allowed.argmax())
            target, total = [*target, best], total + scores[best]
        answer = ask(translator, "serving_default", text=[text])
        length = len(target) - 1
        assert answer["length"][0] == length
        assert answer["translation"][0] == tokenizer.detokenize([target]).numpy()[0]
        np.testing.assert_allclose(answer["score"][0], total / ((5 + length) / 6) ** 0.6, rtol=1e-4)


def test_no_text_is_longer_than_the_learned_positions(tokenizer):
    model = translation(tokenizer.vocabulary_size, size="tiny", max_sequence_length=7, **SMALL)
    for name in ("max_source_length", "max_target_length"):
        lengths = {"max_source_length": 7, "max_target_length": 7, name: 8}
        message = rf"{name} must be at most the 7 positions.*SearchSettings\({name}=7\).*=8\."
        with pytest.raises(ValueError, match=message):
            Translator(model, tokenizer, settings=SearchSettings(BeamSearch(2), **lengths))
        lengths[name] = 7
    translator = Translator(model, tokenizer, settings=SearchSettings(BeamSearch(2), **lengths))
    long = "to be or not to be"
    with pytest.warns(UserWarning, match="1 of 1 texts are longer than 7 tokens"):
        [translation_of_it] = translator([long])
    assert translation_of_it
    most = "Texts must have at most 6 tokens.*Received: "
    for pair, which in (((long, "a"), "source"), (("a", long), "target")):
        with pytest.raises(ValueError, match=rf"{most}\d+ tokens of {which} 1\."):
            translator.score(*(["a", text] for text in pair))
        with pytest.raises(ValueError, match=rf"{most}\d+ tokens of {which} 0\."):
            translator.attention(*pair)


@pytest.mark.slow
def test_a_minimum_of_new_tokens_is_beyond_the_usual_limit(model, tokenizer):
    target = in_language(tokenizer, "xx")
    rules = TokenRules(min_new_tokens=23)
    settings = SearchSettings(BeamSearch(1, token_rules=rules), max_target_length=50)
    translator = Translator(model, tokenizer, target, settings)
    assert ask(translator, "serving_default", text=["a"])["length"] >= 1 + 24
    for prefix in ("", "A dog"):
        given = len(target.tokenize([prefix]).to_list()[0])
        assert nbest(translator, ["a"], [prefix])["length"][0, 0] >= given + 24


def test_a_text_alone_is_translated_as_in_a_batch(translator):
    together = ask(translator, "serving_default", text=SENTENCES)
    for row, text in enumerate(SENTENCES):
        alone = ask(translator, "serving_default", text=[text])
        assert alone["translation"][0] == together["translation"][row]
        np.testing.assert_allclose(alone["score"][0], together["score"][row], rtol=1e-4)


def test_empty_text_gives_empty_text(translator):
    answer = ask(translator, "serving_default", text=["", "  ", SENTENCES[0]])
    assert answer["translation"][:2].tolist() == [b"", b""]
    assert answer["length"][:2].tolist() == [0, 0] and answer["score"][:2].tolist() == [0, 0]
    assert answer["length"][2] > 1


def check_empty_texts(tokenizers, count, seed=1):
    """Rows of empty and other texts, under drawn settings, prefixes and limits."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        source, target = tokenizers[draw.integers(len(tokenizers))]
        beams = int(draw.integers(1, 4))
        rules = TokenRules(min_new_tokens=3, forced_bos_token_id=5)
        search = BeamSearch(
            beams,
            int(draw.integers(1, beams + 1)),
            scoring_of(str(draw.choice(["gnmt", "huggingface", "huggingface_never"])), 0.6),
            rules if draw.random() < 0.3 else TokenRules(),
        )
        settings = SearchSettings(search, max_source_length=13, max_target_length=11)
        model = translation(source.vocabulary_size, size="tiny", **SMALL)
        cache = str(draw.choice(["growing", "static"], p=[0.8, 0.2]))
        translator = Translator(model, source, target, settings, cache)
        for texts in ([""], ["", "A dog", "  ", "\t"], ["a", ""]):
            prefixes = [str(draw.choice(["", "", "Zwei"])) for _ in texts]
            lengths = draw.integers(0, 6, len(texts)).tolist()
            best = ask(translator, "serving_default", text=texts)
            several = nbest(translator, texts, prefixes, lengths)
            hypotheses = translator.n_best(texts, prefixes)
            for row, text in enumerate(texts):
                is_empty = not text.strip()
                assert (best["length"][row] == 0) == is_empty
                assert (several["length"][row][0] == 0) == is_empty
                if is_empty:
                    answer = [best[name][row] for name in ("translation", "score", "length")]
                    assert answer == [b"", 0, 0]
                    assert several["translation"][row].tolist() == [b""] * search.num_best
                    assert several["length"][row].tolist() == [0] * search.num_best
                    assert (
                        several["score"][row][0] == 0 and (several["score"][row][1:] < -1e8).all()
                    )
                    assert hypotheses[row] == [("", 0, 0)]


def in_language(tokenizer, language="xx"):
    pieces = Model.FromString(tokenizer.model)
    pieces.pieces[-1].piece, pieces.pieces[-1].type = language, PieceType.CONTROL
    return SentencePieceTokenizer(pieces.SerializeToString(), language)


def test_the_only_hypothesis_of_an_empty_text_is_empty_and_scores_nothing(tokenizer):
    check_empty_texts([(in_language(tokenizer), in_language(tokenizer))], 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", (40, 41))
def test_many_searches_of_empty_texts(tokenizer, seed):
    prefixed = tokenizer.with_prefix("en: ")
    with_language = in_language(tokenizer)
    tokenizers = [(tokenizer, None), (with_language, with_language), (prefixed, None)]
    check_empty_texts([*tokenizers, (tokenizer, with_language)], 8, seed)


def test_a_long_text_is_truncated_and_flagged(translator):
    room = SETTINGS.max_source_length - 1
    long, short = "x " * 999, "x " * (room // 2)  # two pieces each
    pieces = translator.tokenizer.tokenize([short]).row_lengths().numpy()[0]
    assert pieces == room
    answer = ask(translator, "serving_default", text=[long, short, short + "x"])
    assert answer["truncated"].tolist() == [True, False, True]
    assert answer["translation"][0] == answer["translation"][1]


def test_bytes_that_are_not_utf8_do_not_harm_their_batch(translator):
    answer = ask(translator, "serving_default", text=[b"\xff\xfe\x80", SENTENCES[1].encode()])
    alone = ask(translator, "serving_default", text=[SENTENCES[1]])
    assert answer["translation"][1] == alone["translation"][0]
    answer["translation"][0].decode("utf-8")


@pytest.mark.parametrize("signature", ["serving_default", "tokenize"])
def test_an_empty_batch_gives_an_empty_batch(translator, signature):
    answer = ask(translator, signature, text=np.zeros([0], object))
    assert {len(value) for value in answer.values()} == {0}


def test_the_first_of_n_best_is_the_translation(translator):
    several, one = nbest(translator, SENTENCES), ask(translator, "serving_default", text=SENTENCES)
    assert several["translation"].shape == (3, SETTINGS.search.num_best)
    assert several["translation"][:, 0].tolist() == one["translation"].tolist()
    assert (several["score"][:, 0] >= several["score"][:, 1]).all()
    assert (several["translation"][:, 0] != several["translation"][:, 1]).any()


def test_a_prefix_is_forced_in_its_own_row_only(translator):
    texts, free = SENTENCES[:2], nbest(translator, SENTENCES[:2])
    forced = nbest(translator, texts, ["Zwei Hund", ""])
    assert all(text.startswith(b"Zwei Hund") for text in forced["translation"][0])
    assert forced["translation"][1].tolist() == free["translation"][1].tolist()


def test_an_overlong_prefix_is_truncated_and_flagged(translator):
    forced = nbest(translator, SENTENCES[:2], ["in the park " * 5, "in"])
    assert forced["truncated"].tolist() == [True, False]
    assert forced["length"][0, 0] == SETTINGS.max_target_length


def test_a_row_keeps_its_own_length_limit(translator):
    free = nbest(translator, SENTENCES)
    limited = nbest(translator, SENTENCES, lengths=[4, 0, 99])
    assert limited["length"][0].max() <= 4 < free["length"][0].max()
    assert limited["translation"][1:].tolist() == free["translation"][1:].tolist()


def test_hypotheses_that_do_not_exist_are_empty_with_a_finite_score(translator):
    answer = nbest(translator, SENTENCES[:1], lengths=[1])
    assert answer["translation"].tolist() == [[b"", b""]]
    assert answer["score"][0, 0] > -1e8 > answer["score"][0, 1] > -np.inf


def fill_up(values, columns=2):
    """Wider rows, as TensorFlow Serving fills them when it merges requests: not with zeros."""
    widths = [(0, 0), (0, columns)] + [(0, 0)] * (values.ndim - 2)
    return np.pad(values, widths, constant_values=values.flat[0])


def test_columns_beyond_a_length_are_never_read(translator):
    rows = translator.target_tokenizer.tokenize(SENTENCES)
    ids, lengths = rows.to_tensor().numpy(), rows.row_lengths().numpy().astype(np.int32)
    texts = ask(translator, "detokenize", token_ids=fill_up(ids), length=lengths)["text"]
    assert [text.decode() for text in texts] == SENTENCES


def test_ids_and_lengths_out_of_range_are_no_error(translator):
    ids, lengths = np.int32([[5, -3, 2**30], [9, 307, 3]]), np.int32([-2, 99])
    assert ask(translator, "detokenize", token_ids=ids, length=lengths)["text"][0] == b""


def test_inputs_with_different_numbers_of_rows_are_refused(translator):
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        nbest(translator, SENTENCES, [""], [0])


def test_bfloat16_weights_answer_in_float32(translator, half_translator):
    assert {weight.dtype for weight in half_translator.weights} == {tf.bfloat16}
    assert ask(half_translator, "serving_default", text=SENTENCES)["score"].dtype == np.float32
    targets = ["Zwei Katzen", "A dog", ""]
    exact, rounded = (each.score(SENTENCES, targets) for each in (translator, half_translator))
    assert 0 < np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match=r"num_best must be .* num_best=5, num_beams=3"):
        BeamSearch(num_beams=3, num_best=5)
    with pytest.raises(ValueError, match=r"search must be a BeamSearch\. Received: 4"):
        SearchSettings(4)
    with pytest.raises(ValueError, match=r"at least 2.*Received: max_source_length=1"):
        SearchSettings(max_source_length=1)


def test_a_model_too_small_for_its_tokenizer_is_refused(model, tokenizer):
    class Larger:
        vocabulary_size = 311

    with pytest.raises(ValueError, match="a model of 307 ids, a tokenizer of 311"):
        Translator(model, tokenizer, Larger())
