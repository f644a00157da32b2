import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models.bert_models import bert, bert_token_labeller
from keras_transformer.models.encoder_only import classifier
from keras_transformer.serving import Classifier
from keras_transformer.serving.publishing import c_api
from keras_transformer.tokenizers import train_sentencepiece, train_word_pieces
from tests.reference import array, fill

TEXTS = ["the cat is good", "a bad dog", "bad bad bad"]
LABELS = ["bad", "good", "schön"]


@pytest.fixture(scope="module", params=["pieces", "words"])
def tokenizer(request):
    return train_sentencepiece(TEXTS, 275 if request.param == "pieces" else 9, request.param)


@pytest.fixture(scope="module")
def model(tokenizer):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
    return fill(classifier(tokenizer.vocabulary_size, 3, **sizes))


def module_of(model, tokenizer, multi_label=False):
    return Classifier(model, tokenizer, LABELS, max_length=7, multi_label=multi_label)


def ask(module, signature="serving_default", **inputs):
    outputs = module.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {key: value.numpy() for key, value in outputs.items()}


def test_labels_and_probabilities_are_those_of_the_model(model, tokenizer):
    module = module_of(model, tokenizer)
    answer = ask(module, text=TEXTS)
    for row, text in enumerate(TEXTS):
        [ids] = tokenizer.tokenize([text]).to_list()
        read = ids if len(ids) <= 7 else ids[:1] + ids[-6:]
        logits = array(model(np.array([read])))[0]
        powers = np.exp(logits - logits.max())
        np.testing.assert_allclose(answer["probabilities"][row], powers / powers.sum(), atol=1e-5)
        assert answer["label"][row].decode() == LABELS[logits.argmax()]
        assert [name.decode() for name in answer["labels"][row]] == LABELS
        assert answer["truncated"][row] == (read != ids)
        whole = ask(module, "logits", token_ids=[ids + [0]], length=[len(ids)])["logits"]
        np.testing.assert_allclose(whole[0], logits, atol=1e-5, err_msg="ids cut like texts")


def test_multi_label_gives_labels_of_at_least_one_half(model, tokenizer):
    answer = ask(module_of(model, tokenizer, multi_label=True), text=[*TEXTS, ""])
    for row in range(4):
        chosen = np.flatnonzero(answer["probabilities"][row] >= 0.5)
        assert answer["label"][row].decode() == ",".join(LABELS[index] for index in chosen)
    assert np.abs(answer["probabilities"].sum(axis=1) - 1).max() > 1e-3


def test_ids_beyond_the_length_or_the_vocabulary_do_no_harm(model, tokenizer):
    module = module_of(model, tokenizer)
    ids = np.array([[4, 5, 99999, -3], [4, 5, 1, 1]], "int32")
    answer = ask(module, "logits", token_ids=ids, length=np.array([2, 2], "int32"))["logits"]
    np.testing.assert_allclose(answer[0], answer[1], atol=1e-6)
    nothing = ask(module, "logits", token_ids=ids, length=np.array([0, -1], "int32"))["logits"]
    np.testing.assert_allclose(nothing, array(model(np.zeros((2, 1)))), atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        ask(module, "logits", token_ids=ids, length=np.array([2], "int32"))


@pytest.mark.slow
def test_an_export_answers_in_a_fresh_process(exported):
    module, path = exported("classifier-words")
    [answer] = c_api.ask(path, [{"inputs": {"text": TEXTS}}])
    expected = ask(module, text=TEXTS)
    assert answer["outputs"]["label"] == [label.decode() for label in expected["label"]]
    np.testing.assert_allclose(
        answer["outputs"]["probabilities"], expected["probabilities"], atol=1e-5
    )


def test_a_model_that_labels_tokens_is_no_classifier_of_texts():
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
    tokenizer = train_word_pieces(TEXTS, 30)
    labeller = bert_token_labeller(bert(tokenizer.vocabulary_size, size="tiny", **sizes), 3)
    with pytest.raises(ValueError, match=r"classifier\(\) or bert_classifier\(\).*Received: "):
        Classifier(labeller, tokenizer, LABELS)


def test_a_label_without_a_logit_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match=r"logits of shape \(None, 3\), 2 labels"):
        Classifier(model, tokenizer, LABELS[:2])
    with pytest.raises(ValueError, match="Received: max_length=0"):
        Classifier(model, tokenizer, LABELS, max_length=0)


@pytest.fixture(scope="module")
def regressor(tokenizer):
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
    model = fill(classifier(tokenizer.vocabulary_size, 1, **sizes))
    return Classifier(model, tokenizer, max_length=7)


def test_a_regressor_gives_the_number_of_the_model(regressor, tokenizer):
    values = regressor(TEXTS[1:])
    assert len(values) == 2 and {*map(type, values)} == {float}
    for value, text in zip(values, TEXTS[1:], strict=True):
        [ids] = tokenizer.tokenize([text]).to_list()
        ids = ids if len(ids) <= 7 else ids[:1] + ids[-6:]
        np.testing.assert_allclose(value, array(regressor.model(np.array([ids])))[0, 0], atol=1e-5)
        answer = ask(regressor, "logits", token_ids=[ids], length=[len(ids)])
        np.testing.assert_allclose(answer["logits"], [[value]], atol=1e-5)
    with pytest.warns(UserWarning, match="read without their middle"):
        assert len(regressor([" ".join(["bad"] * 9)])) == 1


def test_a_regressor_has_one_number_per_text(model, tokenizer, regressor):
    with pytest.raises(ValueError, match=r"one number per text.* shape \(None, 3\), no labels"):
        Classifier(model, tokenizer)
    with pytest.raises(ValueError, match="has no probabilities"):
        regressor.probabilities(TEXTS)
