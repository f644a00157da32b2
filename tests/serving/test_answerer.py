import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving import Answerer, served_model
from keras_transformer.serving import answerer as serving_answerer
from keras_transformer.serving.passages import passage_windows, segments_of
from keras_transformer.serving.publishing import c_api
from keras_transformer.tokenizers import WordPieceTokenizer, train_sentencepiece, train_word_pieces
from tests.reference import array, fill

CONTEXTS = [
    "Élise lives in Köln; Bo lives in Ulm, and nobody lives on the moon!",
    "", "Bo.", "Bo, a cook, went from Köln to Ulm; there he met Élise, who had come by ship, "
    "and nobody knew them - but they knew the way!",
]  # fmt: skip
QUESTIONS = ["Who lives in Ulm?", "Who?", "Who lives where, and who likes the moon?", ""]
SIZES = {"max_length": 18, "stride": 5, "max_question_length": 6, "max_answer_length": 4}


class Table:
    """Logits of each token, by its id and column."""

    def __init__(self, size):
        self.of_ids = tf.Variable(tf.zeros([size, 2]))
        self.of_columns = tf.Variable(tf.zeros([99, 2]))
        self.weights = [self.of_ids, self.of_columns]

    def draw(self, seed):
        draw = np.random.default_rng(seed)
        self.of_ids.assign(draw.normal(size=self.of_ids.shape) * 3)
        self.of_columns.assign(draw.normal(size=self.of_columns.shape))

    def logits(self, token_ids, segment_ids):
        columns = self.of_columns[: tf.shape(token_ids)[1]]
        logits = tf.gather(self.of_ids, token_ids) + columns
        logits -= 1e9 * tf.cast(token_ids == 0, tf.float32)[:, :, None]
        return tf.transpose(logits, [0, 2, 1])


@pytest.fixture(scope="module")
def tokenizer():
    return train_word_pieces([*CONTEXTS, *QUESTIONS], 75)


@pytest.fixture(scope="module")
def of_a_table(tokenizer):
    return Answerer(Table(tokenizer.vocabulary_size), tokenizer, **SIZES)


def test_a_long_passage_is_read_in_parts_that_overlap():
    context, asked = "Élise, 7, lives in  Köln; Bo lives in Ulm.", ["Who lives in Ulm?"]
    words = {"who", "?", "elise", ",", "7", "in", ";", "bo", "ulm", "."}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPieceTokenizer([*special, "live", "##s", "ko", "##ln", *sorted(words)])
    windows = passage_windows(tokenizer, asked, [context], 16, 4, 5)
    [question] = tokenizer.tokenize(asked).to_list()
    [passage] = tokenizer.tokenize([context]).to_list()
    assert len(passage) == 16 and len(question) == 6, "of which 5 are read"
    rows = [[2, *question[:5], 3, *passage[first : first + 8], 3] for first in (0, 4, 8)]
    assert windows.token_ids.to_list() == rows
    assert windows.first_tokens.numpy().tolist() == [0, 4, 8]
    assert windows.first_columns.numpy().tolist() == [7] * 3
    places = zip(windows.starts[0].numpy(), windows.ends[0].numpy(), strict=True)
    assert [context[start:end] for start, end in places] == [
        *("Élise", ",", "7", ",", "lives", "lives", "in", "Köln", "Köln", ";"),
        *("Bo", "lives", "lives", "in", "Ulm", "."),
    ]
    segments = segments_of(windows.token_ids.to_tensor(), tokenizer)
    assert segments.numpy().tolist() == [[0] * 7 + [1] * 9] * 3


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_the_most_probable_span_of_all_parts(of_a_table, tokenizer, seed):
    table = of_a_table.model
    table.draw(seed)
    answers = of_a_table(QUESTIONS, CONTEXTS)
    for question, context, answer in zip(QUESTIONS, CONTEXTS, answers, strict=True):
        windows = passage_windows(tokenizer, [question], [context], 18, 5, 6)
        best, none = (0.0, 0, 0), 1.0
        starts, ends = windows.starts[0].numpy(), windows.ends[0].numpy()
        for row, ids in enumerate(windows.token_ids.to_list()):
            logits = array(table.logits(tf.constant([ids]), None))[0].astype(float)
            shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            column = int(windows.first_columns[row])
            none = min(none, shares[0, 0] * shares[1, 0])
            for first in range(column, len(ids) - 1):
                for last in range(first, min(first + 4, len(ids) - 1)):
                    token = int(windows.first_tokens[row]) - column
                    place = starts[token + first], ends[token + last]
                    best = max(best, (shares[0, first] * shares[1, last], *place))
        assert (answer.start, answer.end) == best[1:]
        assert answer.text == context[answer.start : answer.end]
        np.testing.assert_allclose([answer.score, answer.no_answer], [best[0], none], rtol=1e-4)
    assert answers[1].text == "" and answers[1].score == 0.0, "an empty passage has no answer"
    assert answers[2].text in ("Bo", "Bo.", ".")


def model_of(tokenizer, **options):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
    backbone = kt.bert(tokenizer.vocabulary_size, max_sequence_length=20, **sizes, **options)
    return kt.bert_question_answering(backbone)


@pytest.mark.slow
def test_a_model_learns_where_answers_stand_and_padding_does_not_count(tokenizer, tmp_path):
    keras.utils.set_random_seed(3)
    model = model_of(tokenizer, dropout=0.0, attention_dropout=0.0)
    texts = [f"{name} lives in {town}." for name in ("Bo", "Élise") for town in ("Ulm", "Köln")]
    questions = ["Who lives in Ulm?", "who?"] * 2
    windows = passage_windows(tokenizer, questions, texts, 18, 5, 6)
    token_ids = windows.token_ids.to_tensor()
    inputs = {"token_ids": token_ids, "segment_ids": segments_of(token_ids, tokenizer)}
    # The answer is the name, with which each text begins; other parts point to [CLS].
    names = [len(text.split()[0]) for text in texts]
    last = [int(np.sum(windows.ends[row].numpy() <= names[row])) - 1 for row in range(len(texts))]
    questions_of, columns = windows.questions.numpy(), windows.first_columns.numpy()
    spans = np.stack([columns, columns + np.take(last, questions_of)], axis=1)
    labels = np.where(windows.first_tokens.numpy()[:, None] == 0, spans, 0).astype("float32")
    logits = array(model(inputs)).astype(float)
    positions, rows = labels.astype(int), np.arange(len(labels))
    expected = np.log(np.exp(logits).sum(axis=2))
    expected -= np.stack([logits[rows, side, positions[:, side]] for side in (0, 1)], axis=1)
    model.compile(kt.Adam(0.01), kt.TokenCrossentropy(pad_id=-1))
    found = model.evaluate(inputs, labels, batch_size=len(labels), verbose=0)
    np.testing.assert_allclose(found, expected.mean(), rtol=1e-5)
    short = {name: part[:1, :9] for name, part in inputs.items()}
    wide = {name: tf.pad(part, [[0, 0], [0, 3]]) for name, part in short.items()}
    np.testing.assert_allclose(array(model(wide))[:, :, :9], array(model(short)), atol=1e-5)
    assert array(model(wide))[:, :, 9:].max() < -1e8
    fit = {"batch_size": len(labels), "epochs": 80, "verbose": 0}
    losses = model.fit(inputs, labels, **fit).history["loss"]
    assert losses[-1] < 0.3 * expected.mean()
    answerer = Answerer(model, tokenizer, **SIZES)
    assert [each.text for each in answerer(questions, texts)] == ["Bo", "Bo", "Élise", "Élise"]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    np.testing.assert_array_equal(array(loaded(inputs)), array(model(inputs)))


@pytest.mark.slow
def test_a_model_reads_few_parts_at_a_time_with_the_same_answers(tokenizer, monkeypatch):
    model, sizes = fill(model_of(tokenizer)), []
    logits = model.logits

    def counted(token_ids, segment_ids):
        tf.py_function(lambda ids: sizes.append(len(ids)), [token_ids], [])
        return logits(token_ids, segment_ids)

    model.logits = counted
    monkeypatch.setattr(served_model, "answering_threads", lambda: 1)  # one batch of all passages
    found = {}
    for most in (99, 3):
        sizes.clear()
        monkeypatch.setattr(serving_answerer, "WINDOWS_AT_A_TIME", most)
        found[most] = Answerer(model, tokenizer, **SIZES).answer(QUESTIONS, context=CONTEXTS)
        total = sum(sizes)
        assert total > 9 and sizes == [min(most, total - i) for i in range(0, total, most)]
    for name, one in found[99].items():
        if name in ("score", "no_answer"):  # products of another shape are rounded otherwise
            np.testing.assert_allclose(one, found[3][name], rtol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(one, found[3][name], err_msg=name)


@pytest.mark.slow
def test_an_export_answers_in_a_fresh_process(tokenizer, tmp_path):
    answerer = Answerer(fill(model_of(tokenizer)), tokenizer, **SIZES)
    path = answerer.export(tmp_path, "answers", CONTEXTS)
    [answer] = c_api.ask(path, [{"inputs": {"question": QUESTIONS, "context": CONTEXTS}}])
    expected = answerer(QUESTIONS, CONTEXTS)
    assert answer["outputs"]["answer"] == [each.text for each in expected]
    assert answer["outputs"]["end"] == [each.end for each in expected]
    np.testing.assert_allclose(answer["outputs"]["score"], [a.score for a in expected], rtol=1e-4)


def test_what_does_not_fit_is_refused(tokenizer):
    model = model_of(tokenizer)
    with pytest.raises(ValueError, match=r"at most the 20 positions .* max_length=384"):
        Answerer(model, tokenizer)
    with pytest.raises(
        ValueError, match="Received: stride=10, max_length=18, max_question_length=6"
    ):
        Answerer(model, tokenizer, **{**SIZES, "stride": 10})
    with pytest.raises(ValueError, match=r"need a WordPieceTokenizer\. Received: a Sent"):
        Answerer(model, train_sentencepiece(CONTEXTS, 300), **SIZES)
    with pytest.raises(ValueError, match=r"must come from bert_question_answering\(\)"):
        Answerer(kt.bert_classifier(kt.bert(9, "tiny", num_layers=1), 2), tokenizer)
    with pytest.raises(ValueError, match="Received: 2 questions, 1 contexts"):
        Answerer(model, tokenizer, **SIZES)(["a", "b"], ["c"])
