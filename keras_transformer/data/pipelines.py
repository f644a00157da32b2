"""Batches made in NumPy as data for `fit`: a `tf.data.Dataset` or, elsewhere, a sequence."""

import weakref
from typing import TYPE_CHECKING

import keras
import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf


class BatchSequence(keras.utils.PyDataset):
    """Batches by number: what `fit`, `evaluate` and `predict` take on JAX and PyTorch.

    Batch k is a pure function of the text, the seed and k, so batches may be read in any order.
    Each is a copy. With `workers` above 1, Keras trains on endless batches from the second one on.

    Args:
        make_batch: function from the number of a batch to a batch of NumPy arrays.
        count: number of batches; None if there is no last one.
    """

    def __init__(self, make_batch, count=None):
        super().__init__()
        self._make_batch, self._count = make_batch, count

    @property
    def num_batches(self) -> int | None:
        """The number of batches; None if there is no last one."""
        return self._count

    def __len__(self):
        if self._count is None:
            raise TypeError("There is no last batch.")
        return self._count

    def __bool__(self):
        return self._count != 0

    def __getitem__(self, number):
        if number < 0 or (self._count is not None and number >= self._count):
            raise IndexError(f"There is no batch {number}.")
        return keras.tree.map_structure(np.array, self._make_batch(number))


def rounded_up(rows: int, multiple: int) -> int:
    """The next multiple, so that rows divide equally; -1, for any number of rows, stays."""
    return rows if rows < 0 else -(-rows // multiple) * multiple


def as_data(make_batch, specs, count=None, prepare=None):
    """Data for `fit` on this backend.

    Args:
        make_batch: function from the number of a batch, from 0 on, to a batch of NumPy arrays.
        specs: a `keras.InputSpec` for each array of a batch, with None for sizes that differ.
        count: number of batches; None for endless ones.
        prepare: function from the ids of a batch to the inputs of the model, for a graph on
            TensorFlow; None if the ids are the inputs.
    """

    def prepared(ids, *rest):
        return (prepare(ids), *rest)

    if keras.backend.backend() == "tensorflow" or _among_processes():
        batches = as_dataset(make_batch, specs, count)
        return prefetched(batches if prepare is None else mapped(batches, prepared))
    if prepare is None:
        return BatchSequence(make_batch, count)
    return BatchSequence(lambda number: prepared(*make_batch(number)), count)


def _among_processes():
    """Whether Keras divides batches among processes of JAX, which it does with `tf.data` only."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return False
    import jax

    return jax.process_count() > 1


def as_dataset(make_batch, specs, count=None) -> "tf.data.Dataset":
    """The same as a `tf.data.Dataset` on every backend, not prefetched."""
    import tensorflow as tf

    specs_of_parts = keras.tree.flatten(specs)
    # TensorFlow keeps every such function as long as the process: it must not keep the text. Of a
    # dataset that is made within the function of another, nothing else would keep it.
    maker = weakref.ref(make_batch) if tf.executing_eagerly() else lambda: make_batch

    def parts_of(number):
        parts = keras.tree.flatten(maker()(int(number)))
        return [np.asarray(p, s.dtype) for p, s in zip(parts, specs_of_parts, strict=True)]

    @tf.autograph.experimental.do_not_convert
    def batch(number):
        dtypes = [spec.dtype for spec in specs_of_parts]
        parts = tf.numpy_function(parts_of, [number], dtypes, stateful=False)
        for part, spec in zip(parts, specs_of_parts, strict=True):
            part.set_shape(spec.shape)
        return keras.tree.pack_sequence_as(specs, parts)

    numbers = tf.data.Dataset.counter() if count is None else tf.data.Dataset.range(count)
    batches = numbers.map(batch)
    batches.make_batch = make_batch  # lives as long as the dataset, what it became, and iterators
    return batches


def mapped(batches: "tf.data.Dataset", function) -> "tf.data.Dataset":
    """Maps batches with TensorFlow's operations, several at a time, in their order."""
    import tensorflow as tf

    # AutoGraph would spend seconds rewriting the source of all that makes a batch.
    function = tf.autograph.experimental.do_not_convert(function)
    return batches.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def prefetched(batches: "tf.data.Dataset") -> "tf.data.Dataset":
    """Batches prepared in advance, which TensorFlow divides among replicas."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    options.autotune.enabled = False  # the end of `fit` would wait for its thread
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)
