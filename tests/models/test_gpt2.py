"""GPT-2 against KerasHub's and Hugging Face's, from the same random weights."""

import keras
import numpy as np
import pytest

from keras_transformer import convert
from keras_transformer.convert import arrays_of, load_gpt2, read_keras_hub
from keras_transformer.decoding import BeamSearch
from keras_transformer.models.gpt2_model import SIZES, gpt2
from tests.reference import array

TINY = {"num_layers": 3, "hidden_dim": 20, "num_heads": 5}
VOCABULARY_SIZE, LENGTH = 37, 13
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY_SIZE, (2, 11)).astype("int32")


def model_of(**options):
    return gpt2(vocabulary_size=VOCABULARY_SIZE, max_sequence_length=LENGTH, **{**TINY, **options})


@pytest.fixture(scope="module")
def backbone():
    """KerasHub's, with random numbers for every weight."""
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY_SIZE, num_layers=3, num_heads=5, hidden_dim=20,
        intermediate_dim=80, dropout=0.0, max_sequence_length=LENGTH,
    )  # fmt: skip
    generator = np.random.default_rng(5)
    for weight in backbone.weights:
        weight.assign(0.4 * generator.normal(size=weight.shape).astype("float32"))
    return backbone


def arrays_of_keras_hub(backbone):
    """The numbers of a backbone with Hugging Face's names."""
    return arrays_of(convert.gpt2.rows(read_keras_hub(backbone).model))


@pytest.fixture(scope="module")
def model(backbone):
    return load_gpt2(model_of(), arrays_of_keras_hub(backbone))


def test_logits_are_those_of_keras_hub(backbone, model):
    inputs = {"token_ids": TOKENS, "padding_mask": np.ones_like(TOKENS)}
    features = backbone(inputs)
    expected = array(backbone.token_embedding(features, reverse=True))
    np.testing.assert_allclose(array(model(TOKENS)), expected, atol=1e-4)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="searches are TensorFlow's")
def test_greedy_tokens_are_those_of_keras_hub(backbone, model):
    text = TOKENS[:1, :3]
    while text.shape[1] < LENGTH:
        inputs = {"token_ids": text, "padding_mask": np.ones_like(text)}
        scores = array(backbone.token_embedding(backbone(inputs), reverse=True))[0, -1]
        text = np.concatenate([text, [[scores.argmax()]]], axis=1)
    found = BeamSearch(1)(
        lambda token_ids, *rest: model.step(token_ids, *rest),
        model.start_cache(1),
        limits=[LENGTH],
        start_id=int(text[0, 0]),
        end_id=VOCABULARY_SIZE - 1,
        forbidden_ids=(),
        prefix=text[:, 1:3],
    )
    assert found.token_ids.numpy()[0, 0, :-1].tolist() == text[0, 1:].tolist()


@pytest.mark.oracle
def test_logits_and_greedy_tokens_are_those_of_hugging_face(backbone, model):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY_SIZE, n_positions=LENGTH, n_embd=20, n_layer=3, n_head=5,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    arrays = arrays_of_keras_hub(backbone)
    state = {f"transformer.{name}": torch.tensor(values) for name, values in arrays.items()}
    state["lm_head.weight"] = state["transformer.wte.weight"]
    theirs.load_state_dict(state)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
    np.testing.assert_allclose(array(model(TOKENS)), expected, atol=1e-4)
    back = {name: values.numpy() for name, values in theirs.state_dict().items()}
    again = load_gpt2(model_of(), back)
    np.testing.assert_allclose(array(again(TOKENS)), array(model(TOKENS)), atol=1e-6)


def test_cached_steps_equal_one_pass(model):
    advance, cache, logits = model.step, model.start_cache(2), []
    for position in range(TOKENS.shape[1]):
        newest = keras.ops.array(TOKENS[:, position : position + 1])
        scores, cache = advance(newest, keras.ops.zeros_like(newest), position, cache)
        logits.append(array(scores)[:, 0])
    np.testing.assert_allclose(np.stack(logits, axis=1), array(model(TOKENS)), atol=1e-4)


def test_a_saved_model_is_the_same_after_reloading(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(loaded(TOKENS)), array(model(TOKENS)))


def test_the_sizes_have_the_published_numbers_of_parameters():
    """The released checkpoints hold 124, 355, 774 and 1558 million parameters."""
    for size, columns in SIZES.items():
        dim, layers = columns["hidden_dim"], columns["num_layers"]
        parameters = (50257 + 1024) * dim + layers * (12 * dim**2 + 13 * dim) + 2 * dim
        assert f"{round(parameters / 1e6)}M" == size
        assert dim % columns["num_heads"] == 0
    small = gpt2(vocabulary_size=7, max_sequence_length=5, num_layers=1)
    assert small.count_params() == (7 + 5) * 768 + 12 * 768**2 + 13 * 768 + 2 * 768


def test_weights_that_do_not_fit_are_refused(backbone):
    arrays = arrays_of_keras_hub(backbone)
    with pytest.raises(ValueError, match=r"wte.weight must have the shape \(37, 24\).*\(37, 20\)"):
        load_gpt2(model_of(hidden_dim=24, num_heads=3), arrays)
    del arrays["h.1.mlp.c_fc.bias"]
    with pytest.raises(ValueError, match=r"must include h\.1\.mlp\.c_fc\.bias"):
        load_gpt2(model_of(), arrays)
    with pytest.raises(ValueError, match="size must be one of 124M, 355M, 774M, 1558M"):
        gpt2("345M")
