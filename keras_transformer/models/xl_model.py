"""Transformer-XL, a language model with a memory of earlier segments."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.segment_recurrence import SegmentRecurrence
from keras_transformer.layers.transformer_xl import TransformerXL
from keras_transformer.models.text_model import (
    Part,
    TokenModel,
    empty_mask,
    log_probs_of_next,
    mask_of_step,
    prefilled_cache,
    size_named,
)
from keras_transformer.ops.masks import causal_mask, combine_masks
from keras_transformer.ops.segments import segment_mask, segments_after

# enwik8, wikitext103, wikitext103_large: Dai et al. 2019, section 4.1, with the dimensions of
# the authors' training scripts (https://github.com/kimiyoung/transformer-xl:
# pytorch/run_enwik8_base.sh, pytorch/run_wt103_base.sh, tf/scripts/wt103_large_tpu.sh).
# small: our own, for training without a GPU.
SIZES = {
    "small": {
        "num_layers": 4,
        "hidden_dim": 128,
        "intermediate_dim": 512,
        "num_heads": 4,
        "dropout": 0.1,
        "memory_length": 64,
    },
    "enwik8": {
        "num_layers": 12,
        "hidden_dim": 512,
        "intermediate_dim": 2048,
        "num_heads": 8,
        "dropout": 0.1,
        "memory_length": 512,
    },
    "wikitext103": {
        "num_layers": 16,
        "hidden_dim": 410,
        "intermediate_dim": 2100,
        "num_heads": 10,
        "dropout": 0.1,
        "memory_length": 150,
    },
    "wikitext103_large": {
        "num_layers": 18,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "memory_length": 384,
    },
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXLModel(TokenModel):
    """A language model with a memory of earlier segments, of `transformer_xl`.

    Attributes:
        embedding: `TokenEmbedding`, whose table also projects to logits.
        recurrence: `SegmentRecurrence`, the blocks with the memory of training.
    """

    kind = "transformer_xl"
    has_static_cache = pads_left = True
    embedding = Part("embedding")
    recurrence = Part("recurrence")

    def forget(self):
        """Clears the memory of training before it continues with unrelated text."""
        self.recurrence.forget()

    def read(self, token_ids, memory=None):
        """Scores one segment of a text with the memory of earlier segments, outside training.

        Args:
            token_ids: (batch, length), 0 for padding, which may only end a document.
            memory: from `read` of the previous segment, shortened by `newest` if you like; None
                at the beginning of a text.

        Returns:
            The pair of float32 logits, (batch, length, vocabulary), and the memory of everything
            read so far.
        """
        vectors, memory = self.recurrence.advance(self.embedding(token_ids), token_ids, memory)
        return self.embedding(vectors, reverse=True), memory

    def score(self, token_ids, segment_length, memory_length):
        """The negative log-likelihood of long texts, with a memory of any length.

        It sums over every token but the first of each text, without padding. A longer memory than
        in training usually helps: Dai et al. 2019 train on enwik8 with 512 tokens and evaluate
        with 2100.

        Args:
            token_ids: one text per row, (batch, length), 0 for padding at the end.
            segment_length: tokens per forward pass, at least 1.
            memory_length: earlier tokens that each segment attends to, at least 0.

        Returns:
            The pair of the sum of -ln(probability) over all predicted tokens, in nats, and their
            number. Their ratio is the loss; divided by ln(2), bits per token.

        Raises:
            ValueError: if `segment_length` is below 1 or `memory_length` below 0.

        Examples:
            >>> model = transformer_xl(11, batch_size=2, num_layers=1)
            >>> texts = [[3, 5, 2, 7], [4, 6, 8, 0]]
            >>> _, count = model.score(texts, segment_length=2, memory_length=5)
            >>> count
            5
        """
        check_integer("segment_length", segment_length)
        check_integer("memory_length", memory_length, 0)
        token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        total, count, memory = 0.0, 0, None
        for start in range(0, token_ids.shape[1] - 1, segment_length):
            labels = token_ids[:, start + 1 : start + 1 + segment_length]
            segment = token_ids[:, start : start + labels.shape[1]]
            logits, memory = self.read(segment, memory)
            memory = newest(memory, memory_length)
            log_probs = ops.log_softmax(logits, axis=-1)
            chosen = ops.take_along_axis(log_probs, labels[:, :, None], axis=-1)[:, :, 0]
            is_real = ops.not_equal(labels, 0)
            total -= float(ops.sum(ops.where(is_real, chosen, 0.0)))
            count += int(ops.sum(ops.cast(is_real, "int32")))
        return total, count

    def start_cache(self, batch_size, num_beams=1, length=None, starts=None):
        """The cache before the first step.

        Args:
            batch_size: number of rows, an integer scalar.
            num_beams: beams per row.
            length: most steps that will be taken, an integer scalar, for a cache of full size; None
                for one that grows.
            starts: how many of the first tokens of each row are padding, integers (batch,), all of
                which `prefill` must read; None for none.

        Returns:
            A nested structure of tensors, batch first; their axes of size 0 grow with each step.
        """
        stack = self.recurrence.layer
        return {
            "stack": stack.empty_cache(batch_size, length, num_beams),
            **empty_mask(batch_size, length, num_beams),
            **({} if starts is None else {"starts": starts}),
        }

    def step(self, token_ids, parents, position, cache):
        """Scores the next token of every beam.

        Args:
            token_ids: the newest token of each beam, (batch, beams).
            parents: the beam of the previous step that each beam extends, (batch, beams).
            position: number of earlier tokens, an integer scalar.
            cache: from `start_cache` or the previous step.

        Returns:
            The pair of float32 logits, (batch, beams, vocabulary), and the extended cache.
        """
        name, mask, position = mask_of_step(cache, parents, position)
        if self.recurrence.start_id is not None:
            # A start token sees only itself; later tokens inherit its mask, so they see no further.
            num_beams, columns = token_ids.shape[1], ops.shape(mask)[2]
            newest = columns - num_beams if position is None else position * num_beams
            is_newest = ops.arange(columns, dtype="int32") >= newest
            continues = ops.not_equal(token_ids, self.recurrence.start_id)[:, :, None]
            mask = ops.logical_and(mask, ops.logical_or(continues, is_newest))
        vectors, stack = self.recurrence.layer.step(
            self.embedding(token_ids), cache["stack"], mask, position
        )
        return self._logits_of(vectors), {**cache, "stack": stack, name: mask}

    def prefill(self, token_ids, next_ids, count, cache):
        """Reads the tokens that begin every hypothesis in one pass, as of `LanguageModel.prefill`.

        Args:
            token_ids: this and all further arguments are those of `LanguageModel.prefill`.

        Returns:
            The pair of log-probabilities, or None, and the cache after `count` steps.
        """
        columns = ops.arange(ops.shape(token_ids)[1], dtype="int32")
        starts = cache.get("starts", ops.zeros_like(token_ids[:, 0], dtype="int32"))
        segments = ops.cast(columns >= starts[:, None], "int32")  # padding is a text of its own
        mask, last = segment_mask(segments, segments), starts
        if self.recurrence.start_id is not None:
            is_start = ops.equal(token_ids, self.recurrence.start_id)
            begins = ops.logical_and(is_start, columns < count)
            last = ops.maximum(last, ops.max(ops.where(begins, columns, 0), axis=1))
            segments = segments_after(token_ids, self.recurrence.start_id)
            mask = combine_masks(mask, segment_mask(segments, segments))
        mask = combine_masks(mask, causal_mask(ops.shape(token_ids)[1]))
        vectors, newest = self.recurrence.layer.step(self.embedding(token_ids), None, mask)
        log_probs = None
        if next_ids is not None:
            log_probs = log_probs_of_next(self._logits_of, vectors, next_ids)
        names = [name for name in ("mask", "static_mask") if name in cache]
        before = {name: cache[name] for name in names}
        before |= {"keys_values": [block[:2] for block in cache["stack"]], "starts": last}
        filled = prefilled_cache(before, [block[:2] for block in newest], count)
        # Distances of a cache of full size are there from the start.
        distances = [block[2] for block in (newest if "mask" in cache else cache["stack"])]
        stack = [(*pair, each) for pair, each in zip(filled["keys_values"], distances, strict=True)]
        return log_probs, {**cache, "stack": stack, **{name: filled[name] for name in names}}

    def _logits_of(self, vectors):
        return self.embedding(vectors, reverse=True)

    def attention_scores(self, token_ids):
        """The attention weights of all layers and heads for tokenised texts, without a memory.

        Args:
            token_ids: (batch, length), 0 for padding.

        Returns:
            A dictionary with one list, "decoder", of one tensor (batch, heads, length, length)
            per layer.
        """
        token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        vectors = self.embedding(token_ids)
        return {"decoder": self.recurrence.attention_scores(vectors, token_ids)}


def transformer_xl(
    vocabulary_size, batch_size, size="small", start_id=None, name="transformer_xl", **dimensions
):
    """Builds a language model that carries a memory from segment to segment in training.

    In training, row i of each batch must continue row i of the previous batch: pass `fit`
    batches of `batch_size` rows with shuffle=False, and call `model.forget` before unrelated
    text. Everywhere else each row is read on its own and may have any length; `model.read` and
    `model.score` take the memory as an argument.

    Source: Dai et al. 2019 (https://arxiv.org/abs/1901.02860); unlike the word models of the
    paper, this one has a plain softmax, not an adaptive one.

    Args:
        vocabulary_size: number of ids.
        batch_size: rows of a training batch on each replica.
        size: a key of `SIZES`: "small", "enwik8", "wikitext103" or "wikitext103_large".
        start_id: the id at which each document starts and the memory of its row is reset;
            None if all text is one document.
        name: of the model.
        **dimensions: replace values of that size (num_layers, hidden_dim,
            intermediate_dim, num_heads, dropout, memory_length in tokens), or are the dtype or
            further arguments of `TransformerXL`; activation_dropout defaults to `dropout`.

    Returns:
        A `TransformerXLModel`. Input: `token_ids` (batch, length), integers, 0 for padding.
        Output: float32 logits of the next token, (batch, length, vocabulary_size).

    Raises:
        ValueError: if `size` or a dimension is unknown, hidden_dim is odd or not divisible
            by num_heads, batch_size is below 1 or memory_length below 0.

    Examples:
        >>> model = transformer_xl(11, batch_size=2, num_layers=1)
        >>> tuple(model(keras.ops.array([[3, 5, 2]])).shape)
        (1, 3, 11)
    """
    block = size_named(SIZES, size, dimensions)
    block.setdefault("activation_dropout", block["dropout"])
    hidden_dim, memory_length = block.pop("hidden_dim"), block.pop("memory_length")
    dtype = block.get("dtype")

    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = TokenEmbedding(vocabulary_size, hidden_dim, dtype=dtype, name="embedding")
    dropout = ReproducibleDropout(block["dropout"], dtype=dtype, name="dropout")
    stack = TransformerXL(**block, name="stack")
    recurrence = SegmentRecurrence(stack, batch_size, memory_length, start_id, name="recurrence")
    vectors = dropout(recurrence(dropout(embedding(token_ids)), token_ids))
    return TransformerXLModel(token_ids, embedding(vectors, reverse=True), name=name)


def newest(memory, length):
    """Shortens a memory to its newest `length` tokens; a longer memory is slower.

    Args:
        memory: from `TransformerXLModel.read`.
        length: number of tokens, at least 0.

    Returns:
        A memory for `TransformerXLModel.read`.
    """
    check_integer("length", length, 0)
    memories, is_remembered = memory
    start = max(is_remembered.shape[1] - length, 0)
    return [vectors[:, start:] for vectors in memories], is_remembered[:, start:]
