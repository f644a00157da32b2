"""GPT-2 in its four sizes: the causal language model with learned positions."""

from keras_transformer.arguments import check_integer
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.decoder_only import language_model
from keras_transformer.models.text_model import size_named

VOCABULARY_SIZE, MAX_SEQUENCE_LENGTH = 50257, 1024

# Radford et al. 2019, table 2, and the released hparams.json for the number of heads; named after
# the released checkpoints (https://github.com/openai/gpt-2).
SIZES = {
    "124M": {"num_layers": 12, "hidden_dim": 768, "num_heads": 12},
    "355M": {"num_layers": 24, "hidden_dim": 1024, "num_heads": 16},
    "774M": {"num_layers": 36, "hidden_dim": 1280, "num_heads": 20},
    "1558M": {"num_layers": 48, "hidden_dim": 1600, "num_heads": 25},
}


def gpt2(
    size="124M",
    vocabulary_size=VOCABULARY_SIZE,
    max_sequence_length=MAX_SEQUENCE_LENGTH,
    name="gpt2",
    **dimensions,
):
    """Builds GPT-2; `convert.gpt2.load_gpt2` loads the released weights into it.

    It has pre-norm blocks, GELU in its tanh form, learned positions, and an output projection
    tied to the token embedding. It is a `language_model`.

    Source: Radford et al. 2019, section 2.3
    (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).

    Args:
        size: a key of `SIZES`: "124M", "355M", "774M" or "1558M".
        vocabulary_size: number of ids; defaults to the released vocabulary.
        max_sequence_length: number of positions, in tokens.
        name: name of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim, intermediate_dim,
            num_heads, dropout, attention_dropout), or are the dtype or further arguments of
            `Decoder`, or `tie_output` and `logit_soft_cap` of `language_model`.

    Returns:
        A `LanguageModel`. Input: `token_ids`, integers (batch, length), all of them
        tokens, and optional `segment_ids`, as of `language_model`. Output: float32 logits, (batch,
        length, vocabulary_size).

    Raises:
        ValueError: if `size` or a dimension is unknown.

    Examples:
        >>> model = gpt2(vocabulary_size=11, num_layers=1, hidden_dim=6, num_heads=2)
        >>> tuple(model(keras.ops.array([[3, 5, 0]])).shape)
        (1, 3, 11)
    """
    block = size_named(SIZES, size, {"dropout": 0.1, "attention_dropout": 0.1, **dimensions})
    check_integer("hidden_dim", block["hidden_dim"])
    return language_model(
        vocabulary_size,
        max_sequence_length,
        scale_embedding=False,
        name=name,
        **{"intermediate_dim": 4 * block["hidden_dim"], "activation": gelu_tanh, **block},
    )
