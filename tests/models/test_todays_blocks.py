"""Blocks of Llama and its relatives: logits of Hugging Face's, step by step as in one pass."""

import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.models.encoder_decoder import SIZES
from keras_transformer.models.text_model import size_named
from tests.reference import array, fill, pair, truth

HIDDEN, HEADS, SHARED, DIM, INSIDE, IDS = 24, 6, 2, 4, 14, 31
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
# Name: class and settings of Hugging Face's model, and the arguments of ours.
FAMILIES = {
    "Llama": ({}, {}),
    "Llama 3": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}},
        {"rotary": {"max_wavelength": 500.0, "scaling": {
            "type": "llama3", "factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0,
            "original_length": 16,
        }}},
    ),
    "Llama, linear": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {"rotary": {"scaling": {"type": "linear", "factor": 4.0}}},
    ),
    "Qwen2": ({}, {"use_bias": True}),
    "Qwen3": ({}, {"query_key_norm": 1e-6}),
    "Mistral": ({"sliding_window": 3}, {}),
}  # fmt: skip


def ours(**arguments):
    pattern = arguments.pop("attention_pattern", None)
    return kt.language_model(
        IDS,
        scale_embedding=False,
        blocks="llama",
        tie_output=False,
        num_layers=2,
        hidden_dim=HIDDEN,
        num_heads=HEADS,
        intermediate_dim=INSIDE,
        norm_epsilon=1e-6,
        attention_pattern=pattern,
        attention_arguments={"rotary": {}, "num_key_value_heads": SHARED, **arguments},
    )


def theirs(name, settings):
    transformers = pytest.importorskip("transformers")
    name = name.partition(" ")[0].removesuffix(",")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=IDS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=SHARED,
        head_dim=DIM, intermediate_size=INSIDE, num_hidden_layers=2, rms_norm_eps=1e-6,
        pad_token_id=None, **settings,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def copy_weights(source, target):
    """From Hugging Face's model to ours."""
    weights = {name: value.detach().numpy() for name, value in source.state_dict().items()}

    def joined(prefix, names, ending="weight"):
        return np.concatenate([weights[f"{prefix}{name}.{ending}"] for name in names])

    target.embedding.set_weights([weights["model.embed_tokens.weight"]])
    target.output_projection.set_weights([weights["lm_head.weight"]])
    target.decoder.norm.set_weights([weights["model.norm.weight"]])
    for index, block in enumerate(target.decoder.blocks):
        layer = f"model.layers.{index}."
        attention, names = block.self_attention, ("q_proj", "k_proj", "v_proj")
        kernel, bias = pair(attention.query_key_value)
        kernel.assign(joined(layer + "self_attn.", names))
        attention.output_projection.kernel.assign(joined(layer + "self_attn.", ["o_proj"]))
        if bias is not None:
            bias.assign(joined(layer + "self_attn.", names, "bias"))
        if attention.query_norm is not None:
            attention.query_norm.set_weights([weights[layer + "self_attn.q_norm.weight"]])
            attention.key_norm.set_weights([weights[layer + "self_attn.k_norm.weight"]])
        block.feed_forward.gate_widen.kernel.assign(
            joined(layer + "mlp.", ["gate_proj", "up_proj"])
        )
        block.feed_forward.narrow.kernel.assign(joined(layer + "mlp.", ["down_proj"]))
        for residual, norm in (
            (block.around_self_attention, "input_layernorm"),
            (block.around_feed_forward, "post_attention_layernorm"),
        ):
            residual.norm.set_weights([weights[f"{layer}{norm}.weight"]])


def token_by_token(model, ids, length=None, beams=1):
    """The logits of each step, of beams that all read the same."""
    cache = model.start_cache(len(ids), beams, length)
    logits = []
    for position in range(ids.shape[1]):
        newest = np.repeat(ids[:, position : position + 1], beams, axis=1)
        parents = np.tile(np.arange(beams)[::-1], (len(ids), 1))
        scores, cache = model.step(newest, parents.astype("int32"), position, cache)
        logits.append(array(scores))
    return np.stack(logits, axis=2), cache


@pytest.mark.oracle
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_hugging_face(name):
    torch = pytest.importorskip("torch")
    settings, arguments = FAMILIES[name]
    arguments = dict(arguments)
    if "sliding_window" in settings:
        arguments["attention_pattern"] = {
            "pattern": "local", "block_size": settings["sliding_window"] - 1,
        }  # fmt: skip
    model, foreign = ours(**arguments), theirs(name, settings)
    with torch.no_grad():
        for parameter in foreign.parameters():
            parameter.normal_(0, 0.4)
    copy_weights(foreign, model)
    ids = np.random.randint(0, IDS, (3, 11))
    with torch.no_grad():
        expected = foreign(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(array(model.logits(ids)), expected, atol=1e-5 * abs(expected).max())
    stepped, _ = token_by_token(model, ids)
    np.testing.assert_allclose(stepped[:, 0], expected, atol=1e-5 * abs(expected).max())


def test_a_block_like_gemmas_is_what_numpy_computes():
    """Shared heads, normalised queries and keys, rotation, soft cap, GeGLU; causal."""
    block = kt.DecoderBlock(
        num_heads=HEADS, intermediate_dim=INSIDE, activation="gelu", gated=True,
        normalization="rms", norm_epsilon=1e-6, use_bias=False, key_dim=DIM,
        attention_arguments={
            "rotary": {"max_wavelength": 100}, "num_key_value_heads": SHARED,
            "query_key_norm": 1e-6, "soft_cap": 2.0,
        },
    )  # fmt: skip
    vectors = np.random.normal(size=(2, 7, HIDDEN)).astype("float32")
    block(vectors)
    fill(block)
    attention, network = block.self_attention, block.feed_forward

    def rms(x, norm):
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
        return x * array(norm.scale)

    def turned(x):  # (position, dim), a pair of columns as one complex number
        pairs = x[:, : DIM // 2] + 1j * x[:, DIM // 2 :]
        angles = np.arange(7)[:, None] * 100.0 ** (-np.arange(0, DIM, 2) / DIM)
        pairs = pairs * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    kernel = array(attention.query_key_value.kernel)
    queries, keys, values = np.split(kernel, [HEADS * DIM, (HEADS + SHARED) * DIM])
    inputs, contexts = rms(vectors, block.around_self_attention.norm), []
    for head in range(HEADS):
        own = slice(head * DIM, (head + 1) * DIM)
        group = head // (HEADS // SHARED)
        shared = slice(group * DIM, (group + 1) * DIM)
        rows = []
        for row in inputs:
            query = turned(rms(row @ queries[own].T, attention.query_norm))
            key = turned(rms(row @ keys[shared].T, attention.key_norm))
            scores = 2 * np.tanh(query @ key.T / np.sqrt(DIM) / 2)
            powers = np.exp(scores) * np.tril(np.ones((7, 7)))
            rows.append(powers / powers.sum(axis=-1, keepdims=True) @ (row @ values[shared].T))
        contexts.append(np.stack(rows))
    attended = np.concatenate(contexts, axis=-1) @ array(attention.output_projection.kernel).T
    middle = vectors + attended
    inside = rms(middle, block.around_feed_forward.norm) @ array(network.gate_widen.kernel).T
    gates, widened = np.split(inside, 2, axis=-1)
    erf = np.vectorize(math.erf)
    activated = gates * (1 + erf(gates / np.sqrt(2))) / 2 * widened
    expected = middle + activated @ array(network.narrow.kernel).T
    np.testing.assert_allclose(array(block(vectors)), expected, atol=2e-5 * abs(expected).max())


VARIANTS = {
    "shared heads": {},
    "one head of keys": {"num_key_value_heads": 1},
    "normalised queries and keys": {"query_key_norm": 1e-6},
    "soft cap": {"soft_cap": 2.0},
    "values of another width": {"value_dim": 3},
    "half rotated": {"rotary": {"rotary_dim": 2}},
    "no rotation": {"rotary": None},
    "window": {"attention_pattern": {"pattern": "local", "block_size": 2}},
}


@pytest.mark.parametrize("length", [None, 7], ids=["growing", "static"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_one_pass(variant, length):
    model = fill(ours(**VARIANTS[variant]))
    ids = np.random.randint(0, IDS, (2, 7))
    expected = array(model.logits(ids))
    stepped, cache = token_by_token(model, ids, length, beams=3)
    for beam in range(3):
        np.testing.assert_allclose(stepped[:, beam], expected, atol=1e-4)
    shared = VARIANTS[variant].get("num_key_value_heads", SHARED)
    keys, values = cache["keys_values"][0]
    assert keys.shape == (2, shared, 21, DIM), "the cache is smaller by the heads that are shared"
    assert values.shape == (2, shared, 21, VARIANTS[variant].get("value_dim", DIM))
    if length is None:
        _, prefilled = model.prefill(ids[:, :4], None, 4, model.start_cache(2, 1))
        scores, _ = model.step(ids[:, 4:5], np.zeros((2, 1), "int32"), 4, prefilled)
        np.testing.assert_allclose(array(scores)[:, 0], expected[:, 4], atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_and_scores_survive_a_file(variant, tmp_path):
    model = fill(ours(**VARIANTS[variant]))
    ids = np.random.randint(0, IDS, (2, 7))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again.logits(ids)), array(model.logits(ids)))
    scores = array(again.attention_scores(ids)["decoder"][0])
    assert scores.shape == (2, HEADS, 7, 7)
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-5)
    assert (scores[:, :, ~np.tril(np.ones((7, 7), bool))] == 0).all(), "causal"


def test_no_arguments_of_attention_are_those_of_the_blocks():
    model = kt.language_model(IDS, num_layers=1, blocks="llama", attention_arguments=None)
    assert model.positions is None
    assert model.decoder.blocks[0].self_attention.rotary is not None


def test_a_translation_with_llamas_blocks_decodes_as_in_one_pass():
    attention = {"rotary": {}, "num_key_value_heads": 2}
    model = kt.translation(
        IDS, size="tiny", blocks="llama", num_layers=2, attention_arguments=attention
    )
    fill(model)
    source, target = np.random.randint(4, IDS, (2, 5)), np.random.randint(4, IDS, (2, 7))
    expected = array(model.logits(source, target))
    encoded = model.encode(source)
    cache = model.start_cache(encoded, 1)
    for position in range(7):
        ids = target[:, position : position + 1]
        scores, cache = model.step(encoded, ids, np.zeros((2, 1), "int32"), position, cache)
        np.testing.assert_allclose(array(scores)[:, 0], expected[:, position], atol=2e-4)
    assert model.positions is None
    assert model.encoder.blocks[0].self_attention.rotary is not None
    assert model.decoder.blocks[0].cross_attention.rotary is None
    assert not any(weight.path.endswith(("bias", "beta")) for weight in model.weights)


def test_documents_of_a_packed_row_do_not_see_each_other():
    model = fill(ours())
    first, second = np.random.randint(4, IDS, (1, 5)), np.random.randint(4, IDS, (1, 7))
    row = {
        "token_ids": np.concatenate([first, second], axis=1),
        "segment_ids": np.repeat([[0, 1]], [5, 7], axis=1),
    }
    together = array(model(row))
    np.testing.assert_allclose(together[:, :5], array(model.logits(first)), atol=1e-4)
    np.testing.assert_allclose(together[:, 5:], array(model.logits(second)), atol=1e-4)


def test_a_soft_cap_limits_the_logits():
    arguments = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2}
    plain = fill(kt.language_model(IDS, **arguments))
    capped = kt.language_model(IDS, logit_soft_cap=1.5, **arguments)
    capped.set_weights(plain.get_weights())
    ids = np.random.randint(0, IDS, (2, 5))
    expected = 1.5 * np.tanh(array(plain.logits(ids)) / 1.5)
    np.testing.assert_allclose(array(capped.logits(ids)), expected, atol=1e-5)


def test_gated_blocks_have_as_many_weights_as_those_of_the_paper():
    ours, papers = (
        kt.translation(101, size="tiny", blocks=blocks).count_params()
        for blocks in ("llama", "transformer")
    )
    assert abs(ours / papers - 1) < 0.01


@pytest.mark.parametrize(
    ("blocks", "settings", "expected"),
    [
        ("llama", {}, 1368),
        ("llama", {"gated": False}, 2048),
        ("transformer", {"gated": True}, 1368),
        ("transformer", {}, 2048),
        ("llama", {"intermediate_dim": 1000}, 1000),
        ("transformer", {"gated": True, "intermediate_dim": 1000}, 1000),
    ],
)
def test_only_networks_that_are_gated_in_the_end_are_narrower(blocks, settings, expected):
    chosen = size_named(SIZES, "base", settings, blocks)
    assert chosen["intermediate_dim"] == expected


def test_a_position_bias_replaces_rotary_positions_or_says_that_it_does_not():
    bias, small = {"position_bias": {"type": "alibi"}}, {"blocks": "llama", "num_layers": 1}
    builders = (
        lambda **given: kt.language_model(IDS, **bias, **small, **given),
        lambda **given: kt.translation(IDS, size="tiny", **bias, **small, **given),
        lambda **given: kt.classifier(IDS, 2, **bias, **small, **given),
    )
    for build in builders:
        with pytest.raises(ValueError, match=r'attention_arguments=\{"rotary": None\}.*alibi'):
            build()
        for rotary in (None, {}):
            model = build(attention_arguments={"rotary": rotary})
            stack = getattr(model, "decoder", None) or model.encoder
            assert stack.blocks[0].self_attention.rotary == rotary
            assert getattr(model, "positions", None) is None


def test_further_arguments_of_the_attention_are_added_to_those_of_llama():
    model = kt.language_model(IDS, blocks="llama", attention_arguments={"num_key_value_heads": 2})
    attention = model.decoder.blocks[0].self_attention
    assert (attention.rotary, attention.num_key_value_heads) == ({}, 2)
    assert model.positions is None


def test_own_layers_need_not_know_the_new_arguments_of_a_call():
    class OwnAttention(kt.MultiHeadAttention):
        stepwise_methods = ()

        def call(self, query, value=None, key=None, *, padding_mask=None, attention_mask=None,
                 training=None):  # fmt: skip
            return super().call(query, value, key, padding_mask=padding_mask, training=training)

    class OwnBlock(kt.EncoderBlock):
        def call(self, inputs, padding_mask=None, attention_mask=None, training=None):
            return super().call(inputs, padding_mask, attention_mask, training=training)

    vectors = np.random.normal(size=(2, 5, 4)).astype("float32")
    for layer in (OwnAttention(2), OwnBlock(num_heads=2, intermediate_dim=3)):
        layer(vectors)
        assert tuple(layer.attention_scores(vectors).shape) == (2, 2, 5, 5)
    symbols = keras.Input((5, 8)), keras.Input((3, 8))
    assert kt.RelativeAttention(2)(symbols[0], memory=symbols[1]).shape == (None, 5, 8)


def test_the_scale_of_rms_normalisation_is_not_rounded(monkeypatch):
    norm = kt.layers.normalization.RMSNormalization(dtype="mixed_bfloat16")
    seen, call = [], norm.call

    def watched(inputs):
        seen.append(keras.backend.standardize_dtype(norm.scale.dtype))
        return call(inputs)

    monkeypatch.setattr(norm, "call", watched)
    norm(np.ones((2, 5, 4), "float32"))
    assert seen == ["float32"]


def test_what_does_not_fit_is_refused():
    for make, message in (
        (lambda: ours(num_key_value_heads=4), "num_key_value_heads must divide num_heads"),
        (lambda: ours(num_heads=2), "Give it num_heads as its own"),
        (
            lambda: ours(heads=2),
            "Unrecognized keyword arguments passed to MultiHeadAttention: {'heads': 2}",
        ),
        (lambda: ours(soft_cap=0.0), "soft_cap must be a finite number above 0"),
        (
            lambda: ours(soft_cap=1.0, attention_pattern=VARIANTS["window"]["attention_pattern"]),
            "A sparse pattern has no soft_cap",
        ),
        (
            lambda: kt.language_model(IDS, blocks="gemma"),
            "blocks must be one of transformer, llama",
        ),
        (lambda: kt.language_model(IDS, 5, blocks="llama"), "leave out max_sequence_length"),
        (lambda: kt.translation(IDS, blocks="llama", positions={}), "leave out positions"),
        (lambda: kt.translation(IDS, max_sequence_length=3, positions={}), "leave out positions"),
        (lambda: kt.translation(IDS, max_sequence_length=3, blocks="llama"), "leave out max_seq"),
        (lambda: kt.language_model(IDS, normalization="batch"), "must be 'layer' or 'rms'"),
        (lambda: kt.transformer_xl(IDS, 2, attention_arguments={"rotary": {}}), "has no value_dim"),
        (lambda: ours(rotary=True), "rotary must be a dictionary of arguments by name, or None"),
        (lambda: kt.language_model(IDS, attention_arguments=["rotary"]), "must be a dictionary"),
        (lambda: kt.language_model(IDS, normalization=["rms"]), "must be 'layer' or 'rms'"),
        (lambda: kt.bert(IDS, "tiny", attention_arguments={"rotary": {}}), "BERT adds learned"),
        (
            lambda: kt.language_model(
                IDS, attention="AdditiveAttention", attention_arguments={"soft_cap": 2.0}
            ),
            "a weights_of of its own",
        ),
    ):
        with pytest.raises(ValueError, match=rf"(?s){message}"):
            make()


def test_own_attentions_may_share_heads():
    vectors = np.random.normal(size=(2, 5, 12)).astype("float32")
    layer = kt.AdditiveAttention(6, num_key_value_heads=2)
    layer(vectors)
    scores = layer.attention_scores(vectors)
    assert tuple(scores.shape) == (2, 6, 5, 5)
    assert (truth(scores) > 0).all()


T5_FORMS = {"relu": ("relu", False), "gated-gelu": (kt.layers.feed_forward.gelu_tanh, True)}


@pytest.mark.oracle
@pytest.mark.parametrize("form", T5_FORMS)
def test_logits_equal_t5(form):
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    activation, gated = T5_FORMS[form]
    config = transformers.T5Config(
        vocab_size=IDS, d_model=HIDDEN, d_kv=DIM, d_ff=INSIDE, num_layers=2, num_heads=HEADS,
        relative_attention_num_buckets=8, relative_attention_max_distance=9,
        feed_forward_proj=form, tie_word_embeddings=True,
    )  # fmt: skip
    foreign = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in foreign.parameters():
            parameter.normal_(0, 0.4)
    model = kt.translation(
        IDS, num_layers=2, hidden_dim=HIDDEN, intermediate_dim=INSIDE, num_heads=HEADS,
        key_dim=DIM, dropout=0.0, scale_embedding=False, activation=activation, gated=gated,
        normalization="rms", norm_epsilon=1e-6, use_bias=False,
        position_bias={"type": "t5", "num_buckets": 8, "max_distance": 9},
    )  # fmt: skip
    copy_t5(foreign, model)
    source, target = np.random.randint(1, IDS, (2, 23)), np.random.randint(1, IDS, (2, 19))
    source[1, 17:] = 0
    with torch.no_grad():
        expected = foreign(
            input_ids=torch.tensor(source), attention_mask=torch.tensor(source != 0),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()  # fmt: skip
    computed = array(model.logits(source, target))
    np.testing.assert_allclose(computed, expected, atol=1e-5 * abs(expected).max())


def copy_t5(source, target):
    """From Hugging Face's model to ours.

    T5 does not divide products of queries and keys by the root of their width, and divides the
    vectors that it projects to logits by that of theirs.
    """
    weights = {name: value.detach().numpy() for name, value in source.state_dict().items()}
    target.target_embedding.set_weights([weights["shared.weight"]])
    for side, stack in (("encoder", target.encoder), ("decoder", target.decoder)):
        prefix = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        stack.shared_bias.set_weights([weights[f"{prefix}.weight"]])
        scale = weights[f"{side}.final_layer_norm.weight"]
        stack.norm.set_weights([scale * (HIDDEN**-0.5 if side == "decoder" else 1)])
        for index, block in enumerate(stack.blocks):
            layer = f"{side}.block.{index}.layer"
            attention = [weights[f"{layer}.0.SelfAttention.{name}.weight"] for name in "qkvo"]
            attention[0] = attention[0] * DIM**0.5
            block.self_attention.query_key_value.kernel.assign(np.concatenate(attention[:3]))
            block.self_attention.output_projection.kernel.assign(attention[3])
            norms = [block.around_self_attention]
            if side == "decoder":
                attention = [weights[f"{layer}.1.EncDecAttention.{name}.weight"] for name in "qkvo"]
                cross = block.cross_attention
                cross.query.kernel.assign(attention[0] * DIM**0.5)
                cross.key_value.kernel.assign(np.concatenate(attention[1:3]))
                cross.output_projection.kernel.assign(attention[3])
                norms.append(block.around_cross_attention)
            norms.append(block.around_feed_forward)
            for number, residual in enumerate(norms):
                residual.norm.set_weights([weights[f"{layer}.{number}.layer_norm.weight"]])
            last = f"{layer}.{len(norms) - 1}.DenseReluDense"
            names = ["wi_0", "wi_1"] if block.gated else ["wi"]
            widen = block.feed_forward.gate_widen if block.gated else block.feed_forward.widen
            widen.kernel.assign(np.concatenate([weights[f"{last}.{n}.weight"] for n in names]))
            block.feed_forward.narrow.kernel.assign(weights[f"{last}.wo.weight"])
