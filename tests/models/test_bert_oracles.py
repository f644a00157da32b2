"""BERT beside KerasHub's and Hugging Face's, with the same weights."""

import numpy as np
import pytest

from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.bert_models import bert_pretraining
from tests.layers.test_against_keras_hub import copy_block
from tests.models.test_bert import (
    ALL_INPUTS,
    INPUTS,
    LONGEST,
    POSITIONS,
    REAL,
    SEGMENTS,
    TINY,
    TOKENS,
    VOCABULARY,
    arrays,
    backbone_of,
)
from tests.reference import array, exact, fill, pair


def assert_real_positions_equal(ours, theirs, what):
    np.testing.assert_allclose(ours[REAL], theirs[REAL], rtol=0, atol=1e-5, err_msg=what)


def test_outputs_and_masked_token_logits_equal_those_of_keras_hub():
    hub = pytest.importorskip("keras_hub")
    ours = backbone_of(activation=gelu_tanh)  # as its blocks, but not its head
    model = fill(bert_pretraining(ours))
    theirs = hub.models.BertBackbone(VOCABULARY, **TINY, max_sequence_length=LONGEST)
    head = hub.layers.MaskedLMHead(
        token_embedding=theirs.token_embedding,
        intermediate_activation="gelu",
        layer_norm_epsilon=1e-12,
    )
    head.build((None, None, TINY["hidden_dim"]))
    for own, other in (
        ("token_embedding", theirs.token_embedding),
        ("segment_embedding", theirs.segment_embedding),
        ("positions", theirs.position_embedding),
        ("embedding_norm", theirs.embeddings_layer_norm),
        ("pooler", theirs.pooled_dense),
        ("masked_token_dense", head._intermediate_dense),
        ("masked_token_norm", head._intermediate_layer_norm),
    ):
        other.set_weights(model.get_layer(own).get_weights())
    head._bias.assign(model.get_layer("masked_token_bias").bias)
    for block, other in zip(
        ours.get_layer("encoder").blocks, theirs.transformer_layers, strict=True
    ):
        copy_block(block, other)

    expected = arrays(theirs({**INPUTS, "padding_mask": REAL.astype("int32")}))
    computed = arrays(ours(INPUTS))
    assert_real_positions_equal(computed["vectors"], expected["sequence_output"], "vectors")
    np.testing.assert_allclose(computed["pooled"], expected["pooled_output"], rtol=0, atol=1e-5)
    logits = array(head(expected["sequence_output"], POSITIONS))
    computed = arrays(model(ALL_INPUTS))["masked_tokens"]
    np.testing.assert_allclose(computed, logits, atol=1e-4, err_msg="masked tokens")


def transformers_weights(model):
    """The weights of our pretraining model by the names of Hugging Face's."""

    def of(name):
        return [exact(weight) for weight in model.get_layer(name).weights]

    def norm(name, layer):
        return {f"{name}.weight": exact(layer.gamma), f"{name}.bias": exact(layer.beta)}

    def linear(name, kernel, bias):  # (out, in), as torch has them
        return {f"{name}.weight": exact(kernel), f"{name}.bias": exact(bias)}

    def dense(name, layer):
        kernel, bias = of(layer)
        return linear(name, kernel.T, bias)

    weights = {
        "bert.embeddings.word_embeddings.weight": of("token_embedding")[0],
        "bert.embeddings.position_embeddings.weight": of("positions")[0],
        "bert.embeddings.token_type_embeddings.weight": of("segment_embedding")[0],
        **norm("bert.embeddings.LayerNorm", model.get_layer("embedding_norm")),
        **dense("bert.pooler.dense", "pooler"),
        **dense("cls.predictions.transform.dense", "masked_token_dense"),
        **norm("cls.predictions.transform.LayerNorm", model.get_layer("masked_token_norm")),
        **linear("cls.predictions.decoder", of("token_embedding")[0], of("masked_token_bias")[0]),
        "cls.predictions.bias": of("masked_token_bias")[0],
        **dense("cls.seq_relationship", "next_sentence"),
    }
    for index, block in enumerate(model.get_layer("encoder").blocks):
        name = f"bert.encoder.layer.{index}"
        attention, feed_forward = block.self_attention, block.feed_forward
        kernels, biases = (np.split(exact(weight), 3) for weight in pair(attention.query_key_value))
        for part, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            weights |= linear(f"{name}.attention.self.{part}", kernel, bias)
        weights |= linear(f"{name}.attention.output.dense", *pair(attention.output_projection))
        weights |= norm(f"{name}.attention.output.LayerNorm", block.around_self_attention.norm)
        weights |= linear(f"{name}.intermediate.dense", *pair(feed_forward.widen))
        weights |= linear(f"{name}.output.dense", *pair(feed_forward.narrow))
        weights |= norm(f"{name}.output.LayerNorm", block.around_feed_forward.norm)
    return weights


@pytest.mark.oracle
def test_outputs_and_both_heads_equal_those_of_hugging_face():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    ours = backbone_of()
    model = fill(bert_pretraining(ours))
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=TINY["hidden_dim"],
        num_hidden_layers=TINY["num_layers"],
        num_attention_heads=TINY["num_heads"],
        intermediate_size=TINY["intermediate_dim"],
        max_position_embeddings=LONGEST,
    )
    theirs = transformers.BertForPreTraining(config).eval()
    weights = {
        k: torch.tensor(v, dtype=torch.float32) for k, v in transformers_weights(model).items()
    }
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected and all("position_ids" in key for key in missing), "every weight is set"
    arguments = {
        "input_ids": torch.tensor(TOKENS, dtype=torch.long),
        "token_type_ids": torch.tensor(SEGMENTS, dtype=torch.long),
        "attention_mask": torch.tensor(REAL, dtype=torch.long),
    }
    with torch.no_grad():
        outputs, logits = theirs.bert(**arguments), theirs(**arguments)
    computed = {**arrays(ours(INPUTS)), **arrays(model(ALL_INPUTS))}
    assert_real_positions_equal(computed["vectors"], outputs.last_hidden_state.numpy(), "vectors")
    np.testing.assert_allclose(computed["pooled"], outputs.pooler_output.numpy(), rtol=0, atol=1e-5)
    expected = np.take_along_axis(logits.prediction_logits.numpy(), POSITIONS[..., None], axis=1)
    np.testing.assert_allclose(computed["masked_tokens"], expected, atol=1e-4)
    expected = logits.seq_relationship_logits.numpy()
    np.testing.assert_allclose(computed["next_sentence"], expected, rtol=0, atol=1e-5)
