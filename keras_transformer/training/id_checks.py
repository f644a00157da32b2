"""Finds ids and rows that a model has no vector for, before a step reads them.

XLA and GPUs do not raise for an id outside a table. A check in the step would make it wait for the
device. So arrays are checked before they are converted, and batches of a `tf.data.Dataset` on the
host, where the iterator makes them.
"""

import dataclasses
import re
import types

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.training.internals import calls_of, last_call
from keras_transformer.training.losses import PretrainingLoss, TokenCrossentropy

ROWS_AT_ONCE = 2**14
# Layers whose outputs have the rows, and the positions, of all of their inputs.
KEEPS_POSITIONS = (keras.layers.Add, keras.layers.Dropout, keras.layers.LayerNormalization)


@dataclasses.dataclass(frozen=True)
class IdLimits:
    """What the ids of one input, or the labels, must be."""

    name: str  # of the input, or "labels"
    count: int | None = None  # ids are 0 to count - 1; None for no limit
    padding: int | None = None  # an id that is allowed, too
    longest: int | None = None  # largest number of positions in a row; None for no limit

    @property
    def id_message(self):
        is_inside = self.padding in (None, *range(self.count))
        padding = "" if is_inside else f", or {self.padding} for padding"
        return f"{self.name} must be integers from 0 to {self.count - 1}{padding}. Received: "

    @property
    def length_message(self):
        return (
            f"Rows of {self.name} must have at most {self.longest} tokens, one for each position "
            "that has a vector. Cut them, or raise max_sequence_length. Received: rows of length "
        )

    def _outside(self, ids):
        outside = ~((ids >= 0) & (ids < self.count))  # NaN is outside
        return outside if self.padding is None else outside & (ids != self.padding)

    def check(self, ids):
        """Raises ValueError for an array or a tensor of eager mode."""
        if "GPU" in str(getattr(ids, "device", "")):
            return  # reading it would wait for the GPU
        ids = np.asarray(ids)
        if self.longest is not None and ids.ndim > 1 and ids.shape[1] > self.longest:
            raise ValueError(f"{self.length_message}{ids.shape[1]}.")
        if self.count is None or ids.dtype.kind not in "iuf":
            return
        ids = np.atleast_1d(ids)
        for start in range(0, len(ids), ROWS_AT_ONCE):  # an array may be a file on the disk
            rows = np.asarray(ids[start : start + ROWS_AT_ONCE])
            if (outside := self._outside(rows)).any():
                raise ValueError(f"{self.id_message}{rows[outside][0]}.")

    def check_in_graph(self, ids):
        """The same for a symbolic tensor, as operations that raise InvalidArgumentError."""
        if not isinstance(ids, tf.Tensor) or not (ids.dtype.is_integer or ids.dtype.is_floating):
            return
        if self.longest is not None and ids.shape.rank not in (None, 1):
            if ids.shape[1] is not None and ids.shape[1] > self.longest:
                raise ValueError(f"{self.length_message}{ids.shape[1]}.")
            length = tf.shape(ids)[1]
            tf.debugging.Assert(length <= self.longest, [self.length_message, length])
        if self.count is not None:
            ids = tf.cast(ids, tf.int64) if ids.dtype.is_integer else ids
            first = tf.boolean_mask(ids, self._outside(ids))[:1]
            tf.debugging.Assert(tf.size(first) == 0, [self.id_message, first])


def with_checked_ids(model, loss, x, y=None):
    """Checks data for `fit`, and returns `x`, or a dataset or generator that checks each batch.

    Only the graphs of functional models say what ids they have vectors for. Without a `loss`,
    labels are not checked. Raises ValueError for an id or a row that the model has no vector for.
    """
    limits = input_limits(model) | label_limits(model, loss)
    if not limits:
        return x
    if isinstance(x, tf.data.Dataset):
        is_tuple = isinstance(x.element_spec, tuple)

        def checked(*batch):
            _check_batch(batch, limits, IdLimits.check_in_graph)
            return batch if is_tuple else batch[0]

        # AutoGraph would convert the check again for each dataset.
        return x.map(tf.autograph.experimental.do_not_convert(checked))
    if isinstance(x, types.GeneratorType):
        return _checked_batches(x, limits)
    if not hasattr(x, "__getitem__") or isinstance(x, keras.utils.PyDataset):
        return x
    _check_batch((x, y), limits, IdLimits.check)
    return x


def _checked_batches(batches, limits):
    for batch in batches:
        _check_batch(batch if isinstance(batch, tuple) else (batch,), limits, IdLimits.check)
        yield batch


def _check_batch(batch, limits, check):
    for (part, place, name), limit in limits.items():
        ids = batch[part] if part < len(batch) else None
        if isinstance(ids, dict):
            ids = ids.get(name)
        elif isinstance(ids, (list, tuple)):
            ids = ids[place] if place < len(ids) else None
        if ids is not None and hasattr(ids, "dtype"):
            check(limit, ids)


def input_limits(model):
    """The `IdLimits` of inputs by their paths, (0, place in a list, name in a dict).

    The layers that read an input declare `num_ids`, for which of its inputs they have a vector, or
    `num_positions`; of Keras's own layers, `Embedding` has `input_dim`.
    """
    counts, lengths = {}, {}
    for layer, arguments, call_inputs in calls_of(model):
        for place, count, longest in _declared(layer, arguments):
            if count is not None:
                for source in _sources(call_inputs[place], follows_ids=True):
                    counts[source] = min(count, counts.get(source, count))
            if longest is not None:
                for source in _sources(call_inputs[place], follows_ids=False):
                    lengths[source] = min(longest, lengths.get(source, longest))
    return {
        (0, place, tensor.name): IdLimits(
            tensor.name, counts.get(id(tensor)), longest=lengths.get(id(tensor))
        )
        for place, tensor in enumerate(getattr(model, "inputs", None) or [])
        if id(tensor) in counts or id(tensor) in lengths
    }


def _declared(layer, arguments):
    """Triples of the place of an input of a call, its number of ids, and its longest row."""
    if calls_of(layer):  # a model
        for (_, place, _), limits in input_limits(layer).items():
            yield place, limits.count, limits.longest
    elif isinstance(layer, keras.layers.Embedding):
        yield 0, layer.input_dim, None
    elif hasattr(layer, "num_ids") and not arguments.get("reverse", False):
        yield 0, layer.num_ids, None
    elif hasattr(layer, "num_positions") and isinstance(arguments.get("start", 0), int):
        yield 0, None, layer.num_positions - arguments.get("start", 0)


def _sources(tensor, follows_ids):
    """The Python ids of the inputs from which a tensor has its ids or, if not, its positions."""
    layer, _, inputs = last_call(tensor)
    if isinstance(layer, keras.layers.InputLayer):
        return {id(tensor)}
    is_table = hasattr(layer, "num_ids") or isinstance(layer, keras.layers.Embedding)
    keeps_positions = is_table or isinstance(layer, KEEPS_POSITIONS)
    if getattr(layer, "keeps_ids", False) or (keeps_positions and not follows_ids):
        return set().union(*(_sources(each, follows_ids) for each in inputs))
    return set()


def label_limits(model, loss):
    """The `IdLimits` of labels, by their paths, (1, place in a list, name in a dict)."""
    outputs = getattr(model, "output", None)
    if isinstance(loss, PretrainingLoss) and isinstance(outputs, dict):
        count = outputs["masked_tokens"].shape[-1]
        return {
            (1, 0, "masked_tokens"): IdLimits("masked_tokens", count),
            (1, 1, "next_sentence"): IdLimits("next_sentence", 2, padding=-1),
        }
    outputs = keras.tree.flatten(outputs)
    if len(outputs) != 1 or outputs[0] is None or outputs[0].shape[-1] is None:
        return {}
    path = (1, 0, getattr(model, "output_names", ["labels"])[0])
    if isinstance(loss, TokenCrossentropy):
        return {path: IdLimits("labels", outputs[0].shape[-1], loss.pad_id)}
    is_sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    if is_sparse or getattr(loss, "fn", None) is keras.losses.sparse_categorical_crossentropy:
        padding = getattr(loss, "ignore_class", None)
        return {path: IdLimits("labels", outputs[0].shape[-1], padding)}
    return {}


ASSERTION = re.compile(
    r"((?:Rows of )?[\w./-]+ must [^\[\]]*Received: [^\[\]]*?)\]? ?\[*(-?\d+(?:[.e+\d]*\d)?)"
)


def as_value_error(error):
    """The ValueError that an assertion stands for, or None for another error."""
    match = ASSERTION.search(str(error))
    return None if match is None else ValueError(f"{match[1]}{match[2]}.")
