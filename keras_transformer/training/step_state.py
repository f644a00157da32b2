"""What a train step keeps in addition to the weights; checkpoints save all of it.

A moving average of the weights, the seeds of dropout, the memory that a model carries from batch
to batch, and the scale of the loss in float16.
"""

import contextlib

import keras
from keras import ops

from keras_transformer.training.internals import ON_TENSORFLOW

if ON_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.training.distribution import this_worker

SEED_STRIDE = 1_000_003  # between the seeds of two replicas; a prime
FIRST_SCALE, LARGEST_SCALE = 2.0**15, 2.0**30
STEPS_TO_DOUBLE = 2000  # without an overflow
LARGEST = 65504.0  # finite float16
EXPONENT = 0x7F800000  # the exponent bits of a float32


class MovingAverage:
    """Follows weights: after each step, average = momentum * average + (1 - momentum) * weight.

    `values` are the averages of `weights`, Keras variables that start at the weights' values before
    the first step, which may have been loaded after `compile`.
    """

    def __init__(self, weights, momentum):
        self.weights, self._momentum = weights, momentum
        self.values, self.has_begun = list(map(_copy_of, weights)), False

    def begin(self):
        """Copies the weights, once."""
        if not self.has_begun:
            self.assign([ops.copy(weight.value) for weight in self.weights])

    def assign(self, values):
        """Sets all averages."""
        for average, value in zip(self.values, values, strict=True):
            average.assign(value)
        self.has_begun = True

    def update(self):
        """Moves the averages towards the weights."""
        for weight, average in zip(self.weights, self.values, strict=True):
            change = (1 - self._momentum) * (weight.value - average.value)
            if ON_TENSORFLOW:
                average.value.assign_add(change)  # in place; Keras would write a sum first
            else:
                average.assign_add(change)

    def swap(self):
        """Exchanges the weights with their averages."""
        self.begin()
        for weight, average in zip(self.weights, self.values, strict=True):
            kept = ops.copy(weight.value)
            weight.assign(average.value)
            average.assign(kept)


def _copy_of(variable):
    """A variable with the value of a weight and its path, by which layouts are chosen on JAX."""
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        value = ops.copy(variable.value)
        return keras.Variable(value, dtype=variable.dtype, trainable=False, name=name)


class DropoutSeeds:
    """The random state of a model's dropout, different on each replica.

    Keras mirrors the state, so all replicas would drop the same units. A state is a pair of seed
    and counter; here the replica that gets part i of each batch adds i times a stride to its
    seed. Checkpoints hold the state for part 0, which is that of a single device. On JAX there
    are no replicas: all devices share the state.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = model.distribute_strategy

    @property
    def variables(self):
        """Keras variables of the states; looked up each time, as a model may be built late."""
        return [v for v in self._model.variables if "seed_generator" in v.path]

    def spread(self):
        """Sets the seeds of this worker's replicas. Idempotent."""
        if not ON_TENSORFLOW or self._strategy.num_replicas_in_sync == 1:
            return
        worker = this_worker(self._strategy)
        for variable in self.variables:
            copies = _copies(variable)
            # Another model with these layers, or this one compiled before, may have spread it.
            seed, first = int(copies[0].numpy()[0]), getattr(variable, "first_seed", None)
            if first is None or seed != first + worker.index * SEED_STRIDE:
                variable.first_seed = first = seed
            for place, copy in enumerate(copies):
                part = place * worker.count + worker.index  # TensorFlow deals parts in turn
                counter = copy.numpy()[1]
                copy.assign(tf.constant([first + part * SEED_STRIDE, counter], copy.dtype))


def batches_taken(model):
    """The number of batches so far, also of those that float16 skipped."""
    loss_scale = model._step.loss_scale if hasattr(model, "_step") else None
    skipped = 0 if loss_scale is None else int(loss_scale.skipped.numpy())
    return int(model.optimizer.iterations.numpy()) + skipped


def carried_variables(model):
    """The variables in which a model carries state from batch to batch, such as a memory.

    Each replica has its own, for its own rows: those on all of this worker's devices are listed.
    """
    carried = [v for v in model.variables if v.synchronization == "on_read"]
    return [copy for variable in carried for copy in _copies(variable)]


def _copies(variable):
    """The copies of a Keras variable on this worker's devices."""
    return getattr(variable.value, "values", [variable])


class LossScale:
    """Scales losses so that gradients neither vanish in float16 nor overflow, on TensorFlow.

    A step whose gradient overflows changes nothing but the scale, which it halves; many steps
    without an overflow double the scale. The scale applies to the mean of a batch, because the sum
    that the exact step differentiates grows with the batch. A step is skipped if the gradient of
    the whole batch overflows, as on one device: all replicas skip the same steps, and `skipped`
    counts them.

    Source: Micikevicius et al. 2018, section 3.2 (https://arxiv.org/abs/1710.03740).
    """

    def __init__(self):
        self._scale = tf.Variable(FIRST_SCALE, trainable=False)
        self._clean_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.skipped = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.variables = [self._scale, self._clean_steps, self.skipped]

    def factor(self, labels):
        """The factor for the summed loss of a batch of so many labels.

        Gradients are divided by it again. It is a power of two, which causes no rounding, and the
        same for all parts of a batch.
        """
        per_label = self._scale / tf.maximum(tf.cast(labels, tf.float32), 1.0)
        # Without the other bits of a float32, the largest power of two that is not above it.
        return tf.bitcast(tf.bitcast(per_label, tf.int32) & EXPONENT, tf.float32)

    @contextlib.contextmanager
    def skips(self, gradients, factor, variables):
        """Undoes changes to variables in this context if a gradient of the whole batch overflows.

        There is no branch: the step would have to wait for its outcome, and replicas cannot
        communicate inside a branch. `gradients` are sums over all replicas, already divided by
        `factor`.
        """
        largest = LARGEST / factor
        flat = tf.nest.flatten(gradients)
        # NaN is not below the largest number either.
        fit = [tf.reduce_all(tf.abs(g) <= tf.cast(largest, g.dtype)) for g in flat]
        fits = tf.reduce_all(tf.stack([True, *fit]))  # there may be no gradient
        before = [tf.identity(variable.value) for variable in variables]
        yield
        for variable, value in zip(variables, before, strict=True):
            variable.value.assign(tf.where(fits, variable.value, value))
        clean = self._clean_steps + 1
        doubles = clean >= STEPS_TO_DOUBLE
        grown = tf.minimum(tf.where(doubles, 2.0, 1.0) * self._scale, LARGEST_SCALE)
        self._scale.assign(tf.where(fits, grown, tf.maximum(self._scale / 2, 1.0)))
        self._clean_steps.assign(tf.where(fits & ~doubles, clean, 0))
        self.skipped.assign_add(tf.where(fits, tf.zeros([], tf.int64), 1))
