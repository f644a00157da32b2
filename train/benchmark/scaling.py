"""Measures how a training step scales over devices and workers, for `--part scaling`.

    python -m train.benchmark.scaling DEVICES --size small --steps 5

measures one arrangement in this process and prints it as JSON; with TF_CONFIG it is a worker.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time

from ..gpus import HIDDEN
from .engines import SIZES, Candidate, Workload, import_keras
from .tables import table
from .training import ADAM, keras_training, ours, training_dataset

ARRANGEMENTS = {"1 device": (1, 1), "2 devices": (1, 2), "4 devices": (1, 4), "2 workers": (2, 1)}
BYTES = 4  # of a float32, in which gradients are reduced


def measure_arrangement(name, size_name, steps):
    """Runs an arrangement in separate processes; returns what its chief measured, a dict."""
    workers, devices = ARRANGEMENTS[name]
    launcher = __package__.replace("benchmark", "launch")
    launch = [sys.executable, "-m", launcher, "--workers", str(workers), "--restarts", "0"]
    command = [sys.executable, "-m", f"{__package__}.scaling", str(devices)]
    command = [*launch, "--", *command, "--size", size_name, "--steps", str(steps)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": HIDDEN}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{name} ended with code {done.returncode}: {done.stderr[-1000:]}")
    return {"name": name, **json.loads(done.stdout.splitlines()[-1])}


def arrangement_table(rows):
    """Lines of text, one per arrangement, all with the same global batch."""
    columns = {
        "arrangement": lambda row: row["name"],
        "ms a step": lambda row: f"{1000 * row['seconds']:.1f}",
        "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:.0f}",
        "all-reduce": lambda row: f"{1000 * row['all_reduce_seconds']:.1f} ms",
        "share": lambda row: f"{row['all_reduce_seconds'] / row['seconds']:.1%}",
    }
    return [
        *table(columns, rows),
        f"Reduced a step: {rows[0]['reduced_bytes'] / 1e6:.1f} MB in one all-reduce.",
    ]


def step_candidates(size, threads):
    """The exact step and Keras's own, with the same model, loss and Adam; ours first."""
    workload = Workload(size, "float32", size.batch_size, threads)
    models = {
        "the exact step": exact_step,
        "Keras's own step": keras_step,
        "the exact step, TokenCrossentropy": ours,
    }
    return [
        Candidate(label, functools.partial(keras_training, model), workload)
        for label, model in models.items()
    ]


def exact_step(workload, kind=None):
    """Our model with a loss and an Adam that Keras has too; `kind` for another class of model."""
    _, keras = import_keras(workload)
    from keras_transformer.models.encoder_decoder import translation
    from keras_transformer.training import Model

    model = translation(workload.size.vocabulary_size, **workload.size.dimensions)
    model = (kind or Model)(model.input, model.output)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(*ADAM.values()), loss, jit_compile=False)
    return "the exact step", model


def keras_step(workload):
    import keras

    _, model = exact_step(workload, keras.Model)
    return f"Keras's own step, {keras.__version__}", model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", type=int)
    parser.add_argument("--size", required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    import tensorflow as tf

    from keras_transformer.models.encoder_decoder import translation
    from keras_transformer.training import Adam, TokenCrossentropy, choose_strategy, split_cpu
    from keras_transformer.training.distribution import this_worker

    split_cpu(options.devices)
    strategy = choose_strategy()
    size = SIZES[options.size]
    with strategy.scope():
        model = translation(size.vocabulary_size, **size.dimensions)
        model.compile(Adam(1e-4), loss=TokenCrossentropy(0.1))
    workload = Workload(size, "float32", size.batch_size, 0)
    batches = training_dataset(workload)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    model.make_train_function()

    def all_reduce():
        context = tf.distribute.get_replica_context()
        gradients = [tf.zeros_like(v.value) for v in model.trainable_variables]
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.zeros([4]), *gradients])
        return tf.add_n([tf.reduce_sum(g) for g in reduced])

    @tf.function
    def reduce_once():
        return strategy.run(all_reduce)

    def _local(values):
        return strategy.experimental_local_results(values)[0].numpy()

    result = {
        "seconds": _median_seconds(
            lambda: _local(model.train_function(iterator)["loss"]), options.steps
        ),
        "all_reduce_seconds": _median_seconds(lambda: _local(reduce_once()), options.steps),
        "tokens": size.batch_size * size.length,
        "reduced_bytes": BYTES * (4 + sum(math.prod(v.shape) for v in model.trainable_variables)),
    }
    if strategy.num_replicas_in_sync == 1:
        result["all_reduce_seconds"] = 0.0  # there is nothing to reduce
    if this_worker(strategy).index == 0:
        print(json.dumps(result), flush=True)


def _median_seconds(work, count):
    """Of `count` calls, after two that trace and allocate."""
    seconds = []
    for _ in range(count + 2):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


if __name__ == "__main__":
    main()
