"""Splits batches into parts, and scales and sums gradients over parts and replicas."""

import keras
import tensorflow as tf

PACK_BYTES = 2**25  # of gradients that replicas sum at a time; plain steps go on meanwhile


def num_rows(x):
    """The number of rows of a batch, an integer scalar."""
    return tf.shape(next(part for part in keras.tree.flatten(x) if part is not None))[0]


def num_labels(y):
    """The number of labels of a batch, padding included, a float32 scalar."""
    return tf.cast(tf.add_n([tf.size(part) for part in keras.tree.flatten(y)]), tf.float32)


def part_of(part, parts, data):
    """The rows of part number `part` of a batch cut into `parts` nearly equal parts."""
    if parts == 1:
        return data

    def rows(tensor):
        batch = tf.shape(tensor)[0]
        return tensor[batch * part // parts : batch * (part + 1) // parts]

    return keras.tree.map_structure(lambda t: None if t is None else rows(t), data)


def dense(gradients):
    """Gradients as a dict of dense tensors by position; leaves out those that are None."""
    return {i: tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}


def added(gradient, *others):
    """The sum of a dense gradient and others, any of which may be None or `tf.IndexedSlices`."""
    slices = [other for other in others if isinstance(other, tf.IndexedSlices)]
    for other in others:
        if other is not None and not isinstance(other, tf.IndexedSlices):
            gradient += other
    if not slices:
        return gradient
    indices = tf.concat([tf.cast(part.indices, tf.int32) for part in slices], axis=0)
    values = tf.concat([part.values for part in slices], axis=0)
    return tf.tensor_scatter_nd_add(gradient, indices[:, None], values)


def scaled(gradients, scale):
    """A dict of gradients times a scalar."""
    return {place: g * tf.cast(scale, g.dtype) for place, g in gradients.items()}


def sum_of(*parts):
    """The sum of dicts of gradients, any of which may lack some positions."""
    places = sorted(set().union(*parts))
    return {i: tf.add_n([part[i] for part in parts if i in part]) for i in places}


def over_replicas(sums, gradients=()):
    """Sums a nest of scalars and a nest of gradients over all replicas."""
    scalars, flat = tf.nest.flatten(sums), tf.nest.flatten(gradients)
    numbers = tf.stack([tf.cast(scalar, scalars[0].dtype) for scalar in scalars])
    numbers, *flat = reduced([numbers, *flat])
    sums = tf.nest.pack_sequence_as(sums, tf.unstack(numbers))
    return sums, tf.nest.pack_sequence_as(gradients, flat)


def reduced(tensors):
    """Sums a list of tensors over all replicas, one dtype at a time, as TensorFlow requires."""
    context = tf.distribute.get_replica_context()
    packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
    results = dict.fromkeys(range(len(tensors)))
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        some = [tensors[place] for place in places]
        some = context.all_reduce(tf.distribute.ReduceOp.SUM, some, options=packs)
        results.update(zip(places, some, strict=True))
    return list(results.values())
