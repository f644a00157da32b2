"""BERT: the backbone, and the models with a head that share its weights."""

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import TokenDropout, TokenEmbedding, VocabularyBias
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import SMALL_STDDEV, PositionEmbedding
from keras_transformer.models.text_model import Part, TextModel, has_own_positions, size_named
from keras_transformer.ops.masks import padding_mask

# base, large: Devlin et al. 2018, section 3 (https://arxiv.org/abs/1810.04805).
# tiny, mini, small: Turc et al. 2019 (https://arxiv.org/abs/1908.08962).
# In all of them, intermediate_dim is 4 * hidden_dim and heads are 64 wide.
SIZES = {
    "tiny": {"num_layers": 2, "hidden_dim": 128, "intermediate_dim": 512, "num_heads": 2},
    "mini": {"num_layers": 4, "hidden_dim": 256, "intermediate_dim": 1024, "num_heads": 4},
    "small": {"num_layers": 4, "hidden_dim": 512, "intermediate_dim": 2048, "num_heads": 8},
    "base": {"num_layers": 12, "hidden_dim": 768, "intermediate_dim": 3072, "num_heads": 12},
    "large": {"num_layers": 24, "hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16},
}
# Devlin et al. 2018, appendix A.2; the epsilon is that of the released code.
_BLOCK = {
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",  # with the error function, not its approximation by tanh
    "normalize_first": False,
    "norm_epsilon": 1e-12,
}
_NUM_SEGMENTS = 2


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertModel(TextModel):
    """The backbone of BERT, of `bert`, and the base of the models with a head.

    Attributes:
        token_embedding: `TokenEmbedding`.
        segment_embedding: `keras.layers.Embedding` of the first and the second text.
        positions: `PositionEmbedding`.
        token_dropout: `TokenDropout` of the ids.
        embedding_norm: layer normalisation of the sum of the three.
        embedding_dropout: dropout after it.
        encoder: `Encoder`.
        pooler: `Dense` above the vector of [CLS]; None in a model that does not use it.
        text_inputs: the symbolic inputs `token_ids` and `segment_ids`, a dictionary.
    """

    kind = "bert"
    gives_logits = False
    token_embedding = Part("token_embedding")
    segment_embedding = Part("segment_embedding")
    positions = Part("positions")
    token_dropout = Part("token_dropout")
    embedding_norm = Part("embedding_norm")
    embedding_dropout = Part("embedding_dropout")
    encoder = Part("encoder")
    pooler = Part("pooler")

    @property
    def text_inputs(self):
        return {name: self.input[name] for name in ("token_ids", "segment_ids")}

    def attention_scores(self, token_ids, segment_ids):
        """The attention weights of all layers and heads for tokenised texts.

        Args:
            token_ids: (batch, length), 0 for padding.
            segment_ids: (batch, length).

        Returns:
            A dictionary with one list, "encoder", of one tensor (batch, heads, length, length)
            per layer.
        """
        embedded = keras.Model(self.text_inputs, self.embedding_dropout.output)
        vectors = embedded({"token_ids": token_ids, "segment_ids": segment_ids})
        mask = padding_mask(ops.convert_to_tensor(token_ids))
        return {"encoder": self.encoder.attention_scores(vectors, mask)}


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertPretrainingModel(BertModel):
    """A backbone with the two heads of pretraining, of `bert_pretraining`.

    Attributes:
        masked_token_dense: `Dense` above the vectors of masked tokens.
        masked_token_norm: layer normalisation after it.
        masked_token_bias: `VocabularyBias` of the logits of masked tokens.
        next_sentence: `Dense` above the pooler.
    """

    kind = "bert_pretraining"
    masked_token_dense = Part("masked_token_dense")
    masked_token_norm = Part("masked_token_norm")
    masked_token_bias = Part("masked_token_bias")
    next_sentence = Part("next_sentence")


class BertHeadModel(BertModel):
    """A backbone with one head, of any kind."""

    gives_logits = True
    head = Part("head")

    def logits(self, token_ids, segment_ids):
        """The scores of the head, outside training.

        Args:
            token_ids: (batch, length), 0 for padding.
            segment_ids: (batch, length).

        Returns:
            Float32 logits: (batch, labels) of texts, (batch, length, labels) of tokens, (batch, 2,
            length) of the first and the last token of an answer.
        """
        return self({"token_ids": token_ids, "segment_ids": segment_ids}, training=False)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertClassifierModel(BertHeadModel):
    """A backbone with a head that labels texts, of `bert_classifier`.

    Attributes:
        head: `Dense` from the pooled vector to the logits of the labels.
        head_dropout: dropout before it.
        pooling: `SequencePooling` of all vectors; None if the vector of [CLS] is used.
    """

    kind = "bert_classifier"
    head_dropout = Part("head_dropout")
    pooling = Part("pooling")


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertTokenLabellerModel(BertHeadModel):
    """A backbone with a head that labels each token, of `bert_token_labeller`.

    Attributes:
        head: `Dense` from each vector to the logits of the labels.
        head_dropout: dropout before it.
    """

    kind = "bert_token_labeller"
    head_dropout = Part("head_dropout")


@keras.saving.register_keras_serializable(package="keras_transformer")
class BertQuestionAnsweringModel(BertHeadModel):
    """A backbone with a head that finds an answer in a passage, of `bert_question_answering`.

    Attributes:
        head: `Dense` from each vector to the logits of a start and an end.
    """

    kind = "bert_question_answering"


def bert(
    vocabulary_size,
    size="base",
    max_sequence_length=512,
    token_dropout=0.0,
    pooler_activation="tanh",
    name="bert",
    **dimensions,
):
    """Builds the backbone of BERT, which turns tokens into contextual vectors.

    The backbone is the checkpoint: save it, reload it, and add any head of this file. Heads share
    its weights instead of copying them, so training a head also trains the backbone.

    Source: Devlin et al. 2018 (https://arxiv.org/abs/1810.04805).

    Args:
        vocabulary_size: number of token ids.
        size: a key of `SIZES`: "tiny", "mini", "small", "base" or "large".
        max_sequence_length: number of positions that have a vector, in tokens.
        token_dropout: probability in [0, 1) of dropping a token in training.
        pooler_activation: of the layer above the vector of [CLS]; DistilBERT has "relu".
        name: of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads), or are the dtype or further arguments of `Encoder`,
            except for a position_bias, with other defaults: dropout and attention_dropout, 0.1
            each; activation, "gelu"; normalize_first, False; norm_epsilon, 1e-12.

    Returns:
        A `BertModel`. Inputs: a dictionary of `token_ids`, 0 for padding, and
        `segment_ids`, 0 in the first text and 1 in the second, integers (batch, length).
        Outputs: a dictionary of `vectors`, (batch, length, hidden_dim), and `pooled`,
        (batch, hidden_dim), computed from the first vector, that of [CLS].

    Raises:
        ValueError: if `size` or a dimension is unknown, or hidden_dim is not
            divisible by num_heads without a `key_dim`.

    Examples:
        >>> model = bert(11, size="tiny", num_layers=1)
        >>> ids = keras.ops.array([[2, 5, 3]])
        >>> outputs = model({"token_ids": ids, "segment_ids": keras.ops.zeros_like(ids)})
        >>> {name: tuple(output.shape) for name, output in outputs.items()}
        {'vectors': (1, 3, 128), 'pooled': (1, 128)}
    """
    block = {**_BLOCK, **size_named(SIZES, size, dimensions)}
    if has_own_positions(block):
        raise ValueError(
            "BERT adds learned positions to its token vectors: leave out rotary positions and "
            f"position_bias. Received: attention_arguments={block.get('attention_arguments')}, "
            f"position_bias={block.get('position_bias')}."
        )
    hidden_dim = block.pop("hidden_dim")
    dtype = block.get("dtype")

    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
    kept_ids = TokenDropout(token_dropout, name="token_dropout")(token_ids)
    tokens = TokenEmbedding(
        vocabulary_size,
        hidden_dim,
        scale=False,
        stddev=SMALL_STDDEV,
        dtype=dtype,
        name="token_embedding",
    )(kept_ids)
    segments = keras.layers.Embedding(
        _NUM_SEGMENTS,
        hidden_dim,
        keras.initializers.RandomNormal(stddev=SMALL_STDDEV),
        dtype=dtype,
        name="segment_embedding",
    )(segment_ids)
    vectors = keras.layers.Add(dtype=dtype, name="add_segments")([tokens, segments])
    vectors = PositionEmbedding(max_sequence_length, dtype=dtype, name="positions")(vectors)
    vectors = _norm("embedding_norm", block["norm_epsilon"], dtype)(vectors)
    vectors = ReproducibleDropout(block["dropout"], dtype=dtype, name="embedding_dropout")(vectors)
    # Explicit, because the implicit mask of the tokens is lost where the segments are added.
    vectors = Encoder(**block, name="encoder")(vectors, padding_mask=padding_mask(kept_ids))
    pooler = keras.layers.Dense(hidden_dim, pooler_activation, dtype=dtype, name="pooler")
    return BertModel(
        {"token_ids": token_ids, "segment_ids": segment_ids},
        {"vectors": vectors, "pooled": pooler(vectors[:, 0])},
        name=name,
    )


def bert_pretraining(
    backbone, token_counts=None, activation=_BLOCK["activation"], name="bert_pretraining"
):
    """Adds the two pretraining heads to a backbone: masked tokens and next sentence.

    Only the masked positions are projected to the vocabulary. The head's norm has the
    `norm_epsilon` of the backbone.

    Source: Devlin et al. 2018, section 3.1 (https://arxiv.org/abs/1810.04805).

    Args:
        backbone: of `bert`, as built or reloaded. Its token embeddings are also the output
            projection.
        token_counts: occurrences of each token in the corpus, (vocabulary_size,). The bias of
            the logits starts as the logarithm of their frequencies. With None it starts at zero;
            then the embeddings must learn the frequencies, and all drift in one direction.
        activation: activation of the layer before the projection to the vocabulary.
        name: of the model.

    Returns:
        A `BertPretrainingModel`. Inputs: those of the backbone and `masked_positions`,
        integers (batch, masked), 0 for padding. Outputs: a dictionary of float32 logits,
        `masked_tokens` (batch, masked, vocabulary_size) and `next_sentence` (batch, 2):
        the second text follows the first, or is random. Train it with `PretrainingLoss`.

    Examples:
        >>> model = bert_pretraining(bert(11, size="tiny", num_layers=1))
        >>> ids = keras.ops.array([[2, 5, 3]])
        >>> positions = keras.ops.array([[1]])
        >>> inputs = {"token_ids": ids, "segment_ids": ids * 0, "masked_positions": positions}
        >>> {name: tuple(logits.shape) for name, logits in model(inputs).items()}
        {'masked_tokens': (1, 1, 11), 'next_sentence': (1, 2)}
    """
    token_embedding = backbone.token_embedding
    dtype = token_embedding.dtype_policy
    positions = keras.Input((None,), dtype="int32", name="masked_positions")
    vectors = VectorsAt(dtype=dtype, name="masked_vectors")(backbone.output["vectors"], positions)
    vectors = keras.layers.Dense(  # (batch, masked, hidden_dim)
        token_embedding.hidden_dim, activation, dtype=dtype, name="masked_token_dense"
    )(vectors)
    epsilon = backbone.embedding_norm.epsilon
    vectors = _norm("masked_token_norm", epsilon, dtype)(vectors)
    logits = token_embedding(vectors, reverse=True)
    bias = VocabularyBias(dtype=dtype, name="masked_token_bias")
    model = BertPretrainingModel(
        {**backbone.input, "masked_positions": positions},
        {
            "masked_tokens": bias(logits),
            "next_sentence": _logits(2, "next_sentence")(backbone.output["pooled"]),
        },
        name=name,
    )
    if token_counts is not None:
        counts = np.asarray(token_counts, "float64") + 1  # avoids log(0)
        bias.bias.assign(np.log(counts / counts.sum()))
    return model


def bert_backbone(model):
    """The backbone of a model of `bert_pretraining`, as built or reloaded, with its weights.

    Examples:
        >>> model = bert_pretraining(bert(11, size="tiny", num_layers=1))
        >>> sorted(bert_backbone(model).output)
        ['pooled', 'vectors']
    """
    outputs = {"vectors": model.encoder.output, "pooled": model.pooler.output}
    return BertModel(model.text_inputs, outputs, name="bert")


def bert_classifier(backbone, num_labels, dropout=0.1, pooling="first", name="bert_classifier"):
    """Adds a head to a backbone that labels a text or a pair of texts.

    Source: Devlin et al. 2018, section 4.1 (https://arxiv.org/abs/1810.04805), with pooling
    "first".

    Args:
        backbone: of `bert`, as built, pretrained or reloaded.
        num_labels: number of labels.
        dropout: dropout probability of the pooled vector, in [0, 1).
        pooling: "first" for the pooler's output at [CLS], which pretraining teaches to tell
            consecutive texts from random ones; or "mean" or "max" over all vectors.
        name: of the model.

    Returns:
        A `BertClassifierModel` with the inputs of the backbone. Output: float32 logits,
        (batch, num_labels).

    Raises:
        ValueError: if `pooling` is unknown.

    Examples:
        >>> bert_classifier(bert(11, size="tiny", num_layers=1), num_labels=3).output_shape
        (None, 3)
    """
    pooled = backbone.output["pooled"]
    if pooling != "first":
        mask = padding_mask(backbone.token_dropout.output)
        dtype = backbone.token_embedding.dtype_policy
        pooled = SequencePooling(pooling, dtype=dtype, name="pooling")(
            backbone.output["vectors"], padding_mask=mask
        )
    pooled = ReproducibleDropout(dropout, name="head_dropout")(pooled)
    return BertClassifierModel(backbone.input, _logits(num_labels, "head")(pooled), name=name)


def bert_token_labeller(backbone, num_labels, dropout=0.1, name="bert_token_labeller"):
    """Adds a head to a backbone that labels each token, e.g. as part of a name.

    Source: Devlin et al. 2018, section 5.3 (https://arxiv.org/abs/1810.04805), without the
    conditional random field, as in the paper.

    Args:
        backbone: of `bert`, as built, pretrained or reloaded.
        num_labels: number of labels; with `TokenCrossentropy` this includes label 0, which
            marks tokens to ignore.
        dropout: dropout probability of the vectors, in [0, 1).
        name: of the model.

    Returns:
        A `BertTokenLabellerModel` with the inputs of the backbone. Output: float32 logits,
        (batch, length, num_labels).

    Examples:
        >>> bert_token_labeller(bert(11, size="tiny", num_layers=1), num_labels=5).output_shape
        (None, None, 5)
    """
    vectors = ReproducibleDropout(dropout, name="head_dropout")(backbone.output["vectors"])
    return BertTokenLabellerModel(backbone.input, _logits(num_labels, "head")(vectors), name=name)


def bert_question_answering(backbone, name="bert_question_answering"):
    """Adds a head to a backbone that finds the answer to a question in a passage.

    The two texts are the question and the passage. If the passage has no answer,
    [CLS] is its first and last token.

    Source: Devlin et al. 2018, sections 4.2 and 4.3 (https://arxiv.org/abs/1810.04805).

    Args:
        backbone: of `bert`, as built, pretrained or reloaded.
        name: of the model.

    Returns:
        A `BertQuestionAnsweringModel` with the inputs of the backbone. Output: float32 logits,
        (batch, 2, length), of the first and of the last token of the answer; about -1e9 at padding.
        Train it with `TokenCrossentropy(pad_id=-1)`, whose labels are the two positions.

    Examples:
        >>> model = bert_question_answering(bert(11, size="tiny", num_layers=1))
        >>> model.output_shape
        (None, 2, None)
    """
    logits = ops.transpose(_logits(2, "head")(backbone.output["vectors"]), (0, 2, 1))
    is_padding = ops.expand_dims(ops.equal(backbone.input["token_ids"], 0), 1)
    logits = logits - ops.cast(is_padding, "float32") * 1e9
    return BertQuestionAnsweringModel(backbone.input, logits, name=name)


@keras.saving.register_keras_serializable(package="keras_transformer")
class VectorsAt(keras.layers.Layer):
    """Gathers the vectors at given positions of each row.

    It gathers whole vectors; `ops.take_along_axis` gathers single numbers, which takes six times
    as long, forward and backward.

    Call arguments:
        vectors: (batch, length, dim).
        positions: integers (batch, chosen) in [0, length).

    Returns:
        (batch, chosen, dim); NaN at positions that a row does not have.

    Examples:
        >>> vectors = keras.ops.array([[[3.0], [5.0], [7.0]]])
        >>> VectorsAt()(vectors, keras.ops.array([[2, 0]])).numpy().tolist()
        [[[7.0], [3.0]]]
    """

    def call(self, vectors, positions):
        batch, length = ops.shape(vectors)[0], ops.shape(vectors)[1]
        flat = ops.reshape(vectors, (-1, vectors.shape[-1]))
        first = ops.arange(batch, dtype="int32") * length
        positions = ops.cast(positions, "int32")
        is_there = (positions >= 0) & (positions < length)
        found = ops.take(flat, first[:, None] + ops.where(is_there, positions, 0), axis=0)
        return ops.where(ops.expand_dims(is_there, -1), found, ops.cast(np.nan, found.dtype))

    def compute_output_shape(self, vectors_shape, positions_shape):
        return (*positions_shape, vectors_shape[-1])

    def get_config(self):
        return super().get_config()  # otherwise Keras refuses to serialise a dtype policy


def _norm(name, epsilon, dtype):
    return keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name=name)


def _logits(num_labels, name):
    check_integer("num_labels", num_labels)
    # In float32 under every dtype policy, like the logits of all models here.
    return keras.layers.Dense(num_labels, dtype="float32", name=name)
