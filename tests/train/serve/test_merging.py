"""Which requests a served model answers in one batch, without a server."""

import numpy as np
import pytest
import tensorflow as tf

from train.serve.saved_model import SavedModel


class Texts(tf.Module):
    """Counts its calls; refuses the text "bad"."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def twice(self, text):
        tf.debugging.assert_none_equal(text, "bad", message="This text is bad.")
        calls = tf.fill(tf.shape(text), self.calls.assign_add(1))
        return {"twice": text + text, "calls": calls}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def characters(self, text):
        return {"characters": tf.strings.bytes_split(text).to_tensor("")}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "number")])
    def ranks(self, number):
        return {"ranks": tf.argsort(tf.argsort(number))}  # of neighbours, too


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, module = tmp_path_factory.mktemp("texts"), Texts()
    tf.saved_model.save(module, folder, {n: getattr(module, n) for n in NAMES})
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return SavedModel("texts", 1, folder, threads=1)


NAMES = "twice", "characters", "ranks"


def answers(model, signature, requests, key):
    requests = [{key: np.array(values, object)} for values in requests]
    return model.run_merged(signature, requests)


def test_texts_are_answered_in_one_call_and_each_gets_its_rows(model):
    found = answers(model, "twice", [["a", "b"], [], ["c"]], "text")
    assert [a["twice"].tolist() for a in found] == [[b"aa", b"bb"], [], [b"cc"]]
    assert len({call for a in found for call in a["calls"]}) == 1


def test_each_thread_answers_a_part_of_a_batch(folder):
    model = SavedModel("texts", 1, folder, threads=3)
    found = answers(model, "twice", [list("abcde"), [], ["f"]], "text")
    assert [a["twice"].tolist() for a in found] == [
        [b"aa", b"bb", b"cc", b"dd", b"ee"],
        [],
        [b"ff"],
    ]
    assert len({call for a in found for call in a["calls"]}) == 3
    found = answers(model, "twice", [["a"]], "text")
    assert [a["twice"].tolist() for a in found] == [[b"aa"]]


def test_a_part_has_few_rows_whose_scores_are_in_memory_together(folder):
    texts = [str(number) for number in range(150)]
    [found] = answers(SavedModel("texts", 1, folder, threads=2), "twice", [texts], "text")
    assert found["twice"].tolist() == [text.encode() * 2 for text in texts]
    assert len({*found["calls"].tolist()}) == 5  # of 30 rows


def test_a_failed_request_is_not_tried_again(folder, monkeypatch):
    model, sizes = SavedModel("texts", 1, folder, threads=3), []
    run = model.run

    def counted(signature, inputs):
        sizes.append(len(inputs["text"]))
        return run(signature, inputs)

    monkeypatch.setattr(model, "run", counted)
    [bad] = answers(model, "twice", [["a", "b", "bad"]], "text")
    assert isinstance(bad, tf.errors.InvalidArgumentError) and sizes == [1, 1, 1]


def test_a_bad_request_spoils_no_other(model):
    sound, bad, other = answers(model, "twice", [["a"], ["bad"], ["c", "d"]], "text")
    assert sound["twice"].tolist() == [b"aa"] and other["twice"].tolist() == [b"cc", b"dd"]
    assert isinstance(bad, tf.errors.InvalidArgumentError) and "This text is bad" in bad.message


def test_answers_as_wide_as_their_longest_row_are_not_merged(model):
    found = answers(model, "characters", [["a"], ["abc"]], "text")
    assert [a["characters"].shape for a in found] == [(1, 1), (1, 3)]


def test_numbers_are_not_merged_since_an_answer_may_depend_on_its_neighbours(model):
    requests = [{"number": np.array([value], np.float32)} for value in (3.0, 2.0)]
    assert [a["ranks"].tolist() for a in model.run_merged("ranks", requests)] == [[0], [0]]
