"""The blocks of Transformer-XL, and the stack that accepts and returns a memory for each."""

import keras
from keras import ops

from keras_transformer.layers.attention import scores_of
from keras_transformer.layers.block import TransformerLayer, TransformerStack
from keras_transformer.layers.relative_attention import RelativeAttention, memory_padding_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXLBlock(TransformerLayer):
    """Relative attention to a memory and the past, then a feed-forward network.

    Source: Dai et al. 2019, section 3.3 (https://arxiv.org/abs/1901.02860).

    Args:
        num_heads: and all further arguments as for `EncoderBlock`.

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
        ValueError: if the width of the inputs is odd or cannot be divided by `num_heads`.

    Examples:
        >>> block = TransformerXLBlock(num_heads=2, intermediate_dim=7)
        >>> tuple(block(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 2, 4))).shape)
        (3, 5, 4)
    """

    def create_parts(self):
        if self.attention_pattern is not None:
            raise ValueError(
                "Transformer-XL attends to all of its memory and has no attention_pattern. "
                f"Received: attention_pattern={self.attention_pattern}."
            )
        self.self_attention = self.attention("self_attention", RelativeAttention)
        self.feed_forward = self.feed_forward_network()
        self.around_self_attention = self.residual("around_self_attention")
        self.around_feed_forward = self.residual("around_feed_forward")

    def build(self, inputs_shape, memory_shape=None):
        self._build_for(inputs=inputs_shape, memory=inputs_shape)
        for part in (
            self.self_attention,
            self.feed_forward,
            self.around_self_attention,
            self.around_feed_forward,
        ):
            part.build(inputs_shape)

    def call(self, inputs, memory=None, padding_mask=None, attention_mask=None, training=None):
        return self.attend(inputs, memory, padding_mask, attention_mask, training)[0]

    def attention_scores(self, inputs, memory=None, padding_mask=None, attention_mask=None):
        """The weights of a call with the same arguments, (batch, heads, target, source)."""
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return scores_of(self, inputs, memory, **masks)

    def attend(self, inputs, memory=None, padding_mask=None, attention_mask=None, training=None):
        """The pair of what `call` and what `attention_scores` return."""
        self._check_inputs(inputs=inputs, memory=memory)
        padding_mask = memory_padding_mask(inputs, memory, padding_mask)

        def forward(inputs, memory=None):
            if memory is not None and self.pre_norm:
                memory = self.around_self_attention.norm(memory)
            return self._forward(
                inputs,
                lambda vectors: self.self_attention.attend(
                    vectors, memory, padding_mask, attention_mask, training
                ),
                training,
            )

        given = [inputs] if memory is None else [inputs, memory]
        return self.rematerialised(forward, training, given)

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        return inputs_shape

    def step(self, inputs, cache, mask, position=None):
        """One position for several beams of each row, as of `RelativeAttention.step`."""
        return self._forward(inputs, lambda x: self.self_attention.step(x, cache, mask, position))

    def _forward(self, inputs, self_attention, training=None):
        """The attention is a function from vectors to a pair of vectors and something else."""
        outputs, extra = self.around_self_attention.wrap(inputs, self_attention, training)
        outputs = self.around_feed_forward(outputs, sublayer=self.feed_forward, training=training)
        return outputs, extra


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXL(TransformerStack):
    """A stack of Transformer-XL blocks; a pre-norm stack ends with a layer normalisation.

    A memory holds the inputs of a block for earlier tokens. No gradient flows into it.

    Source: Dai et al. 2019, section 3.2 (https://arxiv.org/abs/1901.02860).

    Args:
        num_layers: number of blocks, at least 1.
        num_heads: and all further arguments as for `EncoderBlock`.

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
        ValueError: if `num_layers` is below 1.

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
        return self.attend(inputs, memories, padding_mask, attention_mask, training)[0]

    def attention_scores(self, inputs, memories=None, padding_mask=None, attention_mask=None):
        """The weights of a call with the same arguments, a list with one tensor a block."""
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        return scores_of(self, inputs, memories, **masks)

    def attend(self, inputs, memories=None, padding_mask=None, attention_mask=None, training=None):
        """The pair of what `call` and what `attention_scores` return."""
        memories = [None] * self.num_layers if memories is None else memories
        if len(memories) != self.num_layers:
            raise ValueError(
                "memories must be a list with one tensor for each block. "
                f"Received: {len(memories)} memories for {self.num_layers} blocks."
            )
        for memory in memories:
            self._check_inputs(inputs=inputs, memory=memory)
        padding_mask = memory_padding_mask(inputs, memories[0], padding_mask)
        outputs, longer, scores = inputs, [], []
        for block, memory in zip(self.blocks, memories, strict=True):
            memory = None if memory is None else ops.stop_gradient(memory)
            past = outputs if memory is None else ops.concatenate([memory, outputs], axis=1)
            longer.append(ops.stop_gradient(past))
            outputs, weights = block.attend(outputs, memory, padding_mask, attention_mask, training)
            scores.append(weights)
        return (self.finish(outputs), longer), scores

    def empty_cache(self, batch_size, length=None, num_beams=1):
        """The cache before the first step, as of `RelativeAttention.empty_cache`, one a block."""
        return [
            block.self_attention.empty_cache(batch_size, length, num_beams) for block in self.blocks
        ]

    def step(self, inputs, cache, mask, position=None):
        """One position for several beams of each row.

        Args:
            inputs: vectors at the newest position, (batch, beams, dim).
            cache: what `empty_cache` or the step before returned.
            mask: boolean (batch, beams, cached + beams), as of `ops.masks.beam_mask`; None
                if there is one beam.
            position: as for `MultiHeadAttention.step`.

        Returns:
            The pair of outputs, (batch, beams, dim), and the cache, longer if it grows.
        """
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
