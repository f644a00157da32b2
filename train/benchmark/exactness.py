"""Whether a device computes what a CPU computes, and the same bits every time.

Each function runs in a process of its own, because JAX reads its flags once.
"""

import hashlib
import tempfile

import numpy as np

from .on_jax import state_of
from .rounds import in_process
from .training import LABEL_SMOOTHING, ours, training_batches

STEPS = 4
DETERMINISTIC = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}


def gradients(workload):
    """The loss of a batch, and the gradient for every weight, on the CPU and on the device.

    In float32 without TF32 and without dropout. A step of gradient descent with rate 1 subtracts
    the gradients from the weights.

    Returns:
        A dictionary: `losses`, of CPU and device; `largest_difference`, over all weights, as a
        share of the largest gradient of the weight.
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
    return {
        "losses": [cpu_loss, device_loss],
        "largest_difference": largest_difference(
            [np.array(cpu_loss), *expected], [np.array(device_loss), *received]
        ),
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


def visible_devices(_):
    """The number of devices that JAX sees."""
    import jax

    return jax.device_count()


def measure_exactness(workload):
    """The rows of the table: what was compared, what came out, whether that is as it should be.

    Args:
        workload: a small one, float32.
    """
    difference = in_process(gradients, workload)
    first, again, resumed = (
        in_process(trained_bits, workload, is_resumed, environment=DETERMINISTIC)
        for is_resumed in (False, False, True)
    )
    rows = [
        {
            "name": "loss and gradients, CPU = device, float32 without TF32",
            **difference,
            "holds": difference["largest_difference"] <= 1e-4,
        },
        {"name": "trained twice, deterministic", "runs": [first, again], "holds": first == again},
        {
            "name": "resumed from a checkpoint, deterministic",
            "runs": [first, resumed],
            "holds": first == resumed,
        },
    ]
    if in_process(visible_devices, workload) > 1:
        shared = in_process(trained_bits, workload, False, 2)
        apart = np.subtract(shared["losses"], first["losses"])
        rows.append(
            {
                "name": "one device = two devices",
                "runs": [first, shared],
                "holds": bool(np.abs(apart).max() <= 1e-4 * max(first["losses"])),
            }
        )
    return rows
