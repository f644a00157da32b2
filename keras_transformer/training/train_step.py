"""The exact train step on TensorFlow: sum, reduce once, divide, clip, apply.

Keras's step will not do: with several replicas it averages the means of the replicas, clips
before it sums, and accumulates in the optimizer. Each of these changes the numbers of one device.

Read this file first. The sums of losses and their gradients come from projected_loss.py if the
model ends in a projection to tokens, as those that translate do, otherwise from whole_loss.py. The
moving average and the scale of float16 are in optimizers.py. `compile` (compile.py) checks and
keeps the settings of the step in `self._step`.
"""

import contextlib
import warnings

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.training import internals
from keras_transformer.training.compile import CompileMixin, check_labels
from keras_transformer.training.distribution import has_workers
from keras_transformer.training.fit import FitMixin
from keras_transformer.training.whole_loss import dense, scaled

PACK_BYTES = 2**25  # of gradients that replicas sum at a time; plain steps go on meanwhile


class TrainStep(CompileMixin, FitMixin, internals.SymbolicBuildMixin):
    """The mixin of `keras_transformer.training.Model` on TensorFlow."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        step = self._step
        check_labels(y, step.loss)
        if step.average is not None and not step.average.has_begun:
            with tf.init_scope():  # once, before the first step of a caller's own loop
                step.average.begin()

        # Sum over the parts of the batch, one after the other.
        factor, total = None, None
        if step.loss_scale is not None:
            factor = step.loss_scale.factor(_all_reduced([_num_labels(y)])[0])
        for part in range(step.accumulation_steps):
            rows = _rows_of_part(part, step.accumulation_steps, (x, y, sample_weight))
            computed = step.loss_from(sample_weight).sums_and_gradients(*rows, factor)
            total = computed if total is None else tf.nest.map_structure(tf.add, total, computed)

        # Reduce: sum once over all replicas.
        sums, gradients = _over_replicas(*total)

        # Divide by the sums of the whole batch, and add the penalties.
        weights = self.trainable_weights  # the first call may have created them
        penalty, penalty_gradients = _weight_penalty(weights)
        terms = list(zip(gradients.losses, step.whole_loss.scales(sums), strict=True))
        if gradients.activity:
            per_row = tf.math.divide_no_nan(1.0, step.whole_loss.penalty_divisor(sums))
            terms.append((gradients.activity, per_row))
        if penalty_gradients:
            terms.append((penalty_gradients, 1.0))
        gradient, scale = terms[0]  # to be scaled once, together with clipping
        if len(terms) > 1:
            gradient, scale = _sum_of(scaled(*term) for term in terms), tf.ones([])

        # Clip.
        if step.clip_norm is not None:
            scale = tf.cast(scale, tf.float32)
            singles = [tf.cast(g, tf.float32) for g in gradient.values()]
            norm = tf.linalg.global_norm(singles) * scale
            scale *= step.clip_norm / tf.maximum(norm, step.clip_norm)
        gradient = scaled(gradient, scale)

        # Apply, unless a gradient overflows in float16.
        skips = contextlib.nullcontext()
        if step.loss_scale is not None:
            if not self.optimizer.built:
                self.optimizer.build(weights)  # what it holds after the step may be undone, too
            averages = [] if step.average is None else step.average.values
            changed = [*weights, *self.optimizer.variables, *averages]
            skips = step.loss_scale.skips(gradients, factor, changed)
        with skips:
            if weights:
                # Keras warns of weights without a gradient, and keeps a state for them.
                pairs = [(gradient.get(place), weight) for place, weight in enumerate(weights)]
                self.optimizer.apply_gradients(pairs)
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
            if step.average is not None:
                step.average.update()
        return self._logs(sums, penalty)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        check_labels(y, self._step.loss)
        loss = self._step.loss_from(sample_weight)
        sums = _over_replicas(loss.sums(x, y, sample_weight))[0]
        penalty, _ = _weight_penalty(self.trainable_weights)
        return self._logs(sums, penalty)

    def _logs(self, sums, penalty):
        """Updates the metrics with sums over all replicas: every replica logs the same."""
        whole = self._step.whole_loss
        pairs = zip(sums.losses, whole.scales(sums), strict=True)
        loss = tf.add_n([each.loss * scale for each, scale in pairs])
        for activity in sums.activity:
            loss += tf.math.divide_no_nan(activity, whole.penalty_divisor(sums))
        if penalty is not None:
            loss += tf.cast(penalty, loss.dtype)
        # Keras sums metrics over replicas; divided, they count each token once.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        share = whole.count(sums) / replicas
        internals.loss_tracker(self).update_state(loss, sample_weight=share)
        for metric, metric_sums in zip(whole.token_metrics, sums.metrics, strict=True):
            metric.add_sums(*(part / replicas for part in metric_sums))
        logs = self.get_metrics_result()
        if (metrics := whole.keras_metrics) is not None:
            # Each replica has counted its own rows.
            counted = _all_reduced([tf.identity(v.value) for v in metrics.variables])
            logs.update(metrics.stateless_result(counted))
        if has_workers(self.distribute_strategy):
            # Keras averages the workers' logs along an axis, which scalars lack.
            logs = {name: value[None] for name, value in logs.items()}
        return logs

    def make_train_function(self, force=False):
        with self._whole_step_not_compiled():
            return super().make_train_function(force)

    def make_test_function(self, force=False):
        with self._whole_step_not_compiled():
            return super().make_test_function(force)

    @contextlib.contextmanager
    def _whole_step_not_compiled(self):
        """The losses compile their part; XLA cannot compile operations across devices."""
        jit_compile, self.jit_compile = self.jit_compile, False
        try:
            yield
        finally:
            self.jit_compile = jit_compile


def _num_labels(y):
    """The number of labels of a batch, padding included, a float32 scalar."""
    return tf.cast(tf.add_n([tf.size(part) for part in keras.tree.flatten(y)]), tf.float32)


def _rows_of_part(part, parts, data):
    """The rows of part number `part` of a batch cut into `parts` nearly equal parts."""
    if parts == 1:
        return data

    batch = tf.shape(next(part for part in keras.tree.flatten(data) if part is not None))[0]

    def rows(tensor):
        same = "Inputs, labels and weights must have the same number of rows."
        tf.debugging.assert_equal(tf.shape(tensor)[0], batch, same)
        return tensor[batch * part // parts : batch * (part + 1) // parts]

    return keras.tree.map_structure(lambda t: None if t is None else rows(t), data)


def _over_replicas(sums, gradients=()):
    """Sums a nest of scalars and a nest of gradients over all replicas."""
    scalars, flat = tf.nest.flatten(sums), tf.nest.flatten(gradients)
    numbers = tf.stack([tf.cast(scalar, scalars[0].dtype) for scalar in scalars])
    numbers, *flat = _all_reduced([numbers, *flat])
    sums = tf.nest.pack_sequence_as(sums, tf.unstack(numbers))
    return sums, tf.nest.pack_sequence_as(gradients, flat)


def _all_reduced(tensors):
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


def _weight_penalty(weights):
    """The penalty of weight regularisers, which no batch changes: a scalar, and its gradients.

    The gradients are a dict by the weights' positions; None and an empty dict without regularisers.
    """
    if all(weight.regularizer is None for weight in weights):
        return None, {}
    with tf.GradientTape() as tape:
        penalties = [ops.sum(w.regularizer(w)) for w in weights if w.regularizer is not None]
        penalty = tf.add_n([tf.cast(p, tf.float32) for p in penalties])
    return penalty, dense(tape.gradient(penalty, weights))


def _sum_of(gradients):
    """The sum of dicts of gradients, any of which may lack some positions."""
    gradients = list(gradients)
    places = sorted(set().union(*gradients))
    return {i: tf.add_n([part[i] for part in gradients if i in part]) for i in places}
