"""What all blocks and stacks of blocks share: their arguments, parts and config."""

import inspect

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_probability
from keras_transformer.layers.attention import MultiHeadAttention, given
from keras_transformer.layers.attention_scores import AttentionScoresMixin
from keras_transformer.layers.checks import InputChecksMixin, check_arguments
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.freezing import FrozenPartsMixin
from keras_transformer.layers.normalization import NORM_EPSILON, create_norm
from keras_transformer.layers.position_bias import create_position_bias
from keras_transformer.layers.projection import LoRAMixin
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.sparse_attention import SparseAttention

# Arguments of an attention that a block passes on under another name, or decides itself.
SET_BY_BLOCKS = {
    "num_heads", "key_dim", "dropout", "kernel_initializer", "lora", "trainable", "dtype", "name",
    "pattern", "block_size", "summary_size", "causal",
}  # fmt: skip


class NotRegistered(ValueError):
    """A config names a class that no imported module has registered."""


class TransformerLayer(
    AttentionScoresMixin, InputChecksMixin, FrozenPartsMixin, LoRAMixin, keras.layers.Layer
):
    """The arguments of all blocks and stacks, and their config.

    Args:
        num_heads: number of attention heads.
        intermediate_dim: width inside the feed-forward network.
        dropout: probability in [0, 1) of dropping an element of a sub-layer's output.
        attention_dropout: the same for attention weights.
        activation_dropout: the same for the activations of the feed-forward network.
        activation: activation of the feed-forward network, any Keras activation.
        normalize_first: whether to normalise the inputs of each sub-layer, instead of its sum with
            the residual as in the paper.
        attention: a registered subclass of `MultiHeadAttention`, such as `AdditiveAttention` or
            your own, or its registered name; None for `MultiHeadAttention` itself. Blocks of
            Transformer-XL take subclasses of `RelativeAttention` instead.
        attention_pattern: for long sequences, the pattern and sizes of a `SparseAttention` that
            replaces the dense self-attention, such as
            {"pattern": "strided", "block_size": 64}; None for dense attention.
        norm_epsilon: added to the variance by every normalisation.
        remat: whether to recompute the activations of a block in the backward pass instead
            of keeping them, which saves memory and costs a second forward pass.
        key_dim: width of each head; None for the width of the inputs divided by `num_heads`.
        use_bias: whether all projections add a bias; None for yes, except in the attention of
            Transformer-XL, which has none in the paper.
        kernel_initializer: initializer of every projection.
        attention_arguments: further arguments of the attention by name, such as
            {"num_key_value_heads": 2, "rotary": {"max_wavelength": 500000}} for
            `MultiHeadAttention`, a dictionary that JSON can hold. An attention to a source, which
            has positions of its own, does not take `rotary`.
        gated: whether the feed-forward network is gated, as of `FeedForward`.
        normalization: "layer", or "rms" for RMS normalisation.
    """

    def __init_subclass__(cls, **kwargs):
        """Lists these arguments in the docstring of a subclass that refers to them."""
        super().__init_subclass__(**kwargs)
        reference = "num_heads: and all further arguments as for `TransformerLayer`."
        if reference in (cls.__doc__ or ""):
            arguments = TransformerLayer.__doc__.partition("Args:\n")[2].strip()
            cls.__doc__ = cls.__doc__.replace(reference, arguments)

    def __init__(
        self,
        *,
        num_heads,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        normalize_first=True,
        attention=None,
        attention_pattern=None,
        norm_epsilon=NORM_EPSILON,
        remat=False,
        key_dim=None,
        use_bias=None,
        kernel_initializer="glorot_uniform",
        attention_arguments=None,
        gated=False,
        normalization="layer",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_probability("attention_dropout", attention_dropout)
        check_probability("activation_dropout", activation_dropout)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.attention = registered_attention(attention)
        self.attention_pattern = attention_pattern
        self.norm_epsilon = norm_epsilon
        self.remat = remat
        self.key_dim = key_dim
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        check_arguments("attention_arguments", attention_arguments)
        self.attention_arguments = attention_arguments
        self.gated = gated
        self.normalization = normalization
        self.supports_masking = True
        self.create_parts()

    def create_parts(self):
        """Creates the layers of a block at the end of `__init__`; a stack has blocks instead."""

    def block_config(self):
        """The arguments of a block by name, as JSON can hold them."""
        own = self.attention
        return {
            **{name: getattr(self, name) for name in BLOCK_ARGUMENTS},
            "activation": keras.activations.serialize(self.activation),
            "attention": None if own is None else keras.saving.get_registered_name(own),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def get_config(self):
        return {**super().get_config(), **self.block_config()}

    @classmethod
    def from_config(cls, config):
        registered_attention(config.get("attention"))  # before Keras makes all errors one TypeError
        return super().from_config(config)


# {name: parameter} of the arguments that a block declares and a stack hands on.
BLOCK_ARGUMENTS = {
    name: parameter
    for name, parameter in inspect.signature(TransformerLayer.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


def shows_block_arguments(init):
    """A decorator: `help` shows the arguments of a block in place of `**block_arguments`."""
    *own, others = inspect.signature(init).parameters.values()
    others = others.replace(name="kwargs")  # those of Keras
    init.__signature__ = inspect.Signature([*own, *BLOCK_ARGUMENTS.values(), others])
    return init


class TransformerBlock(TransformerLayer):
    """Self-attention and a feed-forward network, each with a residual connection around it."""

    causal = False  # whether no position attends to later ones
    attention_class = MultiHeadAttention  # without an `attention_pattern`
    stepwise_methods = ()  # those that the block needs of its attention

    def create_parts(self):
        self._check_attention()
        if self.attention_pattern is None:
            self.self_attention = self._create_attention("self_attention")
        else:
            self._check_pattern()
            pattern = {**self.attention_pattern, "causal": self.causal}
            self.self_attention = self._create_attention(
                "self_attention", SparseAttention, **pattern
            )
        self.feed_forward = self.create_feed_forward()
        self.around_self_attention = self.create_residual("around_self_attention")
        self.around_feed_forward = self.create_residual("around_feed_forward")

    def create_feed_forward(self):
        """The network after the attention, called with vectors and `training`; may be another."""
        return FeedForward(
            self.intermediate_dim,
            self.activation,
            self.activation_dropout,
            use_bias=self.use_bias is not False,
            kernel_initializer=self.kernel_initializer,
            gated=self.gated,
            lora=self.lora,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _check_attention(self):
        """Raises ValueError for an `attention` that these blocks cannot have."""
        own, ours = self.attention, self.attention_class
        if own is None:
            return
        if not (isinstance(own, type) and issubclass(own, ours)):
            raise ValueError(
                f"attention must be a subclass of {ours.__name__}, or its registered name. "
                f"Received: attention={getattr(own, '__name__', own)}."
            )
        if own is SparseAttention:
            raise ValueError(
                "A sparse attention is chosen by its attention_pattern, not by its class. "
                f"Received: attention={own.__name__}."
            )
        if own.causal and not self.causal:
            raise ValueError(
                "This attention is causal: no position would attend to later ones, as in a "
                f"decoder. Choose another for {type(self).__name__}. "
                f"Received: attention={own.__name__}."
            )
        if self.attention_pattern is not None:
            raise ValueError(
                "An attention_pattern chooses an attention of its own. Give one of the two. "
                f"Received: attention={own.__name__}, attention_pattern={self.attention_pattern}."
            )
        if keras.saving.get_registered_object(keras.saving.get_registered_name(own)) is not own:
            raise ValueError(
                "attention must be registered, or no saved model could be loaded. Decorate the "
                "class with keras.saving.register_keras_serializable(). "
                f"Received: attention={own.__name__}."
            )
        if not set(self.stepwise_methods) <= set(own.stepwise_methods):
            raise ValueError(
                f"{type(self).__name__} decodes with {' and '.join(self.stepwise_methods)} of its "
                "attention. Choose one that lists them in its stepwise_methods, or override them "
                f"in yours and list them there. Received: attention={own.__name__} with "
                f"stepwise_methods={own.stepwise_methods}."
            )

    def _check_pattern(self):
        """Raises ValueError for arguments of a pattern that the block sets, or otherwise."""
        pattern = self.attention_pattern
        check_arguments("attention_pattern", pattern)
        others = SET_BY_BLOCKS - {"pattern", "block_size", "summary_size"}
        others |= (self.attention_arguments or {}).keys()
        if self.use_bias is not None:
            others |= {"use_bias"}
        if pattern.get("causal") == self.causal:
            others -= {"causal"}
        both = sorted(pattern.keys() & others)
        if both:
            raise ValueError(
                "An attention_pattern has pattern, block_size and summary_size, and the block "
                f"sets all else, also whether it is causal. Leave {', '.join(both)} out of the "
                f"pattern. Received: attention_pattern={pattern} for {type(self).__name__}."
            )

    def _create_attention(self, name, layer_class=None, **arguments):
        """An attention layer with the arguments of this block, and some of its own."""
        layer_class = layer_class or self.attention or self.attention_class
        own = dict(self.attention_arguments or {})
        if name != "self_attention":  # to a source, which has positions of its own
            own.pop("rotary", None)
        if self.use_bias is not None:
            arguments["use_bias"] = self.use_bias
        if self.lora is not None:
            arguments["lora"] = self.lora
        arguments = {
            "key_dim": self.key_dim,
            "dropout": self.attention_dropout,
            "kernel_initializer": self.kernel_initializer,
            "trainable": self.trainable,
            "dtype": self.dtype_policy,
            "name": name,
            **arguments,
        }
        both = sorted(own.keys() & SET_BY_BLOCKS)
        if both:
            raise ValueError(
                f"attention_arguments are those that a block does not set itself. Give it "
                f"{', '.join(both)} as its own. Received: attention_arguments={own}."
            )
        try:
            return layer_class(self.num_heads, **{**arguments, **own})
        except TypeError as error:
            if layer_class is not self.attention and not own:
                raise
            raise ValueError(
                "The constructor of an attention must take the arguments of MultiHeadAttention "
                "and the attention_arguments, and no others without a default. Received: "
                f"attention={layer_class.__name__}, attention_arguments={own}, which raised: "
                f"{error}"
            ) from error

    def create_residual(self, name):
        return Residual(
            self.dropout,
            self.normalize_first,
            self.norm_epsilon,
            self.normalization,
            trainable=self.trainable and self.lora is None,
            dtype=self.dtype_policy,
            name=name,
        )

    def build_parts(self, shape):
        self.self_attention.build(shape)
        self.feed_forward.build(shape)
        self.around_self_attention.build(shape)
        self.around_feed_forward.build(shape)

    def rematerialised(self, function, training, inputs, others):
        """`function(inputs, **others)`, of a dictionary of tensors; what is None is left out.

        With `remat` in training, the backward pass recomputes it.
        """
        others = given(others)
        if "attention_bias" in others and self.attention_pattern is not None:
            raise ValueError(
                "A sparse pattern has no attention_bias. Received: an attention_bias for "
                f"{self.name}, whose attention_pattern is {self.attention_pattern}."
            )
        if not (self.remat and training):
            return function(inputs, **others)

        def positional(inputs, *tensors):
            return function(inputs, **dict(zip(others, tensors, strict=True)))

        return _rematerialised(self, positional, inputs, *others.values())

    def _attended(self, inputs, attention, residual, *sources, training=None, **masks):
        """An attention of `inputs`, to themselves or to a source, with the residual around it."""
        outputs = attention(residual.before(inputs), *sources, training=training, **masks)
        return residual(inputs, outputs, training=training)

    def feed_forward_step(self, inputs, training=None):
        """The feed-forward network with the residual connection around it."""
        residual = self.around_feed_forward
        outputs = self.feed_forward(residual.before(inputs), training=training)
        return residual(inputs, outputs, training=training)

    def scores_in(self, recorded):
        return self.self_attention.scores_in(recorded)


class TransformerStack(TransformerLayer):
    """Blocks of one class and, after pre-norm blocks, a layer normalisation."""

    block_class = None  # set by a subclass

    @shows_block_arguments
    def __init__(self, num_layers, *, position_bias=None, **block_arguments):
        super().__init__(**block_arguments)
        check_integer("num_layers", num_layers)
        self.num_layers = num_layers
        if position_bias is not None and (
            self.attention_pattern is not None or not self.block_class.attention_class.takes_bias
        ):
            raise ValueError(
                "Sparse patterns and Transformer-XL have no position_bias. Received: "
                f"position_bias={position_bias}, attention_pattern={self.attention_pattern} for "
                f"{type(self).__name__}."
            )
        self.position_bias = position_bias
        self.shared_bias = create_position_bias(
            position_bias,
            num_heads=self.num_heads,
            causal=self.block_class.causal,
            trainable=self.trainable and self.lora is None,
            dtype=self.dtype_policy,
            name="position_bias",
        )
        arguments = {**self.block_config(), "lora": self.lora, "trainable": self.trainable}
        arguments |= {"attention": self.attention, "dtype": self.dtype_policy}
        # A tuple: TensorFlow's checkpoints do not look into the lists of a Keras layer.
        self.blocks = tuple(
            self.block_class(**arguments, name=f"block_{index}") for index in range(num_layers)
        )
        own = self.attention
        if position_bias is not None and own is not None and not own.takes_bias:
            raise ValueError(
                "With a position_bias, an attention that overrides call or step must accept "
                "attention_bias there, and say so with takes_bias = True. "
                f"Received: attention={own.__name__}."
            )
        self.norm = None
        if self.normalize_first:  # the outputs of post-norm blocks are already normalised
            self.norm = create_norm(
                self.normalization,
                self.norm_epsilon,
                dtype=self.dtype_policy,
                trainable=self.trainable and self.lora is None,
                name="norm",
            )

    def build_blocks(self, shapes):
        """Builds all parts for a list of shapes, which `build` of a subclass names for Keras."""
        if self.shared_bias is not None:
            self.shared_bias.build(shapes[0])
        for block in self.blocks:
            block.build(*shapes)
        if self.norm is not None:
            self.norm.build(shapes[0])
        self.restore_frozen()

    def empty_cache(self, batch_size, length=None, num_beams=1):
        """The cache before the first step of causal blocks: a list with that of each attention.

        Args:
            batch_size: as for `MultiHeadAttention.empty_cache`, and so are the others.
            length: number of steps to make room for, or None.
            num_beams: number of beams per row.
        """
        return [
            block.self_attention.empty_cache(batch_size, length, num_beams) for block in self.blocks
        ]

    def bias_of(self, inputs, attention_bias=None):
        """The `attention_bias` of all blocks for a call, by name; nothing if there is none."""
        if self.shared_bias is not None:
            if attention_bias is None and self.attention is None:  # which sees each chunk's own
                own = self.shared_bias.of_distances(ops.shape(inputs)[1])
            else:
                own = self.shared_bias(inputs)
            attention_bias = own if attention_bias is None else own + attention_bias
        return given({"attention_bias": attention_bias})

    def bias_of_step(self, inputs, cache, position=None):
        """The same for a step with the cache of the blocks, whose items may be None."""
        if self.shared_bias is None or cache[0] is None:
            return self.bias_of(inputs)
        num_beams, columns = inputs.shape[1], ops.shape(cache[0][0])[2]
        if position is None:
            position, columns = columns // num_beams, columns + num_beams
        return {"attention_bias": self.shared_bias.step(position, columns, num_beams)}

    def finish(self, outputs):
        """The outputs of the stack, from those of the last block."""
        return outputs if self.norm is None else self.norm(outputs)

    def scores_in(self, recorded):
        return [block.scores_in(recorded) for block in self.blocks]

    def get_config(self):
        own = {"num_layers": self.num_layers, "position_bias": self.position_bias}
        return {**super().get_config(), **own}


def registered_attention(attention):
    """The class of an `attention`: None, a class, or a registered name.

    The package of the name may be missing if no other has an attention of that name.

    Raises:
        NotRegistered: if no class has the name, or several have.
    """
    if attention is None or isinstance(attention, type):
        return attention
    registered = keras.saving.get_registered_object(str(attention))
    if registered is not None:
        return registered
    known = {
        name: each
        for name, each in keras.saving.get_custom_objects().items()
        if isinstance(each, type) and issubclass(each, MultiHeadAttention)
    }
    same = [each for name, each in known.items() if name.rpartition(">")[2] == attention]
    if len(same) != 1:
        raise NotRegistered(
            f"{'Several attentions are' if same else 'No attention is'} registered as {attention}. "
            "Import the module that registers yours first; in a command, with --import. "
            f"The registered classes are {', '.join(known)}."
        )
    return same[0]


def _rematerialised(layer, function, *inputs):
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

    def pure(*inputs_and_weights):
        inputs, values = inputs_and_weights[: -len(weights)], inputs_and_weights[-len(weights) :]
        with keras.StatelessScope([*zip(weights, values, strict=True), *drawn]):
            return function(*inputs)

    return keras.remat(pure)(*inputs, *(weight.value for weight in weights))
