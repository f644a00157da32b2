import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.models.encoder_decoder import SIZES, translation
from tests import reference
from tests.reference import array, exact, fill

TINY = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SOURCE = np.array([[5, 9, 4, 3, 0, 0, 0], [7, 7, 1, 8, 10, 6, 3]], "int32")
TARGET = np.array([[2, 4, 9, 0, 0], [2, 8, 8, 5, 7]], "int32")
PACKED = {  # both pairs in one row
    "source_ids": np.delete(SOURCE.ravel(), [4, 5, 6])[None],
    "target_ids": TARGET.reshape(1, -1),
    "source_segment_ids": np.repeat([[0, 1]], [4, 7], axis=1),
    "target_segment_ids": np.repeat([[0, 1]], 5, axis=1),
}
OPTIONS = {
    "paper": {"normalize_first": False},
    "pre-norm": {},
    "untied": {"tie_output": False},
    "separate": {"target_vocabulary_size": 13},
    "separate, untied": {
        "target_vocabulary_size": 13,
        "tie_output": False,
        "normalize_first": False,
    },
    "gelu": {"activation": "gelu"},
    "no source end": {"source_end": False},
    "learned": {"max_sequence_length": 7, "embedding_norm": True, "normalize_first": False},
    "shallow decoder": {"num_decoder_layers": 1},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
    "bfloat16": {"dtype": "bfloat16", "normalize_first": False},
}


def model_of(**options):
    return fill(translation(11, **{**TINY, **options}))


def score(model, source=SOURCE, target=TARGET):
    return array(model({"source_ids": source, "target_ids": target}))


def step_through(model, source, targets):
    """Logits (batch, target, beams, vocabulary); targets (batch, target, beams)."""
    memory = model.encode(keras.ops.array(source))
    cache, logits = model.start_cache(memory, targets.shape[2]), []
    own = np.tile(np.arange(targets.shape[2]), (len(targets), 1))
    for position in range(targets.shape[1]):
        newest_ids = keras.ops.array(targets[:, position])
        newest, cache = model.step(memory, newest_ids, own, position, cache)
        assert keras.backend.standardize_dtype(newest.dtype) == "float32", "logits are float32"
        logits.append(array(newest))
    return np.stack(logits, axis=1)


def tolerance(model):
    return 1e-5 if model.get_layer("encoder").compute_dtype == "float32" else 0.5


@pytest.mark.parametrize("options", OPTIONS)
def test_cached_steps_equal_one_pass(options):
    model = model_of(**OPTIONS[options])
    targets = np.where(TARGET == 0, 6, TARGET)  # a search never feeds padding
    expected = score(model, target=targets)
    steps = step_through(model, SOURCE, targets[:, :, None])
    np.testing.assert_allclose(steps[:, :, 0], expected, atol=tolerance(model))


def test_cached_steps_add_the_output_bias_that_one_pass_adds():
    model = model_of(output_bias=True)
    targets = np.where(TARGET == 0, 6, TARGET)
    steps = step_through(model, SOURCE, targets[:, :, None])[:, :, 0]
    np.testing.assert_allclose(steps, score(model, target=targets), atol=1e-5)


def test_cached_steps_of_a_reloaded_model_equal_one_pass(tmp_path):
    model = model_of(target_vocabulary_size=13, tie_output=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(score(loaded), score(model), err_msg="one pass")
    steps = step_through(loaded, SOURCE[1:], TARGET[1:, :, None])
    np.testing.assert_allclose(steps[0, :, 0], score(model)[1], atol=1e-5, err_msg="steps")


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_model_is_the_same_after_reloading(options, tmp_path):
    model = model_of(**OPTIONS[options])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model), "with its own train step"
    np.testing.assert_array_equal(score(loaded), score(model))


def test_learned_positions_are_counted_in_each_pair_of_a_packed_row():
    options = {**OPTIONS["learned"], "max_sequence_length": 11}
    model = model_of(**options)
    expected = score(model, SOURCE[1:], TARGET[1:])
    np.testing.assert_allclose(array(model(PACKED))[:, 5:], expected, atol=1e-5)
    longer = PACKED | {
        name: np.pad(PACKED[name], [[0, 0], [0, 1]])
        for name in ("source_ids", "source_segment_ids")
    }
    # On TensorFlow of the data, on JAX of the layer.
    with pytest.raises(ValueError, match=r"at most 11 tokens.*length 12|max_sequence_length=11"):
        model.predict(longer, verbose=0)


def test_several_beams_equal_repeated_rows():
    model = model_of()
    beams = np.array([[[2, 2, 2], [4, 9, 5], [7, 1, 1]], [[2, 2, 2], [8, 8, 3], [6, 4, 9]]])
    together = step_through(model, SOURCE, beams)
    rows = np.moveaxis(beams, 2, 1).reshape(6, 3)  # (batch * beams, target)
    apart = step_through(model, np.repeat(SOURCE, 3, axis=0), rows[:, :, None])[:, :, 0]
    expected = np.moveaxis(apart.reshape(2, 3, 3, 11), 1, 2)
    np.testing.assert_allclose(together, expected, atol=1e-5)


def test_beams_permuted_are_logits_permuted():
    model = model_of()
    beams = np.array([[[2, 2, 2], [4, 9, 5]], [[2, 2, 2], [8, 8, 3]]])
    order = np.array([[2, 0, 1], [1, 0, 2]])[:, None]
    expected = np.take_along_axis(step_through(model, SOURCE, beams), order[..., None], axis=2)
    permuted = step_through(model, SOURCE, np.take_along_axis(beams, order, axis=2))
    np.testing.assert_allclose(permuted, expected, atol=1e-5)


def test_a_beam_that_goes_on_from_another_sees_the_past_of_that_one():
    model = model_of()
    rng = np.random.default_rng(3)
    memory = model.encode(keras.ops.array(SOURCE))
    cache = model.start_cache(memory, 3)
    history = np.zeros((2, 0, 3), "int32")  # (batch, position, beams), as each beam knows it
    for position in range(5):
        parents, newest = rng.integers(0, 3, (2, 3)), rng.integers(3, 11, (2, 3))
        past = np.take_along_axis(history, parents[:, None], axis=2)
        history = np.concatenate([past, newest[:, None]], axis=1)
        logits, cache = model.step(memory, newest, parents, position, cache)
        expected = step_through(model, SOURCE, history)[:, -1]
        np.testing.assert_allclose(array(logits), expected, atol=1e-5, err_msg=f"{position}")


def test_the_cache_starts_with_no_position_and_grows_by_one():
    model = model_of()
    memory = model.encode(keras.ops.array(SOURCE))
    cache = model.start_cache(memory, 5)
    shapes = {tuple(x.shape) for x in keras.tree.flatten(cache)}
    assert shapes == {(2, 3, 0, 2), (2, 5, 0)}, "(batch, heads, cached, key_dim), and the mask"
    ids, parents = keras.ops.full((2, 5), 2, dtype="int32"), np.tile(np.arange(5), (2, 1))
    _, cache = model.step(memory, ids, parents, 0, cache)
    shapes = {tuple(x.shape) for x in keras.tree.flatten(cache)}
    assert shapes == {(2, 3, 5, 2), (2, 5, 5)}, "one more for each beam"
    assert {x.shape[0] for x in keras.tree.flatten(memory)} == {2}, "nothing is tiled for beams"


def test_future_tokens_do_not_change_past_logits():
    model = model_of()
    changed = np.concatenate([TARGET[1:, :3], [[6, 6]]], axis=1)
    before, after = score(model, SOURCE[1:], TARGET[1:]), score(model, SOURCE[1:], changed)
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, err_msg="the past")
    assert np.abs(after - before)[:, 3:].max() > 1e-3, "the future itself"


@pytest.mark.parametrize("options", ["paper", "pre-norm", "separate, untied"])
def test_padding_does_not_change_real_positions(options):
    model = model_of(**OPTIONS[options])
    in_batch = score(model)
    alone = score(model, SOURCE[:1, :4], TARGET[:1, :3])
    np.testing.assert_allclose(in_batch[0, :3], alone[0], atol=1e-5, err_msg="in a batch")
    padded = score(model, SOURCE[:1], TARGET[:1])
    np.testing.assert_allclose(padded[0, :3], alone[0], atol=1e-5, err_msg="alone")
    steps = step_through(model, SOURCE, TARGET[:, :3, None])
    np.testing.assert_allclose(steps[0, :, 0], alone[0], atol=1e-5, err_msg="in cached steps")
    compiled = model.predict({"source_ids": SOURCE, "target_ids": TARGET}, verbose=0)
    np.testing.assert_allclose(compiled[0, :3], alone[0], atol=1e-5, err_msg="compiled")


def test_a_model_without_source_ends_sees_none_in_packed_rows_either():
    model = model_of(source_end=False)
    logits = score(model)
    np.testing.assert_array_equal(score(model, np.where(SOURCE == 3, 0, SOURCE)), logits)
    scores = model.attention_scores(SOURCE, TARGET)["cross"][0]
    assert not array(scores)[0, :, :, 3].any(), "the end of the first source"
    np.testing.assert_allclose(array(model(PACKED))[:, 5:], logits[1:], atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_of_zero_rows_works(options):
    model = model_of(**OPTIONS[options])
    memory = model.encode(keras.ops.zeros((0, 5), dtype="int32"))
    cache = model.start_cache(memory, 3)
    none = keras.ops.zeros((0, 3), dtype="int32")
    logits, cache = model.step(memory, none, none, 0, cache)
    vocabulary = OPTIONS[options].get("target_vocabulary_size", 11)
    assert tuple(logits.shape) == (0, 3, vocabulary), "logits"
    empty = np.zeros((0, 5), "int32")
    assert score(model, empty, empty).shape == (0, 5, vocabulary), "one pass"


def test_a_source_of_nothing_but_padding_gives_numbers():
    model = model_of()
    source = np.zeros_like(SOURCE)
    assert np.isfinite(score(model, source)).all(), "one pass"
    steps = step_through(model, source, TARGET[1:2].repeat(2, axis=0)[:, :, None])
    expected = score(model, source, TARGET[1:2].repeat(2, axis=0))
    np.testing.assert_allclose(steps[:, :, 0], expected, atol=1e-5, err_msg="steps")


def numpy_translation(model, source_ids, target_ids):
    """Logits and attention weights by the formulas of the paper, in float64."""
    names = {layer.name for layer in model.layers}
    target_table = exact(model.get_layer("target_embedding").embeddings)
    source_table = target_table
    if "source_embedding" in names:
        source_table = exact(model.get_layer("source_embedding").embeddings)
    output_table = target_table
    if "output_projection" in names:
        output_table = exact(model.get_layer("output_projection").embeddings)
    width = target_table.shape[1]

    def embed(table, ids, side):
        vectors = table[ids] * np.sqrt(width)
        if f"{side}_positions" not in names:
            return vectors + reference.positions(ids.shape[1], width)
        vectors += exact(model.get_layer(f"{side}_positions").embeddings)[: ids.shape[1]]
        return reference.layer_norm(model.get_layer(f"{side}_embedding_norm"), vectors)

    source_mask, target_mask = (source_ids != 0)[:, None], (target_ids != 0)[:, None]
    source, encoder_weights = reference.stack(
        model.get_layer("encoder"),
        reference.encoder_block,
        embed(source_table, source_ids, "source"),
        source_mask,
    )
    target, decoder_weights = reference.stack(
        model.get_layer("decoder"),
        reference.decoder_block,
        embed(target_table, target_ids, "target"),
        source,
        target_mask,
        source_mask,
    )
    return target @ output_table.T, encoder_weights, decoder_weights


@pytest.mark.parametrize(
    "options", ["paper", "pre-norm", "untied", "separate, untied", "learned", "shallow decoder"]
)
def test_logits_and_attention_scores_of_every_layer_equal_numpy(options):
    model = model_of(**OPTIONS[options])
    logits, encoder_weights, decoder_weights = numpy_translation(model, SOURCE, TARGET)
    np.testing.assert_allclose(score(model), logits, atol=2e-5, err_msg="logits")
    scores = model.attention_scores(keras.ops.array(SOURCE), keras.ops.array(TARGET))
    expected = {
        "encoder": encoder_weights,
        "decoder": [own for own, _ in decoder_weights],
        "cross": [cross for _, cross in decoder_weights],
    }
    assert set(scores) == set(expected), "three kinds of attention"
    depth = OPTIONS[options].get("num_decoder_layers", TINY["num_layers"])
    depths = {"encoder": TINY["num_layers"], "decoder": depth, "cross": depth}
    for kind, layers in expected.items():
        assert len(scores[kind]) == depths[kind], f"{kind}: one tensor a layer"
        for computed, weights in zip(scores[kind], layers, strict=True):
            np.testing.assert_allclose(array(computed), weights, atol=1e-5, err_msg=kind)
            sums = array(computed).sum(axis=-1)
            np.testing.assert_allclose(sums, 1, rtol=1e-5, err_msg=f"{kind}: sums")


def test_dropout_acts_in_training_only():
    model = model_of(dropout=0.5)
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    np.testing.assert_array_equal(array(model(inputs)), array(model(inputs, training=False)))
    assert np.abs(array(model(inputs, training=True)) - array(model(inputs))).max() > 1e-3


def number_of_weights(
    size,
    source_vocabulary,
    target_vocabulary=0,
    tied=True,
    normalize_first=True,
    num_decoder_layers=None,
):
    """By the paper's formulas, nothing allocated."""
    hidden, intermediate = size["hidden_dim"], size["intermediate_dim"]
    attention, norm = 4 * (hidden * hidden + hidden), 2 * hidden
    feed_forward = 2 * hidden * intermediate + intermediate + hidden
    encoder_block = attention + feed_forward + 2 * norm
    decoder_block = 2 * attention + feed_forward + 3 * norm
    tables = source_vocabulary + target_vocabulary
    tables += 0 if tied else target_vocabulary or source_vocabulary
    ends = 2 * norm if normalize_first else 0
    blocks = size["num_layers"] * encoder_block
    blocks += (num_decoder_layers or size["num_layers"]) * decoder_block
    return blocks + ends + tables * hidden


def test_a_model_has_the_weights_of_the_formula():
    for name, options in OPTIONS.items():
        expected = number_of_weights(
            TINY,
            11,
            options.get("target_vocabulary_size", 0),
            options.get("tie_output", True),
            options.get("normalize_first", True),
            options.get("num_decoder_layers"),
        )
        if "learned" in name:  # of each side: positions, and a norm of a scale and a bias
            expected += 2 * (7 + 2) * TINY["hidden_dim"]
        assert model_of(**options).count_params() == expected, f"{options}"


@pytest.mark.parametrize(
    ("size", "vocabulary", "published"),
    # Vaswani et al. 2017, table 3, with the 37000 tokens of section 5.1; Wu et al. 2021,
    # table 2, with the 9712 tokens of section 4.1.
    [("base", 37000, 65e6), ("big", 37000, 213e6), ("tiny", 9712, 2.6e6)],
)
def test_sizes_have_about_the_published_number_of_weights(size, vocabulary, published):
    counted = number_of_weights(SIZES[size], vocabulary, normalize_first=False)
    np.testing.assert_allclose(counted, published, rtol=0.04, err_msg="published")


@pytest.mark.parametrize(("size", "key_dim"), [("base", 64), ("big", 64), ("tiny", 32)])
def test_heads_have_the_published_width(size, key_dim):
    assert SIZES[size]["hidden_dim"] == key_dim * SIZES[size]["num_heads"], "d_k of table 3"


def test_unknown_sizes_and_dimensions_are_refused():
    with pytest.raises(ValueError, match=r"one of tiny, base, big. Received: size='huge'"):
        translation(11, size="huge")
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        translation(11, **{**TINY, "hidden_dim": 8})
    with pytest.raises(ValueError, match="depth"):
        translation(11, **TINY, depth=3)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"dim must be even.*Received: dim=15"):
        translation(11, **{**TINY, "hidden_dim": 15})


def test_models_are_found_at_the_top_of_their_room():
    assert models.translation is translation


@pytest.mark.slow
def test_one_fit_step_reaches_every_weight():
    model = model_of(target_vocabulary_size=13, tie_output=False)
    before = [exact(weight) for weight in model.trainable_weights]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, jit_compile=False)
    history = model.fit({"source_ids": SOURCE, "target_ids": TARGET}, TARGET, verbose=0)
    assert np.isfinite(history.history["loss"][0]), "the loss is a number"
    for old, weight in zip(before, model.trainable_weights, strict=True):
        assert (exact(weight) != old).any(), f"a gradient reaches {weight.path}"


@pytest.mark.oracle
def test_logits_equal_those_of_torch():
    torch = pytest.importorskip("torch")
    from tests.torch_weights import copy_decoder_block, copy_encoder_block, copy_norm

    model = model_of()
    theirs = torch.nn.Transformer(6, 3, 2, 2, 7, 0.0, batch_first=True, norm_first=True)
    for name, copy in (("encoder", copy_encoder_block), ("decoder", copy_decoder_block)):
        ours, layer = model.get_layer(name), getattr(theirs, name)
        for block, torch_block in zip(ours.blocks, layer.layers, strict=True):
            copy(block, torch_block)
        copy_norm(ours.norm, layer.norm)
    table = exact(model.get_layer("target_embedding").embeddings)

    def embed(ids):
        vectors = table[ids] * np.sqrt(6) + reference.positions(ids.shape[1], 6)
        return torch.tensor(vectors.astype("float32"))

    ignored = torch.tensor(SOURCE == 0)
    target = theirs(
        embed(SOURCE),
        embed(TARGET),
        tgt_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1),
        src_key_padding_mask=ignored,
        tgt_key_padding_mask=torch.tensor(TARGET == 0),
        memory_key_padding_mask=ignored,
    )
    np.testing.assert_allclose(score(model), target.detach().numpy() @ table.T, atol=2e-5)
