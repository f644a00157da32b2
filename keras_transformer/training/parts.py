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


def dense(gradients):
    """Gradients as tensors, by their places in the list; those that are None are left out."""
    return {i: tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}


def added(gradient, other):
    """Adds to a dense gradient another, which may be None or rows of an embedding."""
    if other is None:
        return gradient
    if isinstance(other, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(gradient, other.indices[:, None], other.values)
    return gradient + other


def scaled(gradients, scale):
    """A dict of gradients times a scalar."""
    return {place: g * tf.cast(scale, g.dtype) for place, g in gradients.items()}


def sum_of(*parts):
    """Adds up dicts of gradients; a gradient may be missing in some of them."""
    places = sorted(set().union(*parts))
    return {i: tf.add_n([part[i] for part in parts if i in part]) for i in places}


def over_replicas(sums, gradients=()):
    """A nest of scalars and a nest of gradients, added up over all replicas."""
    scalars, flat = tf.nest.flatten(sums), tf.nest.flatten(gradients)
    numbers = tf.stack([tf.cast(scalar, scalars[0].dtype) for scalar in scalars])
    numbers, *flat = reduced([numbers, *flat])
    sums = tf.nest.pack_sequence_as(sums, tf.unstack(numbers))
    return sums, tf.nest.pack_sequence_as(gradients, flat)


def reduced(tensors):
    """A list of tensors added up over all replicas; TensorFlow packs those of one dtype only."""
    context = tf.distribute.get_replica_context()
    results = dict.fromkeys(range(len(tensors)))
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        some = context.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[p] for p in places])
        results.update(zip(places, some, strict=True))
    return list(results.values())
