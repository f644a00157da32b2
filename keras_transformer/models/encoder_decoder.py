"""The encoder-decoder of "Attention Is All You Need", as a functional Keras model."""

import functools

import keras
from keras import ops

from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import (
    IgnoredToken,
    SinusoidalEncoding,
    TokenEmbedding,
    VocabularyBias,
)
from keras_transformer.layers.encoder import Encoder
from keras_transformer.models.functions import (
    TranslatorFunctions,
    check_layers,
    empty_mask,
    layer_names,
    mask_of_step,
)
from keras_transformer.ops.masks import padding_mask
from keras_transformer.ops.segments import segment_mask, segments_after, segments_before
from keras_transformer.training.model import Model

START_ID, END_ID = 2, 3  # of every target, and of every source

# base, big: Vaswani et al. 2017, table 3 (https://arxiv.org/abs/1706.03762).
# tiny: Wu et al. 2021, section 4.1, for Multi30k (https://aclanthology.org/2021.acl-long.480).
SIZES = {
    "tiny": {
        "num_layers": 4,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "dropout": 0.3,
    },
    "base": {
        "num_layers": 6,
        "hidden_dim": 512,
        "intermediate_dim": 2048,
        "num_heads": 8,
        "dropout": 0.1,
    },
    "big": {
        "num_layers": 6,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.3,
    },
}


def translation(
    source_vocabulary_size,
    target_vocabulary_size=None,
    size="base",
    tie_output=True,
    packed=False,
    output_bias=False,
    scale_embedding=True,
    positions=None,
    source_end=True,
    name="translation",
    **dimensions,
):
    """Builds a Transformer that scores the next target token after each target position.

    Source: Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762).

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids; None shares one vocabulary and one
            embedding table between source and target.
        size: a key of `SIZES`: "tiny", "base" or "big".
        tie_output: whether the target embeddings also serve as output projection.
        packed: whether rows may hold several pairs, as `PackedRows` makes them: each
            source ends with id 3, each target begins with id 2, and no pair attends to another.
            The weights, and the logits of a row with one pair, are the same.
        output_bias: whether the logit of each token has a learned bias.
        scale_embedding: whether token vectors are multiplied by sqrt(hidden_dim).
        positions: arguments of `SinusoidalEncoding` that differ from its defaults, a dictionary.
        source_end: whether the model reads the end token, id 3, that data and serving append to
            each source.
        name: name of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads, dropout), or pass further arguments to the blocks
            (attention_dropout, activation_dropout, activation, pre_norm, key_dim, use_bias,
            kernel_initializer, dtype).

    Returns:
        A functional Keras model. Inputs: a dictionary of `source_ids` (batch, source) and
        `target_ids` (batch, target), integers, 0 for padding. Output: float32 logits,
        (batch, target, target_vocabulary_size).

    Raises:
        ValueError: if `size` or a dimension is unknown, or hidden_dim is not
            divisible by num_heads without a `key_dim`.

    Examples:
        >>> model = translation(11, size="tiny", num_layers=1)
        >>> ids = keras.ops.array([[3, 5, 2]])
        >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
        (1, 3, 11)
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}. Received: size={size!r}.")
    block = {**SIZES[size], **dimensions}
    hidden_dim = block.pop("hidden_dim")
    dtype = block.get("dtype")

    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    shared = target_vocabulary_size is None
    target_vocabulary_size = source_vocabulary_size if shared else target_vocabulary_size
    target_embedding = TokenEmbedding(
        target_vocabulary_size, hidden_dim, scale_embedding, dtype=dtype, name="target_embedding"
    )
    source_embedding = target_embedding
    if not shared:
        source_embedding = TokenEmbedding(
            source_vocabulary_size,
            hidden_dim,
            scale_embedding,
            dtype=dtype,
            name="source_embedding",
        )
    output_projection = target_embedding
    if not tie_output:
        output_projection = TokenEmbedding(
            target_vocabulary_size, hidden_dim, dtype=dtype, name="output_projection"
        )
    positions = SinusoidalEncoding(**(positions or {}), dtype=dtype, name="positions")
    dropout = ReproducibleDropout(block["dropout"], dtype=dtype, name="embedding_dropout")

    source_segments = target_segments = None
    source_masks, target_masks = {}, {}
    if packed:
        source_segments = segments_before(source_ids, END_ID)
        target_segments = segments_after(target_ids, START_ID)
        source_masks["attention_mask"] = segment_mask(source_segments, source_segments)
        target_masks["attention_mask"] = segment_mask(target_segments, target_segments)
        target_masks["source_attention_mask"] = segment_mask(target_segments, source_segments)
    seen_ids = source_ids
    if not source_end:
        seen_ids = IgnoredToken(END_ID, dtype=dtype, name="source_without_end")(source_ids)
    source = dropout(positions(source_embedding(seen_ids), segments=source_segments))
    source = Encoder(**block, name="encoder")(source, **source_masks)
    target = dropout(positions(target_embedding(target_ids), segments=target_segments))
    target = Decoder(**block, name="decoder")(target, source, **target_masks)
    logits = output_projection(target, reverse=True)
    if output_bias:
        logits = VocabularyBias(dtype=dtype, name="output_bias")(logits)
    return Model({"source_ids": source_ids, "target_ids": target_ids}, logits, name=name)


def functions(model):
    """The functions to decode and serve a model of `translation`.

    Args:
        model: of `translation`, as built or reloaded.

    Returns:
        `TranslatorFunctions`.

    Raises:
        ValueError: if the model is of another kind.
    """
    check_layers(model, ("target_embedding", "positions", "encoder", "decoder"), "translation()")
    return TranslatorFunctions(
        weights=model.weights,
        encode=functools.partial(encode, model),
        start_cache=functools.partial(start_cache, model),
        step=functools.partial(step, model),
        logits=lambda source_ids, target_ids: model(
            {"source_ids": source_ids, "target_ids": target_ids}, training=False
        ),
        attention_scores=functools.partial(attention_scores, model),
        has_static_cache=True,
    )


def encode(model, source_ids):
    """Encodes the source once for all decoding steps.

    Args:
        model: of `translation`, as built or reloaded.
        source_ids: (batch, source), 0 for padding.

    Returns:
        A nested structure of tensors, batch first: the input of `start_cache` and `step`.
    """
    source_ids = _seen(model, source_ids)
    mask = padding_mask(source_ids)
    source = model.get_layer("encoder")(_embed(model, "source", source_ids), padding_mask=mask)
    return {
        "keys_values": model.get_layer("decoder").source_keys_values(source),
        "padding_mask": mask,
    }


def start_cache(model, encoded, num_beams, length=None):
    """The cache before the first step.

    Args:
        model: of `translation`, as built or reloaded.
        encoded: the result of `encode`.
        num_beams: beams per row.
        length: most steps that will be taken, an integer scalar, for a cache of full size; None
            for one that grows.

    Returns:
        A nested structure of tensors, batch first; their axis of size 0 grows by
        `num_beams` with each step.
    """
    batch_size = ops.shape(encoded["padding_mask"])[0]
    keys_values = model.get_layer("decoder").empty_cache(batch_size, length, num_beams)
    return {"keys_values": keys_values, **empty_mask(batch_size, length, num_beams)}


def step(model, encoded, token_ids, parents, position, cache):
    """Scores the next token of every beam.

    Args:
        model: of `translation`, as built or reloaded.
        encoded: the result of `encode`.
        token_ids: the newest token of each beam, (batch, beams).
        parents: the beam of the previous step that each beam extends, (batch, beams).
        position: of the newest tokens in the target, counted from 0, an integer scalar.
        cache: from `start_cache` or the previous step.

    Returns:
        The pair of float32 logits, (batch, beams, vocabulary), and the extended cache.
    """
    vectors = model.get_layer("target_embedding")(token_ids)
    vectors = model.get_layer("positions").step(vectors, position)
    name, mask, position = mask_of_step(cache, parents, position)
    source, source_mask = encoded["keys_values"], encoded["padding_mask"]
    vectors, keys_values = model.get_layer("decoder").step(
        vectors, source, source_mask, cache["keys_values"], mask, position
    )
    return _logits(model, vectors), {"keys_values": keys_values, name: mask}


def attention_scores(model, source_ids, target_ids):
    """The attention weights of all layers and heads for pairs of source and target.

    Args:
        model: of `translation`, as built or reloaded.
        source_ids: (batch, source), 0 for padding.
        target_ids: (batch, target), the inputs of the decoder, start token first.

    Returns:
        A dictionary of lists with one tensor (batch, heads, target, source) per layer:
        "encoder", "decoder" (self-attention) and "cross" (from target to source).
    """
    source_ids = _seen(model, source_ids)
    source_mask, target_mask = padding_mask(source_ids), padding_mask(target_ids)
    source, encoder_scores = model.get_layer("encoder").attend(
        _embed(model, "source", source_ids), source_mask
    )
    pairs = model.get_layer("decoder").attention_scores(
        _embed(model, "target", target_ids), source, target_mask, source_mask
    )
    return {
        "encoder": encoder_scores,
        "decoder": [self_scores for self_scores, _ in pairs],
        "cross": [cross_scores for _, cross_scores in pairs],
    }


def embedding(model, side):
    """The embedding layer of the "source" or "target" side, which may share one."""
    shared = "source_embedding" not in layer_names(model)
    return model.get_layer("target_embedding" if shared else f"{side}_embedding")


def _seen(model, source_ids):
    """The ids of a source, padding where the model ignores them."""
    if "source_without_end" not in layer_names(model):
        return source_ids
    return model.get_layer("source_without_end")(source_ids)


def _embed(model, side, token_ids):
    """Vectors of the "source" or "target" side, with their positions encoded."""
    return model.get_layer("positions")(embedding(model, side)(token_ids))


def _logits(model, vectors):
    names = layer_names(model)
    projection = "output_projection" if "output_projection" in names else "target_embedding"
    logits = model.get_layer(projection)(vectors, reverse=True)
    return model.get_layer("output_bias")(logits) if "output_bias" in names else logits
