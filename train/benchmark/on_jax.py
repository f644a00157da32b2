"""Training steps on JAX, with what its compiler says of them."""

import collections
import glob
import itertools
import os
import tempfile

from .engines import Engine, import_jax
from .training import training_batches

TRACED_STEPS = 3


def jax_training(named_model, workload):
    """The step that `fit` compiles, on batches that are on the device already.

    Args:
        named_model: function from the workload to a name and a compiled model.
        workload: the work of a step.
    """
    jax = import_jax(workload)
    with jax.default_device(jax.devices("cpu")[0]):  # which compiles small programs sooner
        name, model = named_model(workload)
        model.optimizer.build(model.trainable_variables)
        state = state_of(model)
    batches = training_batches(workload)
    traced = jax.jit(model.train_step, donate_argnums=0).lower(state, batches[0])
    step = None

    def prepare():
        nonlocal step, state, batches
        step = traced.compile()
        state = jax.device_put(state, jax.devices()[0])
        batches = itertools.cycle([jax.device_put(batch) for batch in batches])

    def unit():
        nonlocal state
        logs, state = step(state, next(batches))
        return logs

    def finish(logs):
        return float(jax.block_until_ready(logs)["loss"])

    def details():
        yield {**cost_of(step), "peak_bytes": peak_bytes()}
        yield {"kernels": kernels(unit, finish)}

    name = f"{name}, JAX {jax.__version__}"
    return Engine(name, unit, model.count_params(), finish, prepare, details)


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
