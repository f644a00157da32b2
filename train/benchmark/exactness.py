"""Whether a device computes what a CPU computes, and the same bits every time."""

import hashlib
import tempfile

import numpy as np

from .on_jax import state_of
from .training import LABEL_SMOOTHING, ours, training_batches

STEPS = 4
DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}


def gradients(workload):
    """The loss of a batch, and the gradient for every weight, on the CPU and on the device.

    In float32 without TF32 and without dropout. A step of gradient descent with rate 1 subtracts
    the gradients from the weights.

    Returns:
        A row of the table: `losses`, of CPU and device; `largest_difference`, over all weights, as
        a share of the largest gradient of the weight; and whether that is small.
    """
    import jax
    import keras

    import keras_transformer as kt

    jax.config.update("jax_default_matmul_precision", "highest")
    size = workload.size
    results = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_device(device):
            keras.utils.set_random_seed(0)
            model = kt.translation(size.vocabulary_size, dropout=0.0, **size.dimensions)
            loss = kt.TokenCrossentropy(label_smoothing=LABEL_SMOOTHING)
            model.compile(keras.optimizers.SGD(1.0), loss=loss)
            model.optimizer.build(model.trainable_variables)
            state = state_of(model)
            before = [np.asarray(value) for value in state[0]]
            logs, state = jax.jit(model.train_step)(state, training_batches(workload)[0])
            steps = [old - np.asarray(new) for old, new in zip(before, state[0], strict=True)]
            results.append((float(logs["loss"]), steps))
    (cpu_loss, expected), (device_loss, received) = results
    difference = largest_difference(
        [np.array(cpu_loss), *expected], [np.array(device_loss), *received]
    )
    return {
        "losses": [cpu_loss, device_loss],
        "largest_difference": difference,
        "holds": difference <= 1e-4,
    }


def largest_difference(expected, received):
    """The largest difference of arrays, each relative to its largest number; NaN if one is NaN."""
    pairs = zip(expected, received, strict=True)
    return float(np.max([np.abs(a - b).max() / max(np.abs(a).max(), 1e-30) for a, b in pairs]))


def trained_bits(workload, resumed=False, num_devices=1):
    """The losses of some steps of training, and a fingerprint of the weights that they end with.

    Args:
        workload: the work of a step.
        resumed: whether a checkpoint is saved halfway, and another model goes on from it.
        num_devices: devices that share each batch.
    """
    import jax
    import keras

    from keras_transformer.training.checkpoints import Checkpoints

    if num_devices > 1:
        devices = [f"{d.platform}:{d.id}" for d in jax.devices()[:num_devices]]
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    _, model = ours(workload)
    batches = [training_batches(workload)[step % 4] for step in range(STEPS)]
    losses = []
    for step, (inputs, labels) in enumerate(batches):
        if resumed and step == STEPS // 2:
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
    """Whether training twice, and training that is resumed, end with the same bits.

    Its process has the flags of DETERMINISTIC. Where there are two devices, they train, too, for
    the same losses but for rounding.

    Returns:
        A row of the table.
    """
    import jax

    first, again, resumed = (trained_bits(workload, resumed) for resumed in (False, False, True))
    row = {"runs": [first, again, resumed], "holds": first == again == resumed}
    if jax.device_count() > 1:
        row["runs"].append(trained_bits(workload, num_devices=2))
        apart = np.subtract(row["runs"][-1]["losses"], first["losses"])
        row["holds"] &= bool(np.abs(apart).max() <= 1e-4 * max(first["losses"]))
    return row
