"""Windows of one long text: random ones for training, sliding ones for evaluation."""

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.draws import key_of
from keras_transformer.data.pipelines import as_data, rounded_up
from keras_transformer.data.token_ids import IdRows
from keras_transformer.tokenizers.control_ids import PAD_ID


class _LongText:
    """The tokens of one long text, read in windows that a subclass places in `_starts`."""

    def __init__(self, ids, length, batch_size, first_id):
        check_integer("length", length)
        check_integer("batch_size", batch_size)
        self._ids = ids if hasattr(ids, "read") else IdRows(ids, [len(ids)])
        self._first_id = first_id
        self.num_tokens = self._ids.num_ids
        self._length, self._batch_size = length, batch_size

    def dataset(self, start_step: int = 0, replicas: int = 1):
        """Endless batches, from step `start_step` on.

        Args:
            start_step: number of the first batch.
            replicas: batches end with as many empty rows as they lack to a multiple of this, whose
                labels are 0, or -1 with `first_id`.

        Returns:
            Token ids and labels, int32, both (batch, length): on TensorFlow a `tf.data.Dataset`,
            elsewhere a `keras.utils.PyDataset` of NumPy arrays.
        """
        rows = rounded_up(self._batch_size, replicas)
        specs = _specs(rows, self._length)
        return as_data(lambda number: self._batch(start_step + number, rows), specs)

    def _batch(self, step, num_rows):
        starts = self._starts(step)  # (batch,)
        rows = self._ids.read(starts, self._length + 1).values.reshape(len(starts), -1)
        rows = rows - np.int32(self._first_id)
        missing = [(0, num_rows - len(rows)), (0, 0)]
        empty = -1 if self._first_id else PAD_ID
        labels = np.pad(rows[:, 1:], missing, constant_values=empty)
        return np.pad(rows[:, :-1], missing), labels

    def checksum(self) -> int:
        """A number that changes with any token of the text."""
        return self._ids.checksum()


class TextWindows(_LongText):
    """Batches of random windows of a long text, for training a language model.

    The model reads a window of n tokens; the labels are the same window shifted by one token.
    Where windows begin is a pure function of seed and step, so an interrupted run resumes at
    any step.

    Args:
        ids: the tokens of the whole text, integers (tokens,), or a column of a prepared folder,
            whose rows follow one another.
        length: length of a window, in tokens.
        batch_size: windows in a batch.
        steps_per_epoch: batches that count as an epoch; windows are drawn at random, so no
            number of them covers exactly the whole text.
        seed: integer that fixes where all windows begin.
        first_id: is subtracted from all ids, for a model without some ids of the tokenizer.

    Raises:
        ValueError: if the text is not longer than a window, or a size is below 1.

    Examples:
        >>> inputs, labels = next(iter(TextWindows(range(4, 40), length=5, batch_size=2).dataset()))
        >>> tuple(inputs.shape), (labels[:, :-1] == inputs[:, 1:]).numpy().all().item()
        ((2, 5), True)
    """

    def __init__(self, ids, length, batch_size, steps_per_epoch=500, seed=0, first_id=0):
        super().__init__(ids, length, batch_size, first_id)
        check_integer("steps_per_epoch", steps_per_epoch)
        if self.num_tokens <= length:
            raise ValueError(
                "The text must be longer than a window, because the labels are shifted by one "
                f"token. Received: {self.num_tokens} tokens, length={length}."
            )
        self.steps_per_epoch = steps_per_epoch
        self._seed = seed

    def _starts(self, step):
        # Of 64 bits, whose remainders are as good as equally likely.
        draws = key_of(self._seed, step, np.arange(self._batch_size))
        return (draws % np.uint64(self.num_tokens - self._length)).astype(np.int64)


class TextSegments(_LongText):
    """Batches of consecutive segments, for a model that carries a memory.

    The text is divided into as many streams as a batch has rows. Row i of each batch continues
    where row i of the previous batch ended; at the end of its stream it continues into the next
    one, so that an epoch is nearly the whole text and only one row per epoch starts it again.

    Args:
        ids: the tokens of the whole text, integers (tokens,), or a column of a prepared folder,
            whose rows follow one another.
        length: length of a segment, in tokens.
        batch_size: number of streams.
        first_id: is subtracted from all ids, for a model without some ids of the tokenizer.

    Attributes:
        steps_per_epoch: batches until each stream has been read once.

    Raises:
        ValueError: if the text is too short for one segment per stream, or a size is below 1.

    Examples:
        >>> segments = TextSegments(range(100, 113), length=3, batch_size=2)
        >>> [inputs.numpy().tolist() for inputs, _ in segments.dataset().take(3)]
        [[[100, 101, 102], [106, 107, 108]], [[103, 104, 105], [109, 110, 111]], \
[[106, 107, 108], [100, 101, 102]]]
    """

    def __init__(self, ids, length, batch_size, first_id=0):
        super().__init__(ids, length, batch_size, first_id)
        if self.num_tokens <= length * batch_size:
            raise ValueError(
                "Each stream of the text must hold a segment and the token after it. Received: "
                f"{self.num_tokens} tokens, length={length}, batch_size={batch_size}."
            )
        self.steps_per_epoch = (self.num_tokens - 1) // (length * batch_size)

    def dataset(self, start_step: int = 0, replicas: int = 1):
        """Like the batches of `TextWindows`, but no row is added.

        Raises ValueError unless `replicas` divides the streams, whose memories stay where they are.
        """
        if self._batch_size % replicas:
            raise ValueError(
                "Each replica has the memory of its own streams, so the batch size must be a "
                f"multiple of their number. Received: batch_size={self._batch_size}, {replicas} "
                "replicas."
            )
        return super().dataset(start_step, replicas)

    def _starts(self, step):
        epoch, place = step // self.steps_per_epoch, step % self.steps_per_epoch
        streams = (np.arange(self._batch_size) + epoch) % self._batch_size
        return (streams * self.steps_per_epoch + place) * self._length


def sliding_windows(ids, length, stride, batch_size, pad_id=PAD_ID, replicas=1):
    """Windows in which each token of a text, except the first, is a label exactly once.

    The window slides by `stride` tokens, and only its new labels count, so each is predicted
    from at least `length - stride` tokens, except near the beginning.

    Args:
        ids: the tokens of the whole text, integers (tokens,), at least two.
        length: length of a window, in tokens.
        stride: tokens by which it slides, in [1, length].
        batch_size: windows in a batch.
        pad_id: the label of positions that do not count; it also fills up the last window and,
            if there are several, the last batch, so that all have one shape. If it is -1, the
            inputs are filled up with 0.
        replicas: batches end with as many empty rows as they lack to a multiple of this.

    Returns:
        Token ids and labels, int32, both (batch, length), as data like that of
        `TextWindows.dataset`.

    Raises:
        ValueError: if the text is too short or `stride` is outside its limits.

    Examples:
        >>> for inputs, labels in sliding_windows([5, 6, 7, 8], length=2, stride=1, batch_size=3):
        ...     print(inputs.numpy().tolist(), labels.numpy().tolist())
        [[5, 6], [6, 7]] [[6, 7], [0, 8]]
    """
    ids = np.asarray(ids, np.int32)
    if len(ids) < 2 or not 1 <= stride <= length:
        raise ValueError(
            "A text of at least 2 tokens, and a stride of 1 to length tokens, are needed. "
            f"Received: {len(ids)} tokens, stride={stride}, length={length}."
        )
    starts = np.arange(0, max(len(ids) - 1 - length, 0) + stride, stride)
    places = starts[:, None] + np.arange(length)  # (windows, length)
    is_inside = places + 1 < len(ids)
    is_new = (places >= starts[:, None] + length - stride) | (starts[:, None] == 0)
    padded = np.pad(ids, (0, length + stride + 1), constant_values=pad_id)
    inputs = np.where(is_inside, padded[places], max(pad_id, 0))
    labels = np.where(is_inside & is_new, padded[places + 1], pad_id)
    batch_size = rounded_up(batch_size, replicas)
    if missing := -len(starts) % (batch_size if len(starts) > batch_size else replicas):
        empty = np.full((missing, length), pad_id, np.int32)
        inputs = np.concatenate([inputs, np.maximum(empty, 0)])
        labels = np.concatenate([labels, empty])

    def batch(number):
        rows = slice(number * batch_size, (number + 1) * batch_size)
        return inputs[rows], labels[rows]

    return as_data(batch, _specs(None, length), -(-len(inputs) // batch_size))


def _specs(batch_size, length):
    return (keras.InputSpec(dtype="int32", shape=(batch_size, length)),) * 2
