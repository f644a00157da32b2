"""Divides parallel text into batches that hold about the same number of tokens.

The index plan is a pure function of (seed, epoch), so an interrupted run resumes at any step
without reading earlier batches.
"""

import functools
import logging
import zlib

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.batch_plans import (
    FewShapes,
    LengthPlan,
    PackedPlan,
    PackedRows,
    PlannedBatchesMixin,
    TextLengths,
    check_shapes,
)
from keras_transformer.data.token_ids import check_no_ends, checked_ids, segments_before
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID


class TokenBatches(PlannedBatchesMixin):
    """Batches of token ids for training a translation model.

    Ids of a prepared folder are read as they are needed; others stay in memory, about four bytes
    per token. Pairs of similar lengths share a batch, so that little of it is padding: pairs are
    sorted by length and divided so that the rows times the longest sentence stay within a budget of
    tokens on either side. Every epoch holds each pair once, in batches of the same shapes; which
    pairs of equal lengths share a batch, and the order of the batches, change from epoch to epoch.

    Batches are `({"source_ids": (batch, source), "target_ids": (batch, target)}, labels (batch,
    target))`, int32, padded with 0. A source row is its tokens and the end id; the decoder's input,
    `target_ids`, is the start id and the tokens; the labels are the tokens and the end id. A pair
    is dropped and reported if either side with its end is longer than `max_length`.

    `epoch` holds the pairs in the order of the text; with `FewShapes` by length, with `PackedRows`
    as they are packed, and some rows of a batch may be only padding.

    Args:
        source_ids: tokens of the sentences to translate, without start and end: a ragged tensor,
            as `tokenize` returns it, `IdRows`, a column of a prepared folder, or sequences of
            integers. Ids 0 to 3 are padding, unknown, start and end.
        target_ids: tokens of their translations, equally many.
        tokens_per_batch: maximum tokens in a batch, padding included, on either
            side. At least `max_length`.
        max_length: longest sentence kept, in tokens with its end.
        seed: integer that fixes the order of every epoch.
        shapes: None for the least padding, in any shape; `FewShapes` for a step that is compiled
            once for each; `PackedRows` for rows of `max_length` tokens on either side that hold
            several pairs one after another: no text may then hold the ids 2 and 3, and the inputs
            also have `source_segment_ids` and `target_segment_ids`, which number the pairs.
        plan_folder: path of a folder for what the order of the batches is read from, about 16 bytes
            per pair; processes that name the same one share it. None keeps it in memory.

    Attributes:
        num_pairs: pairs kept, all of which are in each epoch.
        num_dropped: pairs longer than `max_length`.
        num_target_tokens: labels in an epoch, including ends but not padding.
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows, source length and target length of each batch, (steps, 3); -1 for sizes that
            depend on the longest rows of the batch.
        padding: share of padding in the batches of an epoch, both sides together.

    Raises:
        ValueError: if the numbers of sources and targets differ, an id is below 1, no pair is
            left, `shapes` is anything else, the budget is smaller than `max_length`, or
            `row_multiple` times that, or a text of packed rows holds the id of a start or an end.

    Examples:
        >>> batches = TokenBatches([[4, 5, 6], [7]], [[5, 4], [9, 8, 7]], tokens_per_batch=256)
        >>> inputs, labels = next(iter(batches.epoch()))
        >>> inputs["target_ids"].numpy().tolist(), labels.numpy().tolist()
        ([[2, 5, 4, 0], [2, 9, 8, 7]], [[5, 4, 3, 0], [9, 8, 7, 3]])
    """

    def __init__(
        self,
        source_ids,
        target_ids,
        tokens_per_batch: int = 4096,
        max_length: int = 256,
        seed: int = 0,
        shapes: FewShapes | PackedRows | None = None,
        plan_folder=None,
    ):
        check_integer("max_length", max_length)
        reason = f" Any sentence of max_length={max_length} tokens must fit into a batch."
        check_integer("tokens_per_batch", tokens_per_batch, max_length, reason=reason)
        source_ids = checked_ids(source_ids, "source_ids")
        target_ids = checked_ids(target_ids, "target_ids")
        num_texts = len(source_ids)
        if num_texts != len(target_ids):
            raise ValueError(
                "Each source needs one target. "
                f"Received: {num_texts} sources, {len(target_ids)} targets."
            )
        check_shapes(shapes, FewShapes, PackedRows)
        self._packed = isinstance(shapes, PackedRows)
        self._sources, self._targets = source_ids, target_ids
        read = functools.partial(_lengths_with_ends, source_ids, target_ids)
        texts = TextLengths(num_texts, read, max_length)
        kept = plan_folder, lambda: {"ids": self.checksum(), "max_length": max_length}
        if self._packed:
            for side in (source_ids, target_ids):
                check_no_ends(side)
            rows = tokens_per_batch // max_length
            plan = PackedPlan(texts, max_length, rows, seed, shapes.row_multiple, *kept)
        else:
            plan = LengthPlan(texts, tokens_per_batch, seed, shapes, *kept)
        self._follow(plan)
        self.num_pairs, self.num_dropped = plan.num_texts, num_texts - plan.num_texts
        _, self.num_target_tokens = plan.num_tokens
        if self.num_dropped:
            logging.getLogger(__name__).warning(
                "Dropped %d of %d pairs longer than max_length=%d tokens.",
                self.num_dropped, num_texts, max_length,
            )  # fmt: skip

    def checksum(self) -> int:
        """A number that changes with any token of the text."""
        return zlib.crc32(b"%d" % self._targets.checksum(), self._sources.checksum())

    def _specs(self, rows, source, target):
        source_ids, target_ids = (
            keras.InputSpec(dtype="int32", shape=(rows, length)) for length in (source, target)
        )
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        if self._packed:
            inputs |= {"source_segment_ids": source_ids, "target_segment_ids": target_ids}
        return inputs, target_ids

    def _batch(self, pairs, shape):
        rows, source, target = shape
        counts = pairs.lengths if self._packed else np.ones(len(pairs), np.int64)
        numbers = pairs.values if self._packed else pairs
        source_ids = self._sources.take(numbers).joined(counts, rows, source)
        labels = self._targets.take(numbers).joined(counts, rows, target)
        shifted = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=START_ID)
        inputs = {"source_ids": source_ids, "target_ids": shifted}
        if self._packed:
            shifted[shifted == END_ID] = START_ID  # where a pair ends, the next one starts
            inputs["source_segment_ids"] = segments_before(source_ids)
            inputs["target_segment_ids"] = segments_before(labels)
        # If the label is padding, the shifted row holds the end of a shorter sentence.
        shifted[labels == PAD_ID] = PAD_ID
        return inputs, labels


def _lengths_with_ends(source_ids, target_ids, some):
    return np.stack([source_ids.lengths[some], target_ids.lengths[some]]).astype(np.int64) + 1
