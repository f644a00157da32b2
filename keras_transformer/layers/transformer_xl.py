"""The blocks of Transformer-XL, and the stack that accepts and returns a memory for each."""

import keras
from keras import ops

from keras_transformer.layers.block import TransformerBlock, TransformerStack
from keras_transformer.layers.relative_attention import RelativeAttention, memory_padding_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXLBlock(TransformerBlock):
    """Relative attention to a memory and the past, then a feed-forward network.

    Source: Dai et al. 2019, section 3.3 (https://arxiv.org/abs/1901.02860).

    Args:
        num_heads: and all further arguments as for `TransformerLayer`.

    Call arguments:
        inputs: (batch, target, dim), dim even.
        memory: earlier inputs of this block, (batch, past, dim), or None.
        padding_mask: boolean (batch, past + target), True for a real token. If None, the
            implicit Keras mask of `inputs`, and all of the memory, are used.
        attention_mask: boolean, broadcasts to (batch, target, past + target); further limits
            the attention, which is always causal.
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if the width of the inputs is odd or cannot be divided by `num_heads`; for an
            `attention_pattern`.

    Examples:
        >>> block = TransformerXLBlock(num_heads=2, intermediate_dim=7)
        >>> tuple(block(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 2, 4))).shape)
        (3, 5, 4)
    """

    causal = True
    attention_class = RelativeAttention
    stepwise_methods = ("step",)

    def create_parts(self):
        if self.attention_pattern is not None:
            raise ValueError(
                "Transformer-XL attends to all of its memory and has no attention_pattern. "
                f"Received: attention_pattern={self.attention_pattern}."
            )
        super().create_parts()

    def build(self, inputs_shape, memory_shape=None):
        self._build_for(inputs=inputs_shape, memory=inputs_shape)
        self.build_parts(inputs_shape)

    def call(self, inputs, memory=None, padding_mask=None, attention_mask=None, training=None):
        self._check_inputs(inputs=inputs, memory=memory)
        padding_mask = memory_padding_mask(inputs, memory, padding_mask)

        def forward(inputs, memory=None):
            residual = self.around_self_attention
            outputs = self._attended(
                inputs,
                self.self_attention,
                residual,
                None if memory is None else residual.before(memory),
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                training=training,
            )
            return self.feed_forward_step(outputs, training)

        return self.rematerialised(forward, training, inputs, {"memory": memory})

    def step(self, inputs, cache, mask, position=None):
        """One position for several beams of each row, as of `RelativeAttention.step`."""
        residual = self.around_self_attention
        attended, cache = self.self_attention.step(residual.before(inputs), cache, mask, position)
        return self.feed_forward_step(residual(inputs, attended)), cache


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXL(TransformerStack):
    """A stack of Transformer-XL blocks; a pre-norm stack ends with a layer normalisation.

    A memory holds the inputs of a block for earlier tokens. No gradient flows into it.

    Source: Dai et al. 2019, section 3.2 (https://arxiv.org/abs/1901.02860).

    Args:
        num_layers: number of blocks, at least 1.
        num_heads: and all further arguments as for `TransformerLayer`.
        position_bias: None; the attention sees distances.

    Call arguments:
        inputs: (batch, target, dim), dim even.
        memories: a list with one tensor (batch, past, dim) per block, or None.
        padding_mask: as for `TransformerXLBlock`.
        attention_mask: as for `TransformerXLBlock`.
        training: whether dropout is applied.

    Returns:
        The pair of outputs, in the shape of `inputs`, and memories, a list with one tensor
        (batch, past + target, dim) per block. Pass the newest positions, as many as you want,
        to the call for the next segment.

    Raises:
        ValueError: if `num_layers` is below 1; for an `attention_pattern` or a `position_bias`.

    Examples:
        >>> stack = TransformerXL(num_layers=3, num_heads=2, intermediate_dim=7)
        >>> _, memories = stack(keras.ops.zeros((2, 5, 4)))
        >>> outputs, memories = stack(keras.ops.zeros((2, 5, 4)), memories)
        >>> tuple(outputs.shape), [tuple(memory.shape) for memory in memories]
        ((2, 5, 4), [(2, 10, 4), (2, 10, 4), (2, 10, 4)])
    """

    block_class = TransformerXLBlock

    def build(self, inputs_shape, memories_shape=None):
        self._build_for(inputs=inputs_shape, memory=inputs_shape)
        self.build_blocks([inputs_shape])

    def call(self, inputs, memories=None, padding_mask=None, attention_mask=None, training=None):
        memories = [None] * self.num_layers if memories is None else memories
        if len(memories) != self.num_layers:
            raise ValueError(
                "memories must be a list with one tensor for each block. "
                f"Received: {len(memories)} memories for {self.num_layers} blocks."
            )
        for memory in memories:
            self._check_inputs(inputs=inputs, memory=memory)
        masks = {"padding_mask": memory_padding_mask(inputs, memories[0], padding_mask)}
        masks["attention_mask"] = attention_mask
        outputs, longer = inputs, []
        for block, memory in zip(self.blocks, memories, strict=True):
            memory = None if memory is None else ops.stop_gradient(memory)
            past = outputs if memory is None else ops.concatenate([memory, outputs], axis=1)
            longer.append(ops.stop_gradient(past))
            outputs = block(outputs, memory, **masks, training=training)
        return self.finish(outputs), longer

    def step(self, inputs, cache, mask, position=None):
        """One position for several beams of each row, as of `RelativeAttention.step`.

        The cache is a list of what `empty_cache` or the step before returned, one for each block,
        or None.
        """
        cache = [None] * self.num_layers if cache is None else cache
        outputs, longer = inputs, []
        for block, block_cache in zip(self.blocks, cache, strict=True):
            outputs, grown = block.step(outputs, block_cache, mask, position)
            longer.append(grown)
        return self.finish(outputs), longer

    def compute_output_shape(self, inputs_shape, memories_shape=None):
        past = memories_shape[0][1] if memories_shape else 0
        target = inputs_shape[1]
        source = None if past is None or target is None else past + target
        memory_shape = (inputs_shape[0], source, inputs_shape[2])
        return inputs_shape, [memory_shape] * self.num_layers
