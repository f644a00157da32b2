"""The encoder-decoder of "Attention Is All You Need"."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.attention_scores import recorded_scores
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import IgnoredToken, TokenEmbedding, VocabularyBias
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.normalization import NORM_EPSILON, create_norm
from keras_transformer.layers.positions import PositionEmbedding, SinusoidalEncoding
from keras_transformer.models.text_model import (
    DecoderModel,
    Part,
    check_kind,
    has_own_positions,
    placed,
    size_named,
)
from keras_transformer.ops.masks import padding_mask
from keras_transformer.training.optional_inputs import OptionalInput

END_ID = 3  # of every source

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


@keras.saving.register_keras_serializable(package="keras_transformer")
class TranslationModel(DecoderModel):
    """An encoder-decoder, of `translation`: its logits score each next target token.

    Attributes:
        source_embedding: `TokenEmbedding` of the sources.
        target_embedding: that of the targets, the same layer if both share one vocabulary.
        output_projection: the embedding whose table projects to logits.
        output_bias: `VocabularyBias` of the logits, or None.
        source_without_end: `IgnoredToken` that hides the end token of sources, or None.
        positions: `SinusoidalEncoding` of both sides, or `PositionEmbedding` of the targets; None
            with rotary positions.
        source_positions: the same, or the `PositionEmbedding` of the sources.
        embedding_norm: normalisation of the embedded targets, or None.
        source_embedding_norm: that of the embedded sources, or None.
        encoder: `Encoder` of the sources.
        decoder: `Decoder` of the targets.
    """

    kind = "translation"
    source_embedding = Part("source_embedding", "target_embedding")
    target_embedding = Part("target_embedding")
    output_projection = Part("output_projection", "target_embedding")
    output_bias = Part("output_bias")
    source_without_end = Part("source_without_end")
    positions = Part("positions", "target_positions")
    source_positions = Part("positions", "source_positions")
    embedding_norm = Part("target_embedding_norm")
    source_embedding_norm = Part("source_embedding_norm")
    encoder = Part("encoder")

    def encode(self, source_ids):
        """Encodes the source once for all decoding steps.

        Args:
            source_ids: (batch, source), 0 for padding.

        Returns:
            A nested structure of tensors, batch first: the input of `start_cache` and `step`.
        """
        vectors, mask = self._embedded_source(source_ids)
        source = self.encoder(vectors, padding_mask=mask)
        return {
            "keys_values": self.decoder.source_keys_values(source),
            "padding_mask": mask,
        }

    def start_cache(self, encoded, num_beams, length=None):
        """The cache before the first step.

        Args:
            encoded: the result of `encode`.
            num_beams: beams per row.
            length: most steps that will be taken, an integer scalar, for a cache of full size; None
                for one that grows.

        Returns:
            A nested structure of tensors, batch first; their axis of size 0 grows by
            `num_beams` with each step.
        """
        batch_size = ops.shape(encoded["padding_mask"])[0]
        return self._empty_cache(batch_size, length, num_beams)

    def step(self, encoded, token_ids, parents, position, cache):
        """Scores the next token of every beam.

        Args:
            encoded: the result of `encode`.
            token_ids: the newest token of each beam, (batch, beams).
            parents: the beam of the previous step that each beam extends, (batch, beams).
            position: of the newest tokens in the target, counted from 0, an integer scalar.
            cache: from `start_cache` or the previous step.

        Returns:
            The pair of float32 logits, (batch, beams, vocabulary), and the extended cache.
        """
        source = encoded["keys_values"], encoded["padding_mask"]
        return self._decode_step(
            self.target_embedding(token_ids), *source, parents, position, cache
        )

    def prefill(self, encoded, token_ids, next_ids, count, cache):
        """Reads the tokens that begin every hypothesis in one pass, instead of step by step.

        Args:
            encoded: the result of `encode`.
            token_ids: (batch, length), the start token first; one row is read by one beam, and
                all beams of the row go on from it.
            next_ids: the token after each, (batch, length); None if no log-probability is wanted.
            count: how many of the `length` tokens are read, an integer scalar, of a cache of full
                size; `length` of a cache that grows.
            cache: from `start_cache`.

        Returns:
            The pair of the log-probabilities of `next_ids`, float32 (batch, length), or None, and
            the cache after `count` steps.
        """
        source = encoded["keys_values"], encoded["padding_mask"]
        return self._prefill(self.target_embedding(token_ids), *source, next_ids, count, cache)

    def logits(self, source_ids, target_ids):
        """Scores the next token after each target position, outside training.

        Args:
            source_ids: (batch, source), 0 for padding.
            target_ids: (batch, target), 0 for padding.

        Returns:
            Float32 logits, (batch, target, vocabulary).
        """
        return self({"source_ids": source_ids, "target_ids": target_ids}, training=False)

    def attention_scores(self, source_ids, target_ids):
        """The attention weights of all layers and heads for pairs of source and target.

        Args:
            source_ids: (batch, source), 0 for padding.
            target_ids: (batch, target), the inputs of the decoder, start token first.

        Returns:
            A dictionary of lists with one tensor (batch, heads, target, source) per layer:
            "encoder", "decoder" (self-attention) and "cross" (from target to source).
        """
        vectors, source_mask = self._embedded_source(source_ids)
        with recorded_scores() as recorded:
            source = self.encoder(vectors, source_mask, training=False)
            targets = self.with_positions(self.target_embedding(target_ids))
            self.decoder(targets, source, padding_mask(target_ids), source_mask, training=False)
        pairs = self.decoder.scores_in(recorded)
        return {
            "encoder": self.encoder.scores_in(recorded),
            "decoder": [self_scores for self_scores, _ in pairs],
            "cross": [cross_scores for _, cross_scores in pairs],
        }

    def _embedded_source(self, source_ids):
        """Vectors of sources with their positions encoded, and their padding mask."""
        if self.source_without_end is not None:
            source_ids = self.source_without_end(source_ids)
        vectors = self.source_embedding(source_ids)
        vectors = placed(vectors, self.source_positions, self.source_embedding_norm)
        return vectors, padding_mask(source_ids)

    def _logits_of(self, vectors):
        logits = self.output_projection(vectors, reverse=True)
        return logits if self.output_bias is None else self.output_bias(logits)


def translation(
    source_vocabulary_size,
    target_vocabulary_size=None,
    size="base",
    tie_output=True,
    output_bias=False,
    scale_embedding=True,
    positions=None,
    source_end=True,
    blocks="transformer",
    max_sequence_length=None,
    embedding_norm=False,
    num_decoder_layers=None,
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
        output_bias: whether the logit of each token has a learned bias.
        scale_embedding: whether token vectors are multiplied by sqrt(hidden_dim).
        positions: arguments of `SinusoidalEncoding` that differ from its defaults, a dictionary;
            None with learned or rotary positions, which take its place.
        source_end: whether the model reads the end token, id 3, that data and serving append to
            each source.
        blocks: "transformer" for those of the paper, or "llama": RMS normalisation, rotary
            positions in self-attention, SwiGLU, and no biases.
        max_sequence_length: number of learned positions of each side, in tokens, as in BART; None
            adds sinusoids instead, which have no limit, or nothing with rotary positions.
        embedding_norm: whether token vectors with their positions are normalised, on each side, as
            in BART.
        num_decoder_layers: number of blocks of the decoder; None for num_layers, as the encoder.
        name: name of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads, dropout), or are the dtype or further arguments of
            `Encoder` and `Decoder`.

    Returns:
        A `TranslationModel`. Inputs: a dictionary of `source_ids` (batch, source) and
        `target_ids` (batch, target), integers, 0 for padding. Output: float32 logits,
        (batch, target, target_vocabulary_size). Without an `attention_pattern` the dictionary may
        also have `source_segment_ids` and `target_segment_ids`, the number of each token's pair,
        in the same shapes, as from `PackedRows`: each pair is then read on its own.

    Raises:
        ValueError: if `size`, `blocks` or a dimension is unknown, or hidden_dim is not
            divisible by num_heads without a `key_dim`; for more than one kind of positions.

    Examples:
        >>> model = translation(11, size="tiny", num_layers=1)
        >>> ids = keras.ops.array([[3, 5, 2]])
        >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
        (1, 3, 11)
    """
    block = size_named(SIZES, size, dimensions, blocks)
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
    source_positions, target_positions = _positions(block, positions, max_sequence_length)
    source_norm, target_norm = _embedding_norms(block) if embedding_norm else (None, None)
    dropout = ReproducibleDropout(block["dropout"], dtype=dtype, name="embedding_dropout")

    source_segments = target_segments = None
    if block.get("attention_pattern") is None:
        source_segments = OptionalInput(name="source_segment_ids")(source_ids)
        target_segments = OptionalInput(name="target_segment_ids")(target_ids)
    seen_ids = source_ids
    if not source_end:
        seen_ids = IgnoredToken(END_ID, dtype=dtype, name="source_without_end")(source_ids)

    def embedded(embedding, ids, positions, segments, norm):
        add = positions and (lambda vectors: positions(vectors, segments=segments))
        return dropout(placed(embedding(ids), add, norm))

    source = embedded(source_embedding, seen_ids, source_positions, source_segments, source_norm)
    source = Encoder(**block, name="encoder")(source, segments=source_segments)
    target = embedded(target_embedding, target_ids, target_positions, target_segments, target_norm)
    if num_decoder_layers is not None:
        check_integer("num_decoder_layers", num_decoder_layers)
        block["num_layers"] = num_decoder_layers
    segments = {"segments": target_segments, "source_segments": source_segments}
    target = Decoder(**block, name="decoder")(target, source, **segments)
    logits = output_projection(target, reverse=True)
    if output_bias:
        logits = VocabularyBias(dtype=dtype, name="output_bias")(logits)
    return TranslationModel({"source_ids": source_ids, "target_ids": target_ids}, logits, name=name)


def _positions(block, sinusoids, max_sequence_length):
    """The layers that add positions to the vectors of source and target, or None.

    Args:
        block: the arguments of the blocks, a dictionary.
        sinusoids: arguments of `SinusoidalEncoding`, or None.
        max_sequence_length: number of learned positions, or None.
    """
    dtype = block.get("dtype")
    kinds = {
        "positions": sinusoids is not None,
        "max_sequence_length": max_sequence_length is not None,
        "rotary positions or position_bias": has_own_positions(block),
    }
    given = [kind for kind, is_given in kinds.items() if is_given]
    if len(given) > 1:
        raise ValueError(
            "Learned and rotary positions take the place of sinusoids, and of each other: leave "
            f"out {given[0]}. Received: {' and '.join(given)}."
        )
    if has_own_positions(block):
        return None, None
    if max_sequence_length is None:
        return (SinusoidalEncoding(**(sinusoids or {}), dtype=dtype, name="positions"),) * 2
    return tuple(
        PositionEmbedding(max_sequence_length, dtype=dtype, name=f"{side}_positions")
        for side in ("source", "target")
    )


def _embedding_norms(block):
    """The normalisations of the vectors of source and target, which are those of the blocks."""
    normalization = block.get("normalization", "layer")
    epsilon = block.get("norm_epsilon", NORM_EPSILON)
    return tuple(
        create_norm(normalization, epsilon, dtype=block.get("dtype"), name=f"{side}_embedding_norm")
        for side in ("source", "target")
    )


def check_translation(model):
    """Raises ValueError unless `Translator` can use a model."""
    check_kind(
        model, TranslationModel, ("encode", "start_cache", "step", "logits"), "translation()"
    )
