import json

import numpy as np
import pytest

from keras_transformer.data import answer_batches, checked_questions, read_squad, score_answers
from keras_transformer.data.question_answering import passage_windows, segments_of
from keras_transformer.tokenizers import WordPieceTokenizer, train_sentencepiece
from keras_transformer.tokenizers.word_pieces import split_words, word_spans

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONTEXT = "Élise, 7, lives in  Köln; Bo lives in Ulm."
TEXT = checked_questions(
    ["Who lives in Ulm?", "Where does Élise live?", "Who is king?"],
    [CONTEXT] * 3,
    [(("Bo", 26),), (("Köln", 20), ("in  Köln", 16)), ()],
)


@pytest.fixture(scope="module")
def tokenizer():
    words = {word.decode() for word in split_words([*TEXT.questions, CONTEXT]).flat_values.numpy()}
    words -= {"lives", "koln"}
    return WordPieceTokenizer([*SPECIAL, "live", "##s", "ko", "##ln", *sorted(words - {"live"})])


@pytest.mark.slow
def test_words_stand_where_their_spans_say():
    texts = [
        CONTEXT, "", "  ", "a", "x\u200by cafe\u0301! ", "日本は12,50 €", "don't\tstop", "\u0301 a",
        "ΣΟΦΟΣ ΣΑΣ", "İstanbul", "한국 ½ ß ﬁ", "a\x00b", "\u0301", "-",
    ]  # fmt: skip
    draw = np.random.default_rng(3)
    signs = list("ab é,.!日 \t\n\u0301\u200b\ufffdß한́İΣ")
    texts += ["".join(draw.choice(signs, draw.integers(0, 12))) for _ in range(300)]
    for lowercase in (True, False):
        words = split_words(texts, lowercase)
        starts, ends = word_spans(texts, lowercase)
        assert starts.row_lengths().numpy().tolist() == words.row_lengths().numpy().tolist()
        for text, row, *places in zip(
            texts, words.to_list(), starts.to_list(), ends.to_list(), strict=True
        ):
            for word, start, end in zip(row, *places, strict=True):
                [same] = split_words([text[start:end]], lowercase).to_list()
                # A capital sigma at the end of a word has a small form of its own.
                sigmas = [w.decode().replace("\u03c2", "\u03c3") for w in (word, *same)]
                assert len(same) == 1 and sigmas[0] == sigmas[1], (text, start, end)
                assert end <= len(text) and not text[start].isspace()


def test_a_long_passage_is_read_in_parts_that_overlap(tokenizer):
    windows = passage_windows(tokenizer, TEXT.questions[:1], [CONTEXT], 16, 4, 5)
    [question] = tokenizer.tokenize(TEXT.questions[:1]).to_list()
    [passage] = tokenizer.tokenize([CONTEXT]).to_list()
    assert len(passage) == 16 and len(question) == 6, "of which 5 are read"
    rows = [[2, *question[:5], 3, *passage[first : first + 8], 3] for first in (0, 4, 8)]
    assert windows.token_ids.to_list() == rows
    assert windows.first_tokens.numpy().tolist() == [0, 4, 8]
    assert windows.first_columns.numpy().tolist() == [7] * 3
    places = zip(windows.starts[0].numpy(), windows.ends[0].numpy(), strict=True)
    assert [CONTEXT[start:end] for start, end in places] == [
        *("Élise", ",", "7", ",", "lives", "lives", "in", "Köln", "Köln", ";"),
        *("Bo", "lives", "lives", "in", "Ulm", "."),
    ]
    segments = segments_of(windows.token_ids.to_tensor(), tokenizer)
    assert segments.numpy().tolist() == [[0] * 7 + [1] * 9] * 3


def test_labels_are_the_positions_of_a_whole_answer_or_of_the_first_token(tokenizer):
    batches = answer_batches(tokenizer, TEXT, 64, max_length=16, stride=4, max_question_length=5)
    assert batches.num_texts == 9
    answers = []
    for inputs, labels in batches.epoch():
        assert set(inputs) == {"token_ids", "segment_ids"}
        for ids, (first, last) in zip(inputs["token_ids"].numpy(), labels.numpy(), strict=True):
            answers.append(tokenizer.pieces(ids[int(first) : int(last) + 1]))
    # "Bo" is in two of three parts, all of "Köln" in one; nothing answers the last question.
    assert sorted(answers) == sorted([["bo"]] * 2 + [["ko", "##ln"]] + [["[CLS]"]] * 6)


def test_files_of_squad_are_read(tmp_path):
    def qa(question, *answers):
        answers = [{"text": text, "answer_start": start} for text, start in answers]
        return {
            "id": question,
            "question": question,
            "answers": answers,
            "is_impossible": not answers,
        }

    paragraphs = [
        {
            "context": CONTEXT,
            "qas": [qa(q, *a) for q, a in zip(TEXT.questions, TEXT.answers, strict=True)],
        }
    ]
    content = {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": paragraphs}]}
    (tmp_path / "squad.json").write_text(json.dumps(content))
    assert read_squad(tmp_path / "squad.json") == TEXT
    paragraphs[0]["qas"][0]["answers"][0]["answer_start"] = 25
    (tmp_path / "squad.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"squad.json: Each answer must be the text .*\('Bo', 25\) to 'Who"
    ):
        read_squad(tmp_path / "squad.json")


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"data": 3}', '{"data": [{"paragraphs": [{"qas": []}]}]}', "\xff"]
)
def test_files_of_another_format_are_refused_in_one_line(content, tmp_path):
    (tmp_path / "squad.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"SQuAD. Received: .*squad.json|squad.json: Each question"
    ):
        read_squad(tmp_path / "squad.json")


def test_parts_that_leave_something_out_and_other_tokenizers_are_refused(tokenizer):
    with pytest.raises(
        ValueError, match="Received: stride=9, max_length=16, max_question_length=5"
    ):
        answer_batches(tokenizer, TEXT, max_length=16, stride=9, max_question_length=5)
    with pytest.raises(ValueError, match=r"need a WordPieceTokenizer\. Received: a Sent"):
        answer_batches(train_sentencepiece([CONTEXT], 280), TEXT)


@pytest.mark.parametrize(
    ("answer", "accepted", "exact", "f1"),
    [
        ("The  King!", ["king"], 1, 1),
        ("king of France", ["the king", "king of Spain"], 0, 2 / 3),
        ("a the", ["king"], 0, 0),
        ("", [], 1, 1),
        ("king", [], 0, 0),
        ("", ["king"], 0, 0),
        ("king king", ["king"], 0, 2 / 3),
        ("don't", ["dont"], 1, 1),
    ],
)
def test_scores_are_those_of_squad(answer, accepted, exact, f1):
    context = " ".join(accepted)
    text = checked_questions(["?"], [context], [[(a, context.index(a)) for a in accepted]])
    assert score_answers([answer], text) == pytest.approx({"exact_match": exact, "f1": f1})
