"""An encoder that gives a sequence one or more labels."""

import keras

from keras_transformer.arguments import check_integer
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import TokenDropout, TokenEmbedding
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import SinusoidalEncoding
from keras_transformer.models.text_model import Part, TokenModel, has_own_positions, size_named
from keras_transformer.ops.masks import padding_mask

# former: the classifier of Bloem 2019 (https://peterbloem.nl/blog/transformers), with its
# defaults for IMDb. small: our own, for a few thousand texts.
SIZES = {
    "small": {
        "num_layers": 1,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "dropout": 0.1,
    },
    "former": {
        "num_layers": 6,
        "hidden_dim": 128,
        "intermediate_dim": 512,
        "num_heads": 8,
        "dropout": 0.0,
    },
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassifierModel(TokenModel):
    """An encoder with a pooled vector and a head, of `classifier`.

    Attributes:
        embedding: `TokenEmbedding`.
        positions: `SinusoidalEncoding`; None with rotary positions.
        encoder: `Encoder`.
        head: `Dense` from the pooled vector to the logits of the labels.
    """

    kind = "classifier"
    embedding = Part("embedding")
    positions = Part("positions")
    encoder = Part("encoder")
    head = Part("head")

    def attention_scores(self, token_ids):
        """The attention weights of all layers and heads for tokenised texts.

        Args:
            token_ids: (batch, length), 0 for padding.

        Returns:
            A dictionary with one list, "encoder", of one tensor (batch, heads, length, length)
            per layer.
        """
        vectors = self.embedding(token_ids)
        if self.positions is not None:
            vectors = self.positions(vectors)
        return {"encoder": self.encoder.attention_scores(vectors, padding_mask(token_ids))}


def classifier(
    vocabulary_size,
    num_labels,
    size="small",
    pooling="mean",
    token_dropout=0.0,
    blocks="transformer",
    name="classifier",
    **dimensions,
):
    """Builds a text classifier: an encoder, pooling, and a projection to label logits.

    Source: Bloem 2019 (https://peterbloem.nl/blog/transformers).

    Args:
        vocabulary_size: number of ids.
        num_labels: number of labels.
        size: a key of `SIZES`: "small" or "former".
        pooling: of the encoder's vectors: "mean", "max" or "first".
        token_dropout: probability in [0, 1) of dropping a token in training.
        blocks: "transformer" for those of the paper, or "llama": RMS normalisation, rotary
            positions, SwiGLU, and no biases.
        name: name of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads, dropout), or are the dtype or further arguments of
            `Encoder`.

    Returns:
        A `ClassifierModel`. Input: `token_ids`, integers (batch, length), 0 for
        padding. Output: float32 logits, (batch, num_labels).

    Raises:
        ValueError: if `size`, `pooling`, `blocks` or a dimension is unknown, or hidden_dim is not
            divisible by num_heads without a `key_dim`.

    Examples:
        >>> model = classifier(11, num_labels=2)
        >>> tuple(model(keras.ops.array([[3, 5, 2], [7, 0, 0]])).shape)
        (2, 2)
    """
    check_integer("num_labels", num_labels)
    block = size_named(SIZES, size, dimensions, blocks)
    hidden_dim, dropout = block.pop("hidden_dim"), block["dropout"]
    dtype = block.get("dtype")
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    kept_ids = TokenDropout(token_dropout, name="token_dropout")(token_ids)
    vectors = TokenEmbedding(vocabulary_size, hidden_dim, dtype=dtype, name="embedding")(kept_ids)
    if not has_own_positions(block):
        vectors = SinusoidalEncoding(dtype=dtype, name="positions")(vectors)
    vectors = ReproducibleDropout(dropout, dtype=dtype, name="embedding_dropout")(vectors)
    vectors = Encoder(**block, name="encoder")(vectors)
    pooled = SequencePooling(pooling, dtype=dtype, name="pooling")(vectors)
    pooled = ReproducibleDropout(dropout, dtype=dtype, name="pooled_dropout")(pooled)
    logits = keras.layers.Dense(num_labels, dtype="float32", name="head")(pooled)
    return ClassifierModel(token_ids, logits, name=name)
