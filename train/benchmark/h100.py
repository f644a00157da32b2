"""Compiles a training step for an H100, on a machine without one, and prints what it would cost.

It compiles a whole training step, Adam included, with XLA's own compiler for an H100, and prints
the compiler's figures: operations, bytes moved to and from memory, temporary memory. The first two
give a lower bound on the time, from the speed of products (989 TFLOP/s in bfloat16) and of memory
(3.35 TB/s). No time is measured, and no kernel is tuned: use the figures to compare two programs.
`fit` compiles all but the sum over replicas, clipping and Adam.

The compiler needs a separate environment (5.5 GB):

    python -m venv h100 && h100/bin/pip install "jax[cuda12]==0.10.2"
    python -m train.benchmark.h100 --compiler h100/bin/python
"""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import subprocess
import tempfile

from ..command import one_line_errors
from ..settings import Parser
from . import training
from .engines import SIZES, Workload, size_on

PEAK_FLOPS, PEAK_BYTES = 989e12, 3.35e12  # a second: dense in bfloat16; HBM3
COMPILER = pathlib.Path(__file__).with_name("h100_compiler.py")
COLUMNS = (
    "| step | GFLOP | GiB moved | at least, ms | products alone, ms | temporary MiB | fusions "
    "| fused attentions |\n" + "| --- " * 8 + "|"
)


# For each step, the function of `training` that makes its model, and its settings.
STEPS = {
    "ours": (training.ours, {"attention_dropout": 0.0}),
    "ours, with dropout of attention weights": (training.ours, {}),
    "ours, with --remat": (training.ours, {"attention_dropout": 0.0, "remat": True}),
    "KerasHub's layers, with dropout of attention weights": (training.kerashub, {}),
}


def step_program(name, size_name):
    """The whole step of one of `STEPS`, as serialised StableHLO, bytes."""
    size = size_on("gpu", size_name)
    function, settings = STEPS[name]
    workload = Workload(size, "bfloat16", size.batch_size, 1, compiled=True)
    _, model = function(workload, **settings)
    model.optimizer.build(model.trainable_variables)
    import tensorflow as tf

    @tf.function(jit_compile=True, autograph=False)
    def step(source_ids, target_ids, labels):
        return model.train_step(({"source_ids": source_ids, "target_ids": target_ids}, labels))

    ids = tf.ones([size.batch_size, size.length], tf.int32)
    return step.experimental_get_compiler_ir(ids, ids, ids)(stage="stablehlo_serialized")


def compiled(program, compiler):
    """The cost of a program on an H100: the figures of `h100_compiler`, a dict.

    Args:
        program: serialised StableHLO, bytes.
        compiler: path of the Python in the compiler's environment.

    Raises:
        RuntimeError: if it does not compile.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    with tempfile.NamedTemporaryFile() as file:
        pathlib.Path(file.name).write_bytes(program)
        command = [compiler, str(COMPILER), file.name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The compiler failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def program_of(name, size_name):
    """What `step_program` returns, called in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(step_program, name, size_name).result()


def figures_of(name, size_name, compiler):
    """The figures of one of `STEPS`."""
    return compiled(program_of(name, size_name), compiler)


def row(name, found):
    """A line of the table."""
    products, memory = found["gflop"] * 1e9 / PEAK_FLOPS, found["gib_moved"] * 2**30 / PEAK_BYTES
    return (
        f"| {name} | {found['gflop']:,.0f} | {found['gib_moved']:.1f} | "
        f"{1000 * max(products, memory):.2f} | {1000 * products:.2f} | "
        f"{found['temporary_mib']:,.0f} | {found['fusions']:,} | {found['fused_attention']} |"
    )


def main(arguments=None):
    """Compiles every step and prints a Markdown table."""
    parser = Parser(prog="python -m train.benchmark.h100", description=__doc__)
    parser.add_argument("--compiler", metavar="PYTHON", help="Python of the compiler's environment")
    parser.add_argument("--size", choices=[*SIZES], default="base", help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.compiler is None:
        parser.error("--compiler is required: the Python of an environment with jax[cuda12]")
    with one_line_errors():
        print(COLUMNS)
        for name in STEPS:
            print(row(name, figures_of(name, options.size, options.compiler)), flush=True)


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    main()
