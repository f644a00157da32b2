"""A causal Transformer that scores the next token of a text."""

import keras

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import SoftCap, TokenEmbedding
from keras_transformer.layers.positions import PositionEmbedding, SinusoidalEncoding
from keras_transformer.models.text_model import (
    DecoderModel,
    Part,
    TokenModel,
    has_own_positions,
    size_named,
)
from keras_transformer.training.optional_inputs import OptionalInput

# small and medium: the CPU and GPU settings of nanoGPT for Shakespeare
# (https://github.com/karpathy/nanoGPT, README).
SIZES = {
    "small": {
        "num_layers": 4,
        "hidden_dim": 128,
        "intermediate_dim": 512,
        "num_heads": 4,
        "dropout": 0.0,
    },
    "medium": {
        "num_layers": 6,
        "hidden_dim": 384,
        "intermediate_dim": 1536,
        "num_heads": 6,
        "dropout": 0.2,
    },
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(DecoderModel, TokenModel):
    """A causal Transformer, of `language_model` or `gpt2`: its logits score each next token.

    Attributes:
        embedding: `TokenEmbedding`.
        output_projection: the embedding whose table projects to logits, usually the same.
        soft_cap: `SoftCap` of the logits, or None.
        positions: `SinusoidalEncoding` or `PositionEmbedding`; None with rotary positions.
        decoder: `Decoder` without a source.
    """

    kind = "language_model"
    embedding = Part("embedding")
    output_projection = Part("output_projection", "embedding")
    soft_cap = Part("soft_cap")

    @property
    def pads_left(self):
        # Distances between tokens stay what they are behind padding; the blocks of a pattern and
        # what an attention of the user's own counts may not.
        return type(self.decoder.blocks[0].self_attention).step is MultiHeadAttention.step

    def start_cache(self, batch_size, num_beams=1, length=None, starts=None):
        """The cache before the first step.

        Args:
            batch_size: number of rows, an integer scalar.
            num_beams: beams per row.
            length: most steps that will be taken, an integer scalar, for a cache of full size; None
                for one that grows.
            starts: how many of the first tokens of each row are padding, which nothing sees and no
                position counts, integers (batch,); `prefill` must read all of them. None for none,
                and without `pads_left`.

        Returns:
            A nested structure of tensors, batch first; their axis of size 0 grows by
            `num_beams` with each step.
        """
        return self._empty_cache(batch_size, length, num_beams, starts)

    def step(self, token_ids, parents, position, cache):
        """Scores the next token of every beam.

        Args:
            token_ids: the newest token of each beam, (batch, beams).
            parents: the beam of the previous step that each beam extends, (batch, beams).
            position: of the newest tokens in the text, counted from 0, an integer scalar.
            cache: from `start_cache` or the previous step.

        Returns:
            The pair of float32 logits, (batch, beams, vocabulary), and the extended cache.
        """
        no_source = self.decoder.source_keys_values(None), None
        return self._decode_step(self.embedding(token_ids), *no_source, parents, position, cache)

    def prefill(self, token_ids, next_ids, count, cache):
        """Reads the tokens that begin every hypothesis in one pass, instead of step by step.

        Args:
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
        no_source = self.decoder.source_keys_values(None), None
        return self._prefill(self.embedding(token_ids), *no_source, next_ids, count, cache)

    def attention_scores(self, token_ids):
        """The attention weights of all layers and heads for tokenised texts.

        Args:
            token_ids: (batch, length).

        Returns:
            A dictionary with one list, "decoder", of one tensor (batch, heads, length, length)
            per layer.
        """
        vectors = self.with_positions(self.embedding(token_ids))
        pairs = self.decoder.attention_scores(vectors)
        return {"decoder": [self_scores for self_scores, _ in pairs]}

    def _logits_of(self, vectors):
        logits = self.output_projection(vectors, reverse=True)
        return logits if self.soft_cap is None else self.soft_cap(logits)


def language_model(
    vocabulary_size,
    max_sequence_length=None,
    size="small",
    scale_embedding=True,
    blocks="transformer",
    tie_output=True,
    logit_soft_cap=None,
    name="language_model",
    **dimensions,
):
    """Builds a causal Transformer that scores the next token after each position.

    Every id is a token, even 0: put padding at the end of a row, where no real position sees it.

    Source: Radford et al. 2018, section 3.1
    (https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf).

    Args:
        vocabulary_size: number of ids.
        max_sequence_length: number of learned positions, in tokens; None adds sinusoids
            instead, which have no limit, or nothing with rotary positions.
        size: a key of `SIZES`: "small" or "medium".
        scale_embedding: whether token vectors are multiplied by sqrt(hidden_dim).
        blocks: "transformer" for those of the paper, or "llama": RMS normalisation, rotary
            positions, SwiGLU, and no biases.
        tie_output: whether the token embeddings also serve as output projection.
        logit_soft_cap: limits the logits, as of `SoftCap`; None for no limit.
        name: name of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads, dropout), or are the dtype or further arguments of
            `Decoder`.

    Returns:
        A `LanguageModel`. Input: `token_ids`, integers (batch, length). Output:
        float32 logits of the next token at each position, (batch, length, vocabulary_size).
        Without an `attention_pattern` a batch may be a dictionary that also has `segment_ids`, the
        number of each token's document, (batch, length), as from `PackedDocuments`: each document
        is then read on its own.

    Raises:
        ValueError: if `size`, `blocks` or a dimension is unknown, or hidden_dim is not
            divisible by num_heads without a `key_dim`; for a `max_sequence_length` beside rotary
            positions.

    Examples:
        >>> model = language_model(11, num_layers=1)
        >>> tuple(model(keras.ops.array([[3, 5, 2]])).shape)
        (1, 3, 11)
    """
    block = {"activation": "gelu", **size_named(SIZES, size, dimensions, blocks)}
    hidden_dim = block.pop("hidden_dim")
    dtype = block.get("dtype")
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = TokenEmbedding(
        vocabulary_size, hidden_dim, scale_embedding, pad_id=None, dtype=dtype, name="embedding"
    )
    positions = None
    if has_own_positions(block):
        if max_sequence_length is not None:
            raise ValueError(
                "Rotary positions take the place of learned ones and have no limit: leave out "
                f"max_sequence_length. Received: max_sequence_length={max_sequence_length}."
            )
    elif max_sequence_length is None:
        positions = SinusoidalEncoding(dtype=dtype, name="positions")
    else:
        positions = PositionEmbedding(max_sequence_length, dtype=dtype, name="positions")
    dropout = ReproducibleDropout(block["dropout"], dtype=dtype, name="embedding_dropout")
    segments = None
    if block.get("attention_pattern") is None:
        segments = OptionalInput(name="segment_ids")(token_ids)
    vectors = embedding(token_ids)
    if positions is not None:
        vectors = positions(vectors, segments=segments)
    vectors = Decoder(**block, name="decoder")(dropout(vectors), segments=segments)
    output_projection = embedding
    if not tie_output:
        output_projection = TokenEmbedding(
            vocabulary_size, hidden_dim, pad_id=None, dtype=dtype, name="output_projection"
        )
    logits = output_projection(vectors, reverse=True)
    if logit_soft_cap is not None:
        logits = SoftCap(logit_soft_cap, dtype=dtype, name="soft_cap")(logits)
    return LanguageModel(token_ids, logits, name=name)
