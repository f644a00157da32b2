"""The only file of `training/` that uses what Keras and TensorFlow do not promise.

Each function says what it relies on. `tests/test_internals.py` has a canary for each, which says
what to do if a new version of Keras or TensorFlow has changed it.
"""

import functools

import keras

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


def all_layers(model):
    """A model and all layers inside it, however deep.

    Relies on `Layer._flatten_layers`; `Model.layers` stops at the outermost layers.
    """
    return model._flatten_layers()


def added_losses(layer):
    """The losses that the latest call of a layer added with `add_loss`, and its activity penalty.

    Relies on `Layer._get_own_losses`; `Layer.losses` includes those of sublayers and weights.
    """
    return layer._get_own_losses()


@functools.cache
def divides_activity_penalties():
    """Whether Keras divides the penalty of an output by its rows; before 3.14 it did not.

    Tries it out, because the documentation does not say.
    """
    layer = keras.layers.ActivityRegularization(l1=1.0)
    layer(keras.ops.ones((2, 1)))
    return float(layer.losses[0]) == 1.0


def loss_axis(loss):
    """The `axis` that one of Keras's losses was made with, or None.

    Relies on `_fn_kwargs` of Keras's losses; `CosineSimilarity` has it nowhere else.
    """
    return getattr(loss, "_fn_kwargs", {}).get("axis")


def keras_mask_of(tensor):
    """The mask that Keras attaches to a tensor, or None.

    Relies on `keras.src.backend.get_keras_mask`: the attribute of the tensor is not enough,
    because the tensors of a jitted JAX function do not have it.
    """
    from keras.src.backend import get_keras_mask

    return get_keras_mask(tensor)


def set_keras_mask(tensor, mask):
    """Attaches a mask to a tensor, as a layer would.

    Relies on `keras.src.backend.set_keras_mask`.
    """
    from keras.src.backend import set_keras_mask

    set_keras_mask(tensor, mask)


def compiled_metrics(model):
    """The metrics given to `compile`, as the one metric in which Keras wraps them, or None.

    Relies on `Model._compile_metrics`.
    """
    return model._compile_metrics


def build_compiled_metrics(model):
    """Builds the metrics given to `compile`, all of them objects, without labels or predictions.

    Relies on `build` of `Model._compile_metrics` reading these for names of metrics only.
    """
    if model._compile_metrics is not None:
        model._compile_metrics.build(None, None)


def loss_tracker(model):
    """The metric in which Keras averages the loss of an epoch.

    Relies on `Model._loss_tracker`: a subclass may leave it out of `metrics`.
    """
    return model._loss_tracker


def forget_compiled_metrics(model):
    """Makes the next `compile` start without metrics; Keras keeps the previous ones.

    Relies on `Model._compile_metrics`.
    """
    model._compile_metrics = None


def is_compiled_on_tensorflow():
    """Whether TensorFlow is tracing a function that XLA will compile, as far as can be known.

    Relies on `tf.function(jit_compile=True)` entering what TensorFlow calls an XLA context.
    """
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def last_call(tensor):
    """The layer that made an output of a functional model, its keyword arguments, and its inputs.

    Relies on `_keras_history` of symbolic tensors and `_inbound_nodes` of layers.
    """
    layer, index, _ = tensor._keras_history
    node = layer._inbound_nodes[index]
    return layer, node.arguments.kwargs, node.input_tensors


def calls_of(model):
    """(layer, keyword arguments, symbolic inputs) of each call in the graph of a functional model.

    Calls inside nested models come last; a model without a graph has none. Relies on
    `_nodes_by_depth` of functional models.
    """
    nodes = [node for some in getattr(model, "_nodes_by_depth", {}).values() for node in some]
    return [(n.operation, n.arguments.kwargs, n.input_tensors) for n in nodes if not n.is_input]


def disable_gradient_reduction(optimizer):
    """Stops an optimizer from summing gradients over replicas; the train step has done it.

    Relies on `_all_reduce_sum_gradients`, which `apply_gradients` calls under a strategy.

    Raises:
        RuntimeError: if Keras has no such method any more: gradients would be summed twice.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise RuntimeError(
            "This version of Keras sums gradients in a way that this library does not know, so "
            "several replicas would give wrong numbers. Install a version that setup.py "
            f"names. Received: Keras {keras.__version__}."
        )
    optimizer._all_reduce_sum_gradients = list


def adam_moments(optimizer, variable):
    """The two moments that Keras's Adam keeps for a variable.

    Relies on `_momentums`, `_velocities` and `_get_variable_index`.
    """
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


class SymbolicBuildMixin:
    """A mixin for `keras.Model` that builds Keras's metrics from the shapes of the data.

    Keras would read a first batch, which advances a reshuffled dataset to its second order, and
    average it over the replicas, which fails with several workers.

    Relies on Keras calling `_maybe_symbolic_build` before it trains or evaluates; on
    `_symbolic_build`, `_compile_loss` and `_distribute_strategy`; on the attribute
    `data_adapter` of Keras's iterators and `_value_specs` of distributed data.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if self._distribute_strategy is None:
            return
        if self._compile_loss is not None:
            # Keras's wrapper of the loss, which the step never calls. If it were built, it would
            # refuse more labels than outputs, such as those of `PretrainingLoss`.
            self._compile_loss.built = True
        if iterator is not None:
            specs = iterator.data_adapter.get_tf_dataset().element_spec
            # Data that is already distributed has a shape for each replica.
            data_batch = keras.tree.map_structure(
                lambda spec: getattr(spec, "_value_specs", [spec])[0], specs
            )
        with self._distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)


def has_unseeded_shuffle(dataset):
    """Whether a `tf.data.Dataset` is shuffled, anywhere in its pipeline, without a seed.

    Relies on `Dataset._inputs`, and on the class name `_ShuffleDataset` with its `_seed` and
    `_seed2`, both 0 without a seed.
    """
    if type(dataset).__name__ == "_ShuffleDataset":
        seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
        if None not in seeds and not any(int(seed) for seed in seeds):
            return True
    return any(map(has_unseeded_shuffle, dataset._inputs()))


def workers_on_split_cpus(count, options):
    """A strategy in which each worker uses the `count` CPU devices that it was split into.

    TensorFlow's own strategy would use only the first, so several GPUs on each of several machines
    could not be simulated.

    Relies on `CollectiveAllReduceExtended`, the only thing that `MultiWorkerMirroredStrategy`
    creates in its constructor, and on its method `_initialize_local_devices`.
    """
    from tensorflow.python.distribute import collective_all_reduce_strategy

    class Extended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
        def _initialize_local_devices(self, cluster_resolver, worker_device):
            return tuple(f"{worker_device}/device:CPU:{index}" for index in range(count)), "CPU"

    class WorkersOnSplitCpus(tf.distribute.MultiWorkerMirroredStrategy):
        def __init__(self):
            extended = Extended(self, cluster_resolver=None, communication_options=options)
            tf.distribute.Strategy.__init__(self, extended)

    return WorkersOnSplitCpus()
