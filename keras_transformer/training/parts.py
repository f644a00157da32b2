"""Parts of a batch and their gradients: cut, made dense, scaled, added up over replicas."""

import keras
import tensorflow as tf


def num_rows(x):
    """The number of rows of a batch, an integer scalar."""
    return tf.shape(next(part for part in keras.tree.flatten(x) if part is not None))[0]


def part_of(part, parts, data):
    """Rows of one of `parts` nearly equal parts of the batch."""
    if parts == 1:
        return data

    def rows(tensor):
        batch = tf.shape(tensor)[0]
        return tensor[batch * part // parts : batch * (part + 1) // parts]

    return keras.tree.map_structure(lambda t: None if t is None else rows(t), data)


def dense(gradients, variables):
    """Gradients as tensors, zeros where there is none."""
    return [
        tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g)
        for g, v in zip(gradients, variables, strict=True)
    ]


def added(gradient, other):
    """Adds to a dense gradient another, which may be None or rows of an embedding."""
    if other is None:
        return gradient
    if isinstance(other, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(gradient, other.indices[:, None], other.values)
    return gradient + other


def scaled(gradients, scale):
    return [gradient * tf.cast(scale, gradient.dtype) for gradient in gradients]


def over_replicas(sums, gradients=()):
    """A nest of scalars and a list of tensors, added up over all replicas."""
    flat = tf.nest.flatten(sums)
    numbers, *gradients = reduced([tf.stack([tf.cast(n, flat[0].dtype) for n in flat]), *gradients])
    return tf.nest.pack_sequence_as(sums, tf.unstack(numbers)), gradients


def reduced(tensors):
    """A list of tensors added up over all replicas; TensorFlow packs those of one dtype only."""
    context = tf.distribute.get_replica_context()
    results = dict.fromkeys(range(len(tensors)))
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        some = context.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[p] for p in places])
        results.update(zip(places, some, strict=True))
    return list(results.values())
