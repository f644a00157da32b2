"""The encoder: blocks of self-attention and feed-forward network, and their stack."""

import keras

from keras_transformer.layers.block import TransformerBlock, TransformerStack
from keras_transformer.layers.checks import check_per_token, implicit_mask
from keras_transformer.ops.segments import within_segments


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(TransformerBlock):
    """Self-attention, then a feed-forward network, each with a residual connection.

    Source: Vaswani et al. 2017, section 3.1 (https://arxiv.org/abs/1706.03762);
    pre-norm: Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).

    Args:
        num_heads: and all further arguments as for `TransformerLayer`.

    Call arguments:
        inputs: (batch, length, dim).
        padding_mask: boolean (batch, length), True for a real token; the implicit Keras
            mask of `inputs` if None.
        attention_mask: boolean, broadcasts to (batch, length, length); True where
            attention is allowed. None with an `attention_pattern`.
        attention_bias: added to the logits of the attention, broadcasts to (batch, heads, length,
            length), or None.
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if the width of the inputs cannot be divided by `num_heads`; if there are
            both an `attention_pattern` and an `attention_mask` or an `attention`; if the
            `attention` is not registered, or is no such subclass; for an `attention_pattern` that
            sets what the block does.

    Examples:
        >>> block = EncoderBlock(num_heads=2, intermediate_dim=7)
        >>> tuple(block(keras.ops.zeros((3, 5, 4))).shape)
        (3, 5, 4)
    """

    def build(self, input_shape):
        self._build_for(inputs=input_shape)
        self.build_parts(input_shape)

    def call(
        self, inputs, padding_mask=None, attention_mask=None, attention_bias=None, training=None
    ):
        self._check_inputs(inputs=inputs)
        padding_mask = implicit_mask(inputs, padding_mask)

        def forward(inputs, **bias):
            outputs = self._attended(
                inputs,
                self.self_attention,
                self.around_self_attention,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                training=training,
                **bias,
            )
            return self.feed_forward_step(outputs, training)

        return self.rematerialised(forward, training, inputs, {"attention_bias": attention_bias})


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TransformerStack):
    """A stack of encoder blocks; a pre-norm stack ends with a normalisation.

    Source: Vaswani et al. 2017, section 3.1 (https://arxiv.org/abs/1706.03762).

    Args:
        num_layers: number of blocks, at least 1.
        num_heads: and all further arguments as for `TransformerLayer`.
        position_bias: the arguments of a bias by distance that all blocks share, a dictionary with
            the type "t5" for those of `RelativePositionBias`, or "alibi"; None for none.

    Call arguments:
        segments: for rows that hold several texts, the number of each token's text, (batch,
            length): no text attends to another. None for one text.
        The others as for `EncoderBlock`.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `num_layers` is below 1.

    Examples:
        >>> encoder = Encoder(num_layers=3, num_heads=2, intermediate_dim=7)
        >>> tuple(encoder(keras.ops.zeros((3, 5, 4))).shape)
        (3, 5, 4)
    """

    block_class = EncoderBlock

    def build(self, inputs_shape):
        self._build_for(inputs=inputs_shape)
        self.build_blocks([inputs_shape])

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        attention_bias=None,
        segments=None,
        training=None,
    ):
        self._check_inputs(inputs=inputs)
        check_per_token("segments", segments, inputs)
        masks = {"padding_mask": implicit_mask(inputs, padding_mask)}
        masks["attention_mask"] = within_segments(attention_mask, segments, segments)
        masks |= self.bias_of(inputs, attention_bias)
        outputs = inputs
        for block in self.blocks:
            outputs = block(outputs, **masks, training=training)
        return self.finish(outputs)
