"""Measures a GPU on JAX in a few minutes, without TensorFlow: what is worth most comes first.

1. A training step of base in bfloat16: ours, with the kernels that take the most time; KerasHub's
   layers; PyTorch's nn.Transformer under torch.compile, with its fused attention.
2. Whether a step's loss and gradients equal a CPU's.
3. A step of big, ours.
4. Attention of 4096 tokens, forward and backward: in cuDNN's kernel, in chunks, all at once.
5. Whether training twice, and training that is resumed, end with the same bits.

Each row, and the whole file of --json, is written as soon as it is measured. Engines begin one
after another, each in a process of its own: 20 steps, after it has compiled. What compiles for
longer than its share of the minutes is stopped, what does not fit into them is left out, and the
table says so. Compiled programs are kept in jax-cache/ beside the file; another run with that
folder does not compile them again.

"of peak" is the share of the GPU's peak speed that the matrix products of a step reach, "bound" the
least time in which the bytes that the compiler counts can be moved, and "busy" how long the GPU
computes in a step.
"""

import contextlib
import functools
import importlib.util
import json
import os
import statistics
import time
from typing import NamedTuple

from ..gpus import HIDDEN, gpu_count, visible_gpus
from ..settings import Parser
from . import attention, exactness, on_jax, training
from .command import add_what_all_have, choose, positive_number
from .engines import SIZES, Size, Workload, size_on
from .minutes import Measure, compared, one_by_one, timed
from .products import PEAKS, peak_of, training_flops
from .report import new_run, read_report, save
from .tables import compare, kernel_table, mark_of, nvidia_smi, report_table

EXAMPLES = """
examples:

    python -m train.benchmark --backend jax --minutes 4 --json gpu.json
    python -m train.benchmark --backend jax --gpu H100 --minutes 6 --json gpu.json
    python -m train.benchmark --backend jax --device cpu --toy
        a quick check that it runs; ignore its numbers
"""
LONG = {"batch_size": 4, "length": 4096}
# What our step of base should reach on an H100, and that of big.
FASTER_THAN = {"KerasHub": 1.5, "PyTorch": 1.0}
TOKENS_PER_SECOND_AT_BIG = 120_000
CACHE = "jax-cache"  # folder beside the report
SECONDS_WORTH_KEEPING = 10  # of compiling


def parse(arguments):
    parser = Parser("python -m train.benchmark --backend jax", __doc__, EXAMPLES)
    add_what_all_have(parser)
    parser.add_argument(
        "--minutes", type=positive_number, default=4.0, metavar="M",
        help="for all that is measured, from the start of the process (default: 4)",
    )  # fmt: skip
    parser.set_defaults(device="gpu")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("jax") is None:
        parser.error("--backend jax needs jax, which is not installed")
    choose(parser, options)
    return options


class Table(NamedTuple):
    """Rows that are compared with the first of them."""

    name: str
    title: str
    size: Size
    dtype: str
    rows: list
    flops: int | None = None  # of the products of a unit of work

    @property
    def tokens(self):
        """Target tokens of a unit of work."""
        return self.size.batch_size * self.size.length


def measures_of(options):
    """What is measured, a list of `Measure`."""
    on_gpu = options.device == "gpu"
    visible = visible_gpus(gpu_count(), os.environ)[0] if on_gpu else HIDDEN
    ours = functools.partial(on_jax.jax_training, training.ours)
    kerashub = functools.partial(on_jax.jax_training, training.kerashub)
    pytorch = training.pytorch_training
    kinds = {
        label: functools.partial(attention.attention_engine, label)
        for label in attention.KINDS
        if on_gpu or label != attention.ON_GPUS
    }

    def size_of(name):
        return size_on(options.device, "toy" if options.toy else name)

    def training_table(name):
        size = size_of(name)
        flops, tokens = training_flops(size), f"{size.batch_size} x {size.length} tokens"
        title = f"{size.describe()}, {tokens}; ms per step of {flops / 1e9:.3g} GFLOP"
        return Table(f"train-{name}, bfloat16", title, size, "bfloat16", [], flops)

    def measure(table, label, work, function, share, flags="", is_ours=True):
        size, threads = table.size, options.threads
        workload = Workload(
            size, table.dtype, size.batch_size, threads, options.device, True, "jax"
        )
        environment = cache_of(options.json) | workload.environment(visible)
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        return Measure(
            table, label, functools.partial(work, function, workload), environment, share, is_ours
        )

    base, big = training_table("base"), training_table("big")
    few = size_of("small")._replace(batch_size=4)
    exact = Table("exact", f"{few.describe()}, {few.batch_size} rows", few, "float32", [])
    size = SIZES["toy"]._replace(**({"length": 64} if options.toy else LONG))
    heads = f"{attention.NUM_HEADS} heads of {attention.KEY_DIM}"
    title = f"causal attention and its gradients, {size.batch_size} x {size.length} tokens, {heads}"
    long = Table("long, bfloat16", title, size, "bfloat16", [])
    return [
        measure(base, "keras_transformer", timed, ours, 0.5),
        measure(base, "KerasHub layers", timed, kerashub, 0.3, is_ours=False),
        measure(base, "PyTorch nn.Transformer", timed, pytorch, 0.35, is_ours=False),
        measure(exact, "loss and gradients, CPU = device", compared, exactness.gradients, 0.2),
        measure(big, "keras_transformer", timed, ours, 0.35),
        *(measure(long, label, timed, build, 0.15) for label, build in kinds.items()),
        measure(
            exact, "trained twice = resumed, deterministic", compared, exactness.same_bits, 0.5,
            flags=exactness.FLAGS,
        ),
    ]  # fmt: skip


def cache_of(report):
    """Variables that have JAX keep its programs in a folder beside a report, if there is one."""
    if not report:
        return {}
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(report.absolute().with_name(CACHE)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SECONDS_WORTH_KEEPING),
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # many small files
    }
    return {name: value for name, value in variables.items() if name not in os.environ}


def marks_of(table, rows, gpu):
    """What a training step should reach on an H100 or H200, and what it reached.

    Args:
        table: the name of the table.
        rows: its rows, ours first.
        gpu: the name of the GPU.

    Returns:
        A list as of `mark_of`.
    """
    ours, *peers = rows
    if gpu not in PEAKS or not table.startswith("train"):
        return []
    if "big" in table:
        speed = ours.get("tokens_per_second")
        return [mark_of("target tokens a second", speed, TOKENS_PER_SECOND_AT_BIG)]
    ratios = {row["name"].split()[0]: row.get("ours_is_faster_by", [None])[0] for row in peers}
    return [
        mark_of(f"times as fast as {peer}", ratios.get(peer), wanted)
        for peer, wanted in FASTER_THAN.items()
    ]


def line_of(measure, row, begun):
    """What is said of a row as soon as it is there."""
    said = row["unavailable"] or row.get("afterwards")
    if row["seconds"]:
        times = (row["seconds_to_start"], row["seconds_to_compile"])
        told = f"{1000 * statistics.median(row['seconds']):.2f} ms, began in {times[0]:.1f} s, "
        said = f"{told}compiled in {times[1]:.1f} s" + (f"; then {said}" if said else "")
    elif "holds" in row:
        said = "yes" if row["holds"] else "NO"
    return f"{time.monotonic() - begun:4.0f} s  {measure.table.name}: {row['name']}: {said}"


def run(arguments, begun):
    """Returns the exit status: 1 if an engine of ours fails or a number is wrong, 2 if a package
    is missing.

    Args:
        arguments: of the command line, a list.
        begun: when the process began, in seconds of `time.monotonic`.
    """
    options = parse(arguments)
    report = new_run(options)
    runs = [*read_report(options.json), report]
    print(f"{options.minutes:g} minutes;", *described(report["machine"]), sep=" ", flush=True)
    measures = measures_of(options)
    failed, lacking = False, set()
    with contextlib.closing(one_by_one(measures, begun, options.minutes)) as news:
        for measure, row in news:
            is_over, rows = "doing" not in row, measure.table.rows
            if row.get("has_no_device"):
                raise ValueError(f"JAX does not compute on {options.gpu}: {row['trouble']}")
            if not is_over and not row["seconds"]:
                continue
            rows[:] = [*(other for other in rows if other is not row), row]
            if not is_over and options.gpu and "gpu_state" not in row:
                row["gpu_state"] = nvidia_smi()  # while its process looks at the kernels
            report["measurements"] = measured(measures, options.gpu)
            if options.json:
                save(options.json, runs)
            if is_over:
                print(line_of(measure, row, begun), *kernel_table(row), sep="\n", flush=True)
                failed |= measure.is_ours and has_failed(row)
                lacking |= {row["lacks"]} if row.get("lacks") else set()
    print("", *report_table(runs), sep="\n", flush=True)
    if lacking and not failed:
        raise ModuleNotFoundError(
            f"Everything was measured but what needs {' and '.join(sorted(lacking))}, which "
            "is not installed. docs/device.md tells how to bring packages."
        )
    return int(failed)


def described(machine):
    """What is known of a machine, words."""
    for name, known in machine.items():
        if known:
            yield f"{name.replace('_', ' ')}: {json.dumps(known)};"


def measured(measures, gpu):
    """The tables that have rows, as the report has them, a list of dictionaries."""
    tables = {measure.table.name: measure.table for measure in measures if measure.table.rows}
    for table in tables.values():
        compare(table.rows, table.tokens, table.flops, peak_of(gpu, table.dtype))
    return [
        {
            "table": name,
            "title": table.title,
            "engines": table.rows,
            "marks": marks_of(name, table.rows, gpu),
        }
        for name, table in tables.items()
    ]


def has_failed(row):
    """Whether a number is wrong, or an engine failed other than for time."""
    troubles = (row.get("unavailable"), row.get("afterwards"))
    return row.get("holds") is False or any(str(each).startswith("failed") for each in troubles)
