"""Whether a device computes what a CPU computes, and the same bits every time."""

import hashlib
import tempfile

import numpy as np

from .engines import import_jax
from .on_jax import state_of
from .training import LABEL_SMOOTHING, ours, training_batches

STEPS = 4
# The step that gradients are read from: so large that what a weight loses when it is subtracted
# from is far below the gradient.
RATE = 4096.0
FLAGS = "--xla_gpu_deterministic_ops=true"


def gradients(workload):
    """Returns what compares the loss of a batch, and the gradient for every weight, with a CPU's.

    In float32 without TF32, without dropout, and with GELU, which has no kink that rounding could
    cross. A step of gradient descent subtracts the gradients from the weights.
    """
    jax = import_jax(workload)
    import keras

    import keras_transformer as kt

    jax.config.update("jax_default_matmul_precision", "highest")
    size, batch = workload.size, training_batches(workload)[0]
    settings = {"dropout": 0.0, "activation": "gelu", **size.dimensions}
    with jax.default_device(jax.devices("cpu")[0]):
        keras.utils.set_random_seed(0)
        model = kt.translation(size.vocabulary_size, **settings)
        loss = kt.TokenCrossentropy(label_smoothing=LABEL_SMOOTHING)
        model.compile(keras.optimizers.SGD(RATE), loss=loss)
        model.optimizer.build(model.trainable_variables)
        weights = state_of(model)

    def stepped(device):
        with jax.default_device(device):
            logs, (after, *_) = jax.jit(model.train_step)(weights, batch)
        steps = [
            np.asarray(old) - np.asarray(new) for old, new in zip(weights[0], after, strict=True)
        ]
        return [np.asarray(logs["loss"]), *steps]

    expected = stepped(jax.devices("cpu")[0])

    def compare():
        received = stepped(jax.devices()[0])
        difference = largest_difference(expected, received)
        losses = [float(expected[0]), float(received[0])]
        return {"losses": losses, "largest_difference": difference, "holds": difference <= 1e-4}

    return compare


def largest_difference(expected, received):
    """The largest difference of arrays, each as a share of what is expected; NaN if one is NaN."""
    norms = [
        (np.linalg.norm(a - b), np.linalg.norm(a)) for a, b in zip(expected, received, strict=True)
    ]
    return float(np.max([apart / max(norm, 1e-30) for apart, norm in norms]))


def trained_bits(workload, is_resumed):
    """The losses of some steps of training, and a fingerprint of the weights that they end with.

    Args:
        workload: the work of a step.
        is_resumed: whether a checkpoint is saved halfway, and another model goes on from it.
    """
    from keras_transformer.training.checkpoints import Checkpoints

    _, model = ours(workload)
    batches = [training_batches(workload)[step % 4] for step in range(STEPS)]
    losses = []
    for step, (inputs, labels) in enumerate(batches):
        if is_resumed and step == STEPS // 2:
            with tempfile.TemporaryDirectory() as folder:
                Checkpoints(folder, model).save()
                _, model = ours(workload)
                model.optimizer.build(model.trainable_variables)
                Checkpoints(folder, model).restore()
        history = model.fit(inputs, labels, batch_size=len(labels), shuffle=False, verbose=0)
        losses += history.history["loss"]
    digest = hashlib.sha256()
    for variable in model.trainable_variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return {"losses": losses, "weights": digest.hexdigest()[:16]}


def same_bits(workload):
    """Returns what finds out if training twice, and resumed training, end with the same bits.

    Its process needs XLA_FLAGS with FLAGS.
    """
    import_jax(workload)
    import keras_transformer  # noqa: F401 - takes long

    def compare():
        runs = [trained_bits(workload, is_resumed) for is_resumed in (False, False, True)]
        return {"runs": runs, "holds": runs[0] == runs[1] == runs[2]}

    return compare
