"""Exports that look right to Python and fail in TensorFlow Serving must fail here as well."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.serving.publishing import c_api
from keras_transformer.serving.publishing.checks import (
    check_answers,
    check_graph,
    check_shapes,
    check_size,
)
from keras_transformer.tokenizers import (
    BytePairTokenizer,
    SymbolTokenizer,
    WordPieceTokenizer,
    train_byte_pairs,
)

TEXTS = np.array([b"It is ten past six.", b""], object)


def save(function, spec, path, *parts):
    module = tf.Module()
    module.parts = parts
    module.call = tf.function(function, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(path), {"serving_default": module.call})
    return str(path)


@pytest.fixture(scope="module")
def golden(translator):
    outputs = translator.signatures["serving_default"](tf.constant(TEXTS))
    requests = [("serving_default", {"text": TEXTS})]
    return requests, [{key: value.numpy() for key, value in outputs.items()}]


@pytest.fixture(scope="module")
def naive_export(translator, model, tokenizer, tmp_path_factory):
    """A module that holds the Keras model itself, as the obvious recipe says."""
    naive = tf.Module()
    naive.model, naive.tokenizer = model, tokenizer
    path = str(tmp_path_factory.mktemp("naive"))
    tf.saved_model.save(naive, path, {"serving_default": translator.signatures["serving_default"]})
    return path


@pytest.mark.slow
def test_a_module_that_holds_a_keras_model_works_in_python_only(naive_export, golden):
    requests, expected = golden
    reloaded = tf.saved_model.load(naive_export).signatures["serving_default"]
    answer = reloaded(text=tf.constant(TEXTS))
    assert answer["translation"].numpy().tolist() == expected[0]["translation"].tolist()
    check_graph(naive_export)  # nothing is wrong with the graph
    with pytest.raises(RuntimeError, match="Could not find variable"):
        check_answers(naive_export, requests, expected)


@pytest.mark.slow
def test_weights_stored_twice_are_refused(translator, model, tmp_path):
    twice = tf.Module()
    twice.model, twice.weights = model, translator.weights
    tf.saved_model.save(twice, str(tmp_path))
    stored = 2 * sum(4 * weight.shape.num_elements() for weight in translator.weights)
    with pytest.raises(RuntimeError, match=f"stored once. Received: {stored} bytes"):
        check_size(str(tmp_path), translator.weights)


@pytest.mark.slow
def test_a_sound_export_passes_and_another_answer_is_refused(
    exported_translator, translator, golden, monkeypatch
):
    check_graph(exported_translator)
    check_size(exported_translator, translator.weights)
    requests, (outputs,) = golden
    inputs = {"text": TEXTS.tolist()}
    request = {"signature_name": "serving_default", "inputs": inputs, "shapes": True}
    answers = c_api.ask(exported_translator, [request] * 2)
    asked = []
    monkeypatch.setattr(c_api, "ask", lambda *given: asked.append(given) or answers)
    check_answers(exported_translator, requests * 2, [outputs] * 2)
    assert asked[0][0] == exported_translator and [*asked[0][1]] == [request] * 2
    answers.pop()
    other = {
        "score": outputs["score"] + 0.01,
        "translation": np.array([b"something else", b""], object),
        "length": outputs["length"] + 1,
        "truncated": ~outputs["truncated"],
    }
    for key, value in other.items():
        with pytest.raises(RuntimeError, match=f"batch of 2: {key} differs .* Expected: .* Rec"):
            check_answers(exported_translator, requests, [{**outputs, key: value}])
    answers[0]["shapes"]["length"] = [1, 2]
    with pytest.raises(RuntimeError, match=r"length has .*Expected: \[2\]. Received: \[1, 2\]"):
        check_answers(exported_translator, requests, [outputs])
    answers[0]["shapes"]["length"] = [2]
    with pytest.raises(RuntimeError, match=r"gave .*'truncated'.*, not"):
        check_answers(exported_translator, requests, [{"score": outputs["score"]}])
    answers[0]["outputs"]["score"][0] = float("nan")
    with pytest.raises(RuntimeError, match="score differs"):
        no_number = {**outputs, "score": outputs["score"] * np.nan}
        check_answers(exported_translator, requests, [no_number])


def test_slice_update_needs_xla_and_is_refused(tmp_path):
    def update(values):
        buffer = tf.zeros([tf.shape(values)[0], 5])
        return {"updated": keras.ops.slice_update(buffer, [0, tf.constant(2)], values)}

    path = save(update, tf.TensorSpec([None, 1], tf.float32, "values"), tmp_path)
    with pytest.raises(RuntimeError, match=r"XlaDynamicUpdateSlice .* needs XLA"):
        check_graph(path)
    values = np.float32([[3], [7]])
    updated = np.float32([[0, 0, 3, 0, 0], [0, 0, 7, 0, 0]])
    with pytest.raises(RuntimeError, match="XLA compilation disabled"):
        check_answers(path, [("serving_default", {"values": values})], [{"updated": updated}])


@pytest.mark.slow
def test_the_vocabularies_of_all_tokenizers_may_be_large(tmp_path):
    learned = train_byte_pairs(["a dog runs"], 261)
    many = [f"word{i}" for i in range(20_000)]  # 200 kB, twice as much as a graph may hold
    pieces = [*learned.pieces(range(4, 261)), *many]
    pairs = BytePairTokenizer({piece: i for i, piece in enumerate(pieces)}, learned.merges, 4)
    symbols = SymbolTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 26_000))))

    words = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *many])
    parts = symbols, pairs, words

    def asked(texts):
        rows = [one.tokenize(texts).to_tensor() for one in parts]
        return {**{f"ids{i}": ids for i, ids in enumerate(rows)}, "text": pairs.detokenize(rows[1])}

    path = save(asked, tf.TensorSpec([None], tf.string, "texts"), tmp_path, *parts)
    check_graph(path)
    [answer] = c_api.ask(path, [{"inputs": {"texts": ["word3 word19999", "word7"]}}])
    assert answer["outputs"]["ids2"] == [[8, 20_004], [12, 0]]


def test_every_fault_of_a_graph_is_named(tmp_path):
    table = tf.constant(np.random.default_rng(2).normal(size=(31, 1009)), tf.float32)

    def faulty(values):
        python = tf.py_function(lambda inputs: inputs + 1, [values], tf.float32)
        return {
            "python": python,
            "table": tf.matmul(values, table),
            "scalar": tf.reduce_sum(values),
            "fixed": tf.zeros([7, 2]),
            "half": tf.cast(values, tf.bfloat16),
            "compiled": tf.function(tf.tanh, jit_compile=True)(values),
        }

    path = save(faulty, tf.TensorSpec([None, 31], tf.float32, "values"), tmp_path)
    with pytest.raises(RuntimeError) as error:
        check_graph(path)
    for fault in (
        "EagerPyFunc",
        "calls Python",
        "bytes should be a weight",
        "python needs the batch as first axis",
        "scalar needs the batch as first axis but has shape []",
        "fixed needs the batch as first axis but has shape [7, 2]",
        "half is bfloat16",
        "jit-compiled function needs XLA",
    ):
        assert fault in str(error.value)
    assert "compiled needs" not in str(error.value)


def test_the_shape_of_no_rows_is_not_hidden_by_json(tmp_path):
    """A (1, 2) for no rows would be as empty as a (0, 2), or a (0, 3), once the rows are gone."""
    none = np.zeros([0], np.float32)
    requests = [("serving_default", {"values": none})]
    shapes = {"serving_default": {"several": (2,)}}
    right = [{"several": np.zeros([0, 2], np.float32)}]
    check_shapes(requests, right, shapes)
    for wrong in ([1, 2], [0, 3], [0]):
        with pytest.raises(RuntimeError, match=r"batch of 0: several must have the shape \(0, 2\)"):
            check_shapes(requests, [{"several": np.zeros(wrong, np.float32)}], shapes)
    with pytest.raises(RuntimeError, match=r"gave \[\], not \['several'\]"):
        check_shapes(requests, [{}], shapes)

    def wide(values):
        return {"several": tf.zeros([tf.shape(values)[0], 3])}

    path = save(wide, tf.TensorSpec([None], tf.float32, "values"), tmp_path)
    check_answers(path, requests, [{"several": np.zeros([0, 3], np.float32)}])
    with pytest.raises(RuntimeError, match=r"Expected: \[0, 2\]. Received: \[0, 3\]"):
        check_answers(path, requests, right)
