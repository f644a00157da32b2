"""Measures this library on a GPU with JAX, on a machine without TensorFlow.

Everything runs from a checkout: the machine needs JAX and NumPy, PyTorch for comparison, and the
few packages that `python -m train.device.carry` collects on a machine with a network. Each part
takes less than eight minutes; its tables are printed and appended to two files, a JSON file with
every number and a text file beside it.

    train-small, train-base, train-big: training steps of ours, of KerasHub's layers and of
        PyTorch, taking turns, in bfloat16 and float32
    decode: beam search and greedy search with a cache of full size
    exact: the same numbers as a CPU, the same bits twice and after a restart
    long: attention of 4096 tokens

In the tables, "of peak" is the share of the device's peak speed that the matrix products of a
step reach (model FLOP utilisation), "bound" is the least time in which the bytes that the compiler
says are moved can be moved, and "busy" is how long the device computes in a step.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import statistics
import sys

from ..benchmark import products, training
from ..benchmark.decoding import OUTPUT_TOKENS, SOURCE_TOKENS
from ..benchmark.engines import SIZES, Candidate, Workload, size_on
from ..benchmark.rounds import measure
from ..benchmark.tables import compare, table
from . import attention, decoding, exactness
from .machine import check_machine, describe_machine, in_process, nvidia_smi
from .training import jax_training

EXIT_CODE_MISTAKE = 2
# Operations a second, in float32 by TF32, and bytes a second: dense, from NVIDIA's data sheets.
PEAKS = {
    "H100": {"bfloat16": 989e12, "float32": 495e12, "bytes": 3.35e12},
    "H200": {"bfloat16": 989e12, "float32": 495e12, "bytes": 4.8e12},
}
DTYPES = ("bfloat16", "float32")
LONG = {"batch_size": 4, "length": 4096}
DECODE_BATCHES = (1, 32, 256)
LARGEST_KERNELS = 12


def training_part(name, options):
    """Tables of training steps of one size, one for each dtype, and one of the largest kernels."""
    size = SIZES["toy"] if options.toy else size_on(options.device, name)
    flops = products.training_flops(size)
    for dtype in DTYPES[:1] if options.toy else DTYPES:
        ours = Workload(size, dtype, size.batch_size, options.threads, options.device, True, "jax")
        candidates = [
            Candidate("ours", functools.partial(jax_training, training.ours), ours),
            Candidate("KerasHub", functools.partial(jax_training, training.kerashub), ours),
            Candidate("PyTorch nn.Transformer", training.pytorch_training, ours),
        ]
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, size.batch_size * size.length, flops)
        title = (
            f"training, {name}: {size.describe()}, {size.batch_size} x {size.length} tokens on "
            f"each side, {dtype}; a step of {flops / 1e9:.4g} GFLOP"
        )
        yield title, rows, step_table(rows, peaks(options.kind), dtype)
        yield f"largest kernels of ours, {name}, {dtype}", [], kernel_table(rows[0])


def decode_part(options):
    """Tables of beam search and greedy search, one for each batch size."""
    size = SIZES["toy" if options.toy else "base"]
    for batch_size in (2,) if options.toy else DECODE_BATCHES:
        workload = Workload(
            size, DTYPES[0], batch_size, options.threads, options.device, True, "jax"
        )
        candidates = decoding.decoding_candidates(workload)
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, batch_size * OUTPUT_TOKENS)
        title = (
            f"decoding: {size.describe()}, batch {batch_size}, {SOURCE_TOKENS} -> "
            f"{OUTPUT_TOKENS} tokens, {workload.dtype}"
        )
        yield title, rows, step_table(rows, peaks(options.kind), workload.dtype)


def exact_part(options):
    """A table of what must be equal."""
    size = SIZES["toy" if options.toy else "small"]._replace(batch_size=4)
    workload = Workload(
        size, "float32", size.batch_size, options.threads, options.device, True, "jax"
    )
    rows = exactness.measure_exactness(functools.partial(in_process, options), workload)
    columns = {
        "what": lambda row: row["name"],
        "holds": lambda row: "yes" if row["holds"] else "NO",
        "numbers": lambda row: json.dumps(
            {key: value for key, value in row.items() if key not in ("name", "holds")}
        ),
    }
    yield f"exactness: {size.describe()}, {size.batch_size} rows", rows, table(columns, rows)


def long_part(options):
    """Tables of long attention, one for each dtype."""
    lengths = {"batch_size": 2, "length": 64} if options.toy else LONG
    for dtype in DTYPES[1:] if options.toy else DTYPES:
        candidates = attention.attention_candidates(
            **lengths, dtype=dtype, threads=options.threads, device=options.device
        )
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, lengths["batch_size"] * lengths["length"])
        title = (
            f"causal attention, forward and backward: {lengths['batch_size']} x "
            f"{lengths['length']} tokens, {attention.NUM_HEADS} heads of {attention.KEY_DIM}, "
            f"{dtype}"
        )
        yield title, rows, step_table(rows, peaks(options.kind), dtype)


PARTS = {
    **{f"train-{name}": functools.partial(training_part, name) for name in SIZES if name != "toy"},
    "decode": decode_part,
    "exact": exact_part,
    "long": long_part,
}


def step_table(rows, peak, dtype):
    """Lines of text, one for each engine."""

    def shown(key, form, scale=1.0):
        return lambda row: format(row[key] / scale, form) if row.get(key) else ""

    def of_peak(row):
        return f"{row['gflops'] * 1e9 / peak[dtype]:.0%}" if peak and row.get("gflops") else ""

    def bound(row):
        moved = row.get("bytes_moved")
        return f"{1000 * moved / peak['bytes']:.2f}" if peak and moved else ""

    def busy(row):
        return format(row["kernels"]["busy_ms"], ".2f") if row.get("kernels") else ""

    def ratio(row):
        ratios = row.get("ours_is_faster_by") if row is not rows[0] else None
        return "{:.2f} ({:.2f}-{:.2f})".format(*ratios) if ratios else ""

    columns = {
        "engine": lambda row: row["name"],
        "tokens/s": shown("tokens_per_second", ",.0f"),
        "ms": lambda row: f"{1000 * statistics.median(row['seconds']):.2f}",
        "first faster by": ratio,
        "of peak": of_peak,
        "bound, ms": bound,
        "busy, ms": lambda row: (
            format(row["kernels"]["busy_ms"], ".2f") if row.get("kernels") else ""
        ),
        "GiB held": shown("peak_bytes", ".2f", 2**30),
        "GiB moved": shown("bytes_moved", ".1f", 2**30),
        "result": lambda row: format(row["result"], ".4f"),
    }
    return table(columns, rows)


def kernel_table(row):
    """Lines of text, one for each of the largest kernels of a step."""
    found = row.get("kernels")
    if not found:
        return ["(no kernel of a GPU was traced)"]
    rows = [
        {"name": name, "ms": ms, "calls": calls}
        for name, ms, calls in found["by_name"][:LARGEST_KERNELS]
    ]
    columns = {
        "kernel": lambda row: row["name"][:80],
        "ms a step": lambda row: f"{row['ms']:.3f}",
        "calls": lambda row: f"{row['calls']:.0f}",
        "share": lambda row: f"{row['ms'] / found['busy_ms']:.0%}",
    }
    return [
        *table(columns, rows),
        f"The device computes {found['busy_ms']:.2f} of {found['span_ms']:.2f} ms a step.",
    ]


def peaks(kind):
    """The peak speeds of a device, by its name; None if they are not known."""
    return next((speeds for name, speeds in PEAKS.items() if name in kind), None)


def read_report(path):
    """The runs that a report has already, or none.

    Raises:
        ValueError: if the file is something else.
    """
    if not path.exists():
        return []
    try:
        runs = json.loads(path.read_text("utf-8"))["runs"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no report of this command. Choose another --output") from None
    return runs


def append_to_report(path, run, lines):
    """Adds a run to the JSON file, which is replaced as a whole, and its lines to the text file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"runs": [*read_report(path), run]}, indent=1) + "\n", "utf-8")
    os.replace(draft, path)
    with path.with_suffix(".txt").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def run(options):
    """Returns the exit status: 1 if a number of ours is missing or wrong."""
    options.kind = check_machine(options)
    read_report(options.output)
    failed = False
    for part in options.part:
        started = datetime.datetime.now(datetime.UTC)
        report = {"part": part, "date": f"{started:%Y-%m-%d %H:%M}Z", "toy": options.toy}
        report |= {"machine": describe_machine(options), "tables": []}
        heading = "{part}, {date}: {machine[gpu]}, {machine[versions]}, {machine[gpu_state]}"
        lines = ["", heading.format(**report)]
        print(*lines, sep="\n", flush=True)
        for title, rows, text in PARTS[part](options):
            print("", title, *text, sep="\n", flush=True)
            lines += ["", title, *text]
            report["tables"].append({"title": title, "rows": rows})
            ours = rows[:1] if part != "exact" else rows
            failed |= any(row.get("unavailable") or row.get("holds") is False for row in ours)
        took = (datetime.datetime.now(datetime.UTC) - started).total_seconds()
        report |= {"minutes": took / 60, "gpu_state_after": nvidia_smi()}
        append_to_report(options.output, report, lines)
        print(f"\n{part} took {took / 60:.1f} minutes; appended to {options.output}", flush=True)
    return int(failed)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "python -m train.device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part", nargs="+", default=["all"], choices=[*PARTS, "all"], help="default: all"
    )
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="default: gpu")
    parser.add_argument("--gpu", metavar="NAME", help="refuse other GPUs; such as H100")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("device.json"), metavar="FILE",
        help="JSON file to append to, with a text file beside it; default: device.json",
    )  # fmt: skip
    for flag, default, text in (
        ("--repeats", 5, "rounds for each engine"),
        ("--steps", 10, "steps or decoded batches in a round"),
        ("--threads", os.cpu_count(), "threads of each engine"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{text}; default: {default}")
    parser.add_argument("--toy", action="store_true", help="tiny models: checks that all runs")
    options = parser.parse_args(arguments)
    for name in ("repeats", "steps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(options, name)}")
    if not options.output.parent.is_dir():
        parser.error(f"--output: there is no folder {options.output.parent} to write to")
    options.part = list(PARTS) if "all" in options.part else options.part
    try:
        sys.exit(run(options))
    except ValueError as error:
        print(f"error: {error}.", file=sys.stderr)
        sys.exit(EXIT_CODE_MISTAKE)


if __name__ == "__main__":
    main()
