"""The decoder: blocks that look back at the target and across to the source, and their stack.

`source_keys_values` computes once what stays the same while a translation grows; `step` then
processes one more token for every beam. Without a source, the blocks are those of a causal
language model.
"""

import keras
from keras import ops

from keras_transformer.layers.attention import given
from keras_transformer.layers.block import TransformerBlock, TransformerStack
from keras_transformer.layers.checks import check_per_token, implicit_mask
from keras_transformer.ops.masks import as_attention_mask, causal_mask, combine_masks
from keras_transformer.ops.segments import within_segments


class SourceCallMixin:
    """For layers that are called with inputs and, if they were built with one, a source."""

    def padding_masks(self, inputs, source, padding_mask, source_padding_mask, source_mask):
        """Checks the arguments of a call and returns the padding masks of inputs and source."""
        self._check_inputs(inputs=inputs, source=source)
        if source is not None:
            name = "source_padding_mask"
            source_padding_mask = implicit_mask(source, source_padding_mask, name)
        elif self.has_source:
            raise ValueError(
                "The layer was built with a source, which it must have in every call. Without one "
                "it would attend to its own future. Give one, or make another layer. "
                f"Received: source=None for {self.name}."
            )
        elif source_padding_mask is not None or source_mask is not None:
            raise ValueError(
                "Masks of a source need one. Give it, or leave out source_padding_mask, "
                f"source_attention_mask and source_segments. Received: source=None for {self.name}."
            )
        return implicit_mask(inputs, padding_mask), source_padding_mask

    @property
    def has_source(self):
        """Whether the layer was built with a source."""
        return "source" in (self._widths or {})


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(SourceCallMixin, TransformerBlock):
    """Causal self-attention, attention to the source, then a feed-forward network.

    If it is built without a source, as in a language model, it has no attention to a source.

    Source: Vaswani et al. 2017, section 3.1 (https://arxiv.org/abs/1706.03762);
    pre-norm: Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).

    Args:
        num_heads: and all further arguments as for `TransformerLayer`.

    Call arguments:
        inputs: (batch, target, dim).
        source: outputs of the encoder, (batch, source, source_dim); None if there is none.
        padding_mask: boolean (batch, target), True for a real token; the implicit Keras
            mask of `inputs` if None.
        source_padding_mask: the same for `source`, (batch, source).
        attention_mask: boolean, broadcasts to (batch, target, target); further limits the
            self-attention, which is always causal; None with an `attention_pattern`.
        source_attention_mask: boolean, broadcasts to (batch, target, source); limits the
            attention to the source, or None.
        attention_bias: added to the logits of the self-attention, broadcasts to (batch, heads,
            target, target), or None.
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if the width of the inputs cannot be divided by `num_heads`, or there are
            both an `attention_pattern` and an `attention_mask`; if there is a source in some
            calls only; for inputs or masks of another rank or width; as `EncoderBlock` for an
            `attention`, also one whose `stepwise_methods` lack `step` or `attend_to`.

    Examples:
        >>> block = DecoderBlock(num_heads=2, intermediate_dim=7)
        >>> tuple(block(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 2, 4))).shape)
        (3, 5, 4)
    """

    causal = True
    stepwise_methods = ("step", "attend_to")

    def create_parts(self):
        super().create_parts()
        self.cross_attention = self.around_cross_attention = None

    def build(self, inputs_shape, source_shape=None):
        self._build_for(inputs=inputs_shape, source=source_shape)
        if source_shape is not None:
            self.cross_attention = self._create_attention("cross_attention")
            self.around_cross_attention = self.create_residual("around_cross_attention")
            self.cross_attention.build(inputs_shape, source_shape)
        self.restore_frozen()
        self.build_parts(inputs_shape)
        if source_shape is not None:
            self.around_cross_attention.build(inputs_shape)

    def call(
        self,
        inputs,
        source=None,
        padding_mask=None,
        source_padding_mask=None,
        attention_mask=None,
        source_attention_mask=None,
        attention_bias=None,
        training=None,
    ):
        padding_mask, source_padding_mask = self.padding_masks(
            inputs, source, padding_mask, source_padding_mask, source_attention_mask
        )
        # A pattern is causal by itself, which also saves the time and memory of a mask.
        if self.attention_pattern is None:
            attention_mask = combine_masks(
                causal_mask(ops.shape(inputs)[1]), as_attention_mask(attention_mask)
            )

        def forward(inputs, source=None, **bias):
            outputs = self._attended(
                inputs,
                self.self_attention,
                self.around_self_attention,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                training=training,
                **bias,
            )
            if source is not None:
                outputs = self._attended(
                    outputs,
                    self.cross_attention,
                    self.around_cross_attention,
                    source,
                    padding_mask=source_padding_mask,
                    attention_mask=source_attention_mask,
                    training=training,
                )
            return self.feed_forward_step(outputs, training)

        others = {"source": source, "attention_bias": attention_bias}
        return self.rematerialised(forward, training, inputs, others)

    def source_keys_values(self, source):
        """The keys and values of the source, each (batch, heads, source, key_dim)."""
        if source is None:
            return None
        return self.cross_attention.keys_values(source)

    def step(
        self,
        inputs,
        source_keys_values,
        source_padding_mask,
        cache,
        mask,
        position=None,
        attention_bias=None,
    ):
        """One position for several beams of each row, the same computation as in a call.

        Args:
            inputs: vectors at the newest position, (batch, beams, dim).
            source_keys_values: what the method of that name returned.
            source_padding_mask: boolean (batch, source), or None.
            cache: the pair of keys and values of the earlier steps, each
                (batch, heads, cached, key_dim); None as for `MultiHeadAttention.step`.
            mask: boolean (batch, beams, cached + beams), as of `ops.masks.beam_mask`; None if
                there is one beam.
            position: as for `MultiHeadAttention.step`, and so is an `attention_bias`.

        Returns:
            The pair of outputs, (batch, beams, dim), and the cache, longer by `beams` if it grows.
        """
        residual, bias = self.around_self_attention, given({"attention_bias": attention_bias})
        attended, cache = self.self_attention.step(
            residual.before(inputs), cache, mask, position, **bias
        )
        outputs = residual(inputs, attended)
        if self.cross_attention is not None:
            residual = self.around_cross_attention
            # Beams take the place of target positions, so the source is not repeated for each.
            attended = self.cross_attention.attend_to(
                residual.before(outputs), *source_keys_values, combine_masks(source_padding_mask)
            )
            outputs = residual(outputs, attended)
        return self.feed_forward_step(outputs), cache

    def scores_in(self, recorded):
        cross = self.cross_attention
        return super().scores_in(recorded), None if cross is None else cross.scores_in(recorded)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(SourceCallMixin, TransformerStack):
    """A stack of decoder blocks; a pre-norm stack ends with a normalisation.

    Source: Vaswani et al. 2017, section 3.1 (https://arxiv.org/abs/1706.03762).

    Args:
        num_layers: number of blocks, at least 1.
        num_heads: and all further arguments as for `TransformerLayer`.
        position_bias: as for `Encoder`.

    Call arguments:
        segments: for rows that hold several texts, the number of each token's text, (batch,
            target): no text attends to another. None for one text.
        source_segments: the same for `source`, (batch, source), whose texts have the same numbers.
        The others as for `DecoderBlock`.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `num_layers` is below 1.

    Examples:
        >>> decoder = Decoder(num_layers=3, num_heads=2, intermediate_dim=7)
        >>> tuple(decoder(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 2, 4))).shape)
        (3, 5, 4)
    """

    block_class = DecoderBlock

    def build(self, inputs_shape, source_shape=None):
        self._build_for(inputs=inputs_shape, source=source_shape)
        self.build_blocks([inputs_shape, source_shape])

    def call(
        self,
        inputs,
        source=None,
        padding_mask=None,
        source_padding_mask=None,
        attention_mask=None,
        source_attention_mask=None,
        attention_bias=None,
        segments=None,
        source_segments=None,
        training=None,
    ):
        source_mask = source_segments if source_attention_mask is None else source_attention_mask
        padding_mask, source_padding_mask = self.padding_masks(
            inputs, source, padding_mask, source_padding_mask, source_mask
        )
        check_per_token("segments", segments, inputs)
        attention_mask = within_segments(attention_mask, segments, segments)
        if source is not None:
            check_per_token("source_segments", source_segments, source)
            source_attention_mask = within_segments(
                source_attention_mask, segments, source_segments
            )
        outputs, bias = inputs, self.bias_of(inputs, attention_bias)
        for block in self.blocks:
            outputs = block(
                outputs,
                source,
                padding_mask=padding_mask,
                source_padding_mask=source_padding_mask,
                attention_mask=attention_mask,
                source_attention_mask=source_attention_mask,
                training=training,
                **bias,
            )
        return self.finish(outputs)

    def source_keys_values(self, source):
        """What `step` needs of the source: a pair of keys and values per block, or None."""
        return [block.source_keys_values(source) for block in self.blocks]

    def step(self, inputs, source_keys_values, source_padding_mask, cache, mask, position=None):
        """One position for several beams of each row: `DecoderBlock.step` of each block.

        Args:
            inputs: vectors at the newest position, (batch, beams, dim).
            source_keys_values: what the method of that name returned.
            source_padding_mask: as for `DecoderBlock.step`.
            cache: what `empty_cache` or the step before returned; None as for
                `MultiHeadAttention.step`.
            mask: as for `DecoderBlock.step`.
            position: as for `MultiHeadAttention.step`.

        Returns:
            The pair of outputs, (batch, beams, dim), and the cache, longer by `beams` if it grows.
        """
        cache = [None] * self.num_layers if cache is None else cache
        outputs, longer = inputs, []
        bias = self.bias_of_step(inputs, cache, position)
        for block, keys_values, block_cache in zip(
            self.blocks, source_keys_values, cache, strict=True
        ):
            outputs, grown = block.step(
                outputs, keys_values, source_padding_mask, block_cache, mask, position, **bias
            )
            longer.append(grown)
        return self.finish(outputs), longer
