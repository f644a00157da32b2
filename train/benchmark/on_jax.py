"""Our training step and our decoding on JAX, with what its compiler says of them."""

import collections
import functools
import glob
import itertools
import os
import tempfile

import numpy as np

from .decoding import END_ID, OUTPUT_TOKENS, START_ID, our_model, sources
from .engines import Engine, import_keras
from .training import training_batches

TRACED_STEPS = 3


def jax_training(named_model, workload):
    """The step that `fit` compiles, on batches that are on the device already.

    Args:
        named_model: function from the workload to a name and a compiled model.
        workload: the work of a step.
    """
    name, model = named_model(workload)
    import jax

    model.optimizer.build(model.trainable_variables)
    batches = itertools.cycle(map(jax.device_put, training_batches(workload)))
    state = state_of(model)
    step = jax.jit(model.train_step, donate_argnums=0).lower(state, next(batches)).compile()

    def unit():
        nonlocal state
        logs, state = step(state, next(batches))
        return logs

    def finish(logs):
        return float(jax.block_until_ready(logs)["loss"])

    def details():
        return {**cost_of(step), "peak_bytes": peak_bytes(), "kernels": kernels(unit, finish)}

    return Engine(f"{name}, JAX {jax.__version__}", unit, model.count_params(), finish, details)


def jax_decoding(num_beams, workload):
    """Our encoder, cache and search, one program from token ids to token ids."""
    _, keras = import_keras(workload)
    import jax

    from keras_transformer.decoding.search import beam_search

    model = our_model(workload.size, workload.dtype)
    source_ids = jax.device_put(sources(workload))

    def decode(weights, source_ids):
        # The weights are arguments: as constants, the compiler would copy them.
        with keras.StatelessScope(state_mapping=list(zip(model.variables, weights, strict=True))):
            encoded = model.encode(source_ids)
            return beam_search(
                functools.partial(model.step, encoded),
                model.start_cache(encoded, num_beams, OUTPUT_TOKENS),
                num_beams=num_beams,
                limits=np.full(len(source_ids), OUTPUT_TOKENS, "int32"),
                start_id=START_ID,
                end_id=END_ID,
                forbidden_ids=(0, START_ID, END_ID),  # no end before the limit
                capacity=OUTPUT_TOKENS,
            ).lengths

    weights = [variable.value for variable in model.variables]
    search = jax.jit(decode).lower(weights, source_ids).compile()

    def finish(lengths):
        return float(np.mean(lengths))

    def details():
        # Of one step: the compiler counts the body of a loop once.
        return {"temporary_bytes": cost_of(search)["temporary_bytes"], "peak_bytes": peak_bytes()}

    name = f"ours, beam {num_beams}, JAX {jax.__version__}"
    return Engine(name, lambda: search(weights, source_ids), model.count_params(), finish, details)


def state_of(model):
    """The variables of a compiled model, in the order in which a train step on JAX takes them."""
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    return tuple([variable.value for variable in group] for group in groups)


def cost_of(step):
    """What XLA says a compiled program does: operations, bytes moved, temporary bytes.

    It counts the body of a loop once, and knows nothing of what happens inside cuDNN's kernels.
    """
    cost, memory = step.cost_analysis() or {}, step.memory_analysis()
    cost = cost[0] if isinstance(cost, list) else cost  # a list before JAX 0.5
    return {
        "operations": cost.get("flops"),
        "bytes_moved": cost.get("bytes accessed"),
        "temporary_bytes": getattr(memory, "temp_size_in_bytes", None),
    }


def peak_bytes():
    """The most memory that JAX has held on its first device; None where it does not count."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def kernels(unit, finish, steps=TRACED_STEPS):
    """Milliseconds that each kernel takes in a step, the longest first, as JAX's profiler sees it.

    Args:
        unit: begins one step.
        finish: waits until the result of `unit` is there.
        steps: how many are traced.

    Returns:
        A dictionary: `busy_ms`, the time in a step in which the device computes; `span_ms`, from
        the first kernel to the end of the last, divided by the steps; `by_name`, a list of
        (name, ms per step, calls per step). Empty where nothing of a GPU was traced. Only
        `failed`, why, where the profiler fails: that must not cost what was measured before.
    """
    try:
        return summed(_traced(unit, finish, steps), steps)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def _traced(unit, finish, steps):
    """The kernels of some steps, a list of (start, duration, name) in nanoseconds."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                result = unit()
            finish(result)
        [path] = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        planes = jax.profiler.ProfileData.from_file(path).planes
        return [
            (event.start_ns, event.duration_ns, event.name)
            for plane in planes
            if "GPU:" in plane.name
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]


def summed(events, steps):
    """What `kernels` returns, of (start, duration, name) in nanoseconds."""
    if not events:
        return {}
    times, calls, busy, end = collections.Counter(), collections.Counter(), 0, 0
    for start, duration, name in sorted(events):
        times[name] += duration
        calls[name] += 1
        busy += max(start + duration - max(start, end), 0)  # kernels of several streams overlap
        end = max(end, start + duration)
    return {
        "busy_ms": busy / steps / 1e6,
        "span_ms": (end - min(start for start, *_ in events)) / steps / 1e6,
        "by_name": [
            (name, time / steps / 1e6, calls[name] / steps) for name, time in times.most_common()
        ],
    }
