"""What all blocks are made of: the residual connection, and the arguments they share."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number, check_probability
from keras_transformer.layers.attention import MultiHeadAttention, ShowsAttention
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.freezing import KeepsFrozen
from keras_transformer.layers.inputs import ChecksInputs
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.projection import TakesLoRA
from keras_transformer.layers.sparse_attention import SparseAttention

LAYER_NORM_EPSILON = 1e-5


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(KeepsFrozen, keras.layers.Layer):
    """Adds the outputs of a sub-layer to its inputs.

    Pre-norm: x + dropout(sublayer(norm(x))). Post-norm: norm(x + dropout(sublayer(x))).

    Source: Vaswani et al. 2017, sections 3.1 and 5.4 (https://arxiv.org/abs/1706.03762);
    pre-norm: Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).

    Args:
        dropout: probability in [0, 1) of dropping an element of the sub-layer's output.
        pre_norm: whether to normalise the sub-layer's inputs instead of the sum.
        norm_epsilon: added to the variance by the normalisation.

    Call arguments:
        inputs: (batch, length, dim).
        sublayer: a function from (batch, length, dim) to the same shape.
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Examples:
        >>> tuple(Residual()(keras.ops.zeros((2, 3, 5)), sublayer=keras.ops.relu).shape)
        (2, 3, 5)
    """

    def __init__(self, dropout=0.0, pre_norm=True, norm_epsilon=LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**kwargs)
        check_probability("dropout", dropout)
        check_number("norm_epsilon", norm_epsilon, least=0)
        self.dropout = dropout
        self.pre_norm = pre_norm
        self.norm_epsilon = norm_epsilon
        self.norm = LayerNormalization(
            epsilon=norm_epsilon,
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name="norm",
        )
        self._dropout = ReproducibleDropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, input_shape):
        self.norm.build(input_shape)

    def call(self, inputs, sublayer, training=None):
        return self.wrap(inputs, lambda vectors: (sublayer(vectors), None), training)[0]

    def wrap(self, inputs, sublayer, training=None):
        """Like `call` for a sub-layer that returns a pair, whose second part is passed through."""
        added, extra = sublayer(self.norm(inputs) if self.pre_norm else inputs)
        outputs = inputs + self._dropout(added, training=training)
        return (outputs if self.pre_norm else self.norm(outputs)), extra

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "pre_norm": self.pre_norm,
            "norm_epsilon": self.norm_epsilon,
        }


class TransformerLayer(ShowsAttention, ChecksInputs, KeepsFrozen, TakesLoRA, keras.layers.Layer):
    """What all blocks and stacks have in common: their arguments, config and parts.

    A subclass makes its parts in `create_parts`, called at the end of `__init__`.

    Args:
        num_heads: number of attention heads.
        intermediate_dim: width inside the feed-forward network.
        dropout: probability in [0, 1) of dropping an element of a sub-layer's output.
        attention_dropout: the same for attention weights.
        activation_dropout: the same for the activations of the feed-forward network.
        activation: activation of the feed-forward network, any Keras activation.
        pre_norm: whether to normalise the inputs of each sub-layer, instead of its sum with
            the residual as in the paper.
        attention_pattern: for long sequences, the arguments of a `SparseAttention` that
            replaces the dense self-attention, such as
            {"pattern": "strided", "block_size": 64}; None for dense attention.
        norm_epsilon: added to the variance by every normalisation.
        remat: whether to recompute the activations of a block in the backward pass instead
            of keeping them, which saves memory and costs a second forward pass.
        key_dim: width of each head; None for the width of the inputs divided by `num_heads`.
        use_bias: whether all projections add a bias; None for yes, except in the attention of
            Transformer-XL, which has none in the paper.
        kernel_initializer: initializer of every projection.
    """

    def __init__(
        self,
        num_heads,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        pre_norm=True,
        attention_pattern=None,
        norm_epsilon=LAYER_NORM_EPSILON,
        remat=False,
        key_dim=None,
        use_bias=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        check_integer("intermediate_dim", intermediate_dim)
        check_probability("dropout", dropout)
        check_probability("attention_dropout", attention_dropout)
        check_probability("activation_dropout", activation_dropout)
        check_number("norm_epsilon", norm_epsilon, least=0)
        if key_dim is not None:
            check_integer("key_dim", key_dim)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.pre_norm = pre_norm
        self.attention_pattern = attention_pattern
        self.norm_epsilon = norm_epsilon
        self.remat = remat
        self.key_dim = key_dim
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.create_parts()

    def create_parts(self):
        """Creates the layers of a block; a stack has its blocks instead."""

    def attention(self, name, layer_class=MultiHeadAttention, pattern=None):
        """An attention layer with the arguments of this block, and those of a pattern, a dict."""
        others = dict(pattern or {})
        if self.use_bias is not None:
            others["use_bias"] = self.use_bias
        if self.lora is not None:
            others["lora"] = self.lora
        return layer_class(
            self.num_heads,
            key_dim=self.key_dim,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name=name,
            **others,
        )

    def self_attention_layer(self, causal):
        if self.attention_pattern is None:
            return self.attention("self_attention")
        pattern = {**self.attention_pattern, "causal": causal}
        return self.attention("self_attention", SparseAttention, pattern)

    def feed_forward_network(self):
        return FeedForward(
            self.intermediate_dim,
            self.activation,
            self.activation_dropout,
            use_bias=self.use_bias is not False,
            kernel_initializer=self.kernel_initializer,
            lora=self.lora,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def residual(self, name):
        return Residual(
            self.dropout,
            self.pre_norm,
            self.norm_epsilon,
            trainable=self.trainable and self.lora is None,
            dtype=self.dtype_policy,
            name=name,
        )

    def block_config(self):
        return {
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": keras.activations.serialize(self.activation),
            "pre_norm": self.pre_norm,
            "attention_pattern": self.attention_pattern,
            "norm_epsilon": self.norm_epsilon,
            "remat": self.remat,
            "key_dim": self.key_dim,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def rematerialised(self, function, training, inputs):
        """The pair `function(*inputs)`; with `remat` in training, its first part and None.

        With `remat`, recomputes activations in the backward pass and returns no scores.
        """
        if not (self.remat and training):
            return function(*inputs)
        return _computed_twice(self, lambda *given: function(*given)[0], *inputs), None

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self.block_config()}


class TransformerStack(TransformerLayer):
    """What all stacks have in common: blocks of one class, and the normalisation after them.

    Args:
        num_layers: number of blocks, at least 1.
        num_heads: this and all further arguments are those of `TransformerLayer`.
    """

    block_class = None  # set by a subclass

    def __init__(
        self,
        num_layers,
        num_heads,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        pre_norm=True,
        attention_pattern=None,
        norm_epsilon=LAYER_NORM_EPSILON,
        remat=False,
        key_dim=None,
        use_bias=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            intermediate_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
            activation=activation,
            pre_norm=pre_norm,
            attention_pattern=attention_pattern,
            norm_epsilon=norm_epsilon,
            remat=remat,
            key_dim=key_dim,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        check_integer("num_layers", num_layers)
        self.num_layers = num_layers
        arguments = {**self.block_config(), "lora": self.lora, "trainable": self.trainable}
        arguments["dtype"] = self.dtype_policy
        # A tuple: TensorFlow's checkpoints do not look into the lists of a Keras layer.
        self.blocks = tuple(
            self.block_class(**arguments, name=f"block_{index}") for index in range(num_layers)
        )
        self.norm = None
        if pre_norm:  # the outputs of post-norm blocks are already normalised
            self.norm = LayerNormalization(
                epsilon=norm_epsilon,
                dtype=self.dtype_policy,
                trainable=self.trainable and self.lora is None,
                name="norm",
            )

    def build_blocks(self, shapes):
        """Builds all parts for a list of shapes, which `build` of a subclass names for Keras."""
        for block in self.blocks:
            block.build(*shapes)
        if self.norm is not None:
            self.norm.build(shapes[0])
        self.restore_frozen()

    def finish(self, outputs):
        """The outputs of the stack, from those of the last block."""
        return outputs if self.norm is None else self.norm(outputs)

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}


def _computed_twice(layer, function, *inputs):
    """`function(*inputs)`, a tensor, without keeping activations for the backward pass.

    The function must draw once from each random state of the layer. `keras.remat` alone would
    draw new dropout in the second forward pass, and so return the gradients of a different
    function.
    """
    states = [v for v in layer.variables if "seed_generator" in v.path]
    weights = [v for v in layer.variables if all(v is not state for state in states)]
    drawn = [(state, state.value * 1) for state in states]
    for state, value in drawn:
        # Advanced as by `SeedGenerator.next`: a pair of seed and counter.
        state.assign(value + ops.convert_to_tensor([0, 1], dtype=state.dtype))

    def pure(*given):
        inputs, values = given[: -len(weights)], given[-len(weights) :]
        with keras.StatelessScope([*zip(weights, values, strict=True), *drawn]):
            return function(*inputs)

    return keras.remat(pure)(*inputs, *(weight.value for weight in weights))
