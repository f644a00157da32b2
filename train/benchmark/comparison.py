"""Measures our training step and our decoding beside their peers, in one run.

Every engine (ours, each installed peer, and bare matrix products as the limit of the
machine) gets a process of its own that stays alive, and they take turns, round after round.
Read the ratios: for each round, what an engine needed divided by what we needed; printed are
the median over the rounds and, in brackets, the lowest and highest. Above 1 we are faster.

"of products" is the share of the machine's own rate of matrix products that a training step
reaches: the time that the products of the step (forward, and the two of each gradient) need
by themselves, in the same shapes and dtype, run by TensorFlow or PyTorch, whichever is
faster, divided by the time of the step. GFLOP/s count 2·m·k·n for each of these products and
nothing else.

Run it on an idle machine. What is not installed is skipped by name;
`pip install -e '.[bench]'` installs all peers. Runs on the CPU. Everything takes about a
quarter of an hour on two cores.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path

from train.benchmark import attention, decoding, scaling
from train.benchmark import peers as training
from train.benchmark.peers import Size, Task
from train.benchmark.rounds import measure
from train.command import Parser

SIZES = {
    "toy": Size(1, 16, 32, 2, 50, 3, 7),
    "small": Size(3, 256, 1024, 8, 8000, 64, 32),
    "base": Size(6, 512, 2048, 8, 32000, 32, 32),
}
EXAMPLES = """
examples:
  python -m train.benchmark                                   everything
  python -m train.benchmark --train --size small --dtype bfloat16
  python -m train.benchmark --scaling                         devices, workers, all-reduce
  python -m train.benchmark --attention                       sparse attention beside dense
  python -m train.benchmark --decode --decode-batch 1 --repeats 9 --json decoding.json
  python -m train.benchmark --size toy --decode-size toy --repeats 1 --steps 1
                                     does it run here? (its numbers say nothing)
"""


def training_entrants(size, dtype, threads):
    """Who trains: (label, build function, task, package needed); ours first."""
    task = Task(size, dtype, size.batch_size, threads)
    return [
        ("keras_transformer", training.ours_training, task, "tensorflow"),
        ("KerasHub layers", training.kerashub_training, task, "keras_hub"),
        ("PyTorch nn.Transformer", training.pytorch_training, task, "torch"),
        ("products, TensorFlow", training.tensorflow_products, task, "tensorflow"),
        ("products, PyTorch", training.pytorch_products, task, "torch"),
    ]


def decoding_entrants(size, dtype, batch_size, threads):
    """Who decodes; against our bfloat16 weights stands CTranslate2's fastest type, int8."""
    ours = Task(size, dtype, batch_size, threads)
    theirs = ours._replace(dtype="float32" if dtype == "float32" else "int8")
    return [
        (f"keras_transformer {dtype}", decoding.ours_decoding, ours, "tensorflow"),
        (f"CTranslate2 {theirs.dtype}", decoding.ctranslate2_decoding, theirs, "ctranslate2"),
    ]


def compare(rows, tokens, flops=None):
    """Adds to each measured row its speed, and its ratio to the first, ours.

    Args:
        rows: of `measure`.
        tokens: target tokens a unit of work.
        flops: of the matrix products a unit of work; None to leave out rates of products.
    """
    ours = rows[0]["seconds"]
    limits = [row for row in rows if is_limit(row) and row["seconds"]]
    limit = min((statistics.median(row["seconds"]) for row in limits), default=None)
    for row in rows:
        if not row["seconds"]:
            continue
        seconds = statistics.median(row["seconds"])
        if not is_limit(row):
            row["tokens_per_second"] = tokens / seconds
        if ours and not is_limit(row):
            ratios = [theirs / our for theirs, our in zip(row["seconds"], ours, strict=True)]
            row["ours_is_faster_by"] = [statistics.median(ratios), min(ratios), max(ratios)]
        if flops is not None:
            row["gflops"] = flops / seconds / 1e9
            row["share_of_products"] = limit and limit / seconds


def is_limit(row):
    """Whether this is no engine but the matrix products alone."""
    return row["name"].startswith("products")


def table(rows):
    """Lines of text, a row an engine, columns aligned."""
    lines = [["engine", "tokens/s", "ms", "ours faster by", "GFLOP/s", "of products"]]
    for row in rows:
        if row["unavailable"]:
            continue
        line = [row["name"], "", f"{1000 * statistics.median(row['seconds']):.1f}", ""]
        if "tokens_per_second" in row:
            line[1] = f"{row['tokens_per_second']:.0f}"
        if "ours_is_faster_by" in row and row is not rows[0]:
            line[3] = "{:.2f} ({:.2f}-{:.2f})".format(*row["ours_is_faster_by"])
        if "gflops" in row:
            share = row["share_of_products"]
            line += [f"{row['gflops']:.3g}", f"{share:.0%}" if share else ""]
        lines.append(line + [""] * (6 - len(line)))
    width = 6 if any("gflops" in row for row in rows) else 4
    lines = [line[:width] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
    return aligned + [f"{row['name']}  {row['unavailable']}" for row in rows if row["unavailable"]]


def measurements(options):
    """Yields (title, entrants, tokens a unit, flops a unit or None), one a table."""
    threads = options.threads
    for size_name in options.size if options.train else []:
        size = SIZES[size_name]
        for dtype in options.dtype:
            flops = training.training_flops(size)
            title = (
                f"training, {size_name}: {describe(size)}, batch {size.batch_size} x "
                f"{size.length}, {dtype}; ms a step of {flops / 1e9:.3g} GFLOP"
            )
            entrants = training_entrants(size, dtype, threads)
            yield title, entrants, size.batch_size * size.length, flops
    for batch_size in options.decode_batch if options.decode else []:
        size = SIZES[options.decode_size]
        for dtype in options.dtype:
            title = (
                f"decoding, {options.decode_size}: {describe(size)}, batch {batch_size}, beam "
                f"{decoding.NUM_BEAMS}, {decoding.SOURCE_TOKENS} -> {decoding.OUTPUT_TOKENS} "
                "tokens; ms a batch"
            )
            entrants = decoding_entrants(size, dtype, batch_size, threads)
            yield title, entrants, batch_size * decoding.OUTPUT_TOKENS, None


def measure_scaling(options):
    size_name = options.size[0]
    size = SIZES[size_name]
    print("{processor}, {threads} threads".format(**machine(options.threads)), flush=True)
    print(f"\ntraining, {size_name}: {describe(size)}, float32; the same global batch of", end=" ")
    print(f"{size.batch_size} x {size.length} everywhere, all on the same cores", flush=True)
    results = {
        name: scaling.measure_arrangement(name, size_name, options.steps)
        for name in scaling.ARRANGEMENTS
    }
    print("\n".join(scaling.table(results)), flush=True)
    rows = measure(scaling.step_entrants(size, options.threads), options.repeats, options.steps)
    compare(rows, size.batch_size * size.length)
    print("", "On one device:", *table(rows), sep="\n", flush=True)
    print("", *scaling.on_paper(SIZES["base"], "base"), sep="\n")
    if options.json:
        report = {"machine": machine(options.threads), "scaling": results, "steps": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(rows[0]["unavailable"] is not None)


def measure_attention(options):
    print("{processor}, all its threads".format(**machine(options.threads)), flush=True)
    print(f"\n{attention.DESCRIPTION}; the median of {options.repeats} training passes", flush=True)
    results = {
        (pattern, length): attention.measure_attention(pattern, length, options.repeats)
        for length in options.length
        for pattern in attention.PATTERNS
    }
    print("\n".join(attention.table(results)), flush=True)
    if options.json:
        rows = [{"pattern": p, "length": n, **result} for (p, n), result in results.items()]
        report = {"machine": machine(options.threads), "attention": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def describe(size):
    return (
        f"{size.num_layers}+{size.num_layers} layers, {size.hidden_dim} wide, "
        f"{size.intermediate_dim} inside, {size.num_heads} heads, vocabulary {size.vocabulary_size}"
    )


def machine(threads):
    """What the numbers were measured on."""
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    )
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "python": platform.python_version(),
    }


def parse(arguments):
    parser = Parser(prog="python -m train.benchmark", description=__doc__, epilog=EXAMPLES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    add = parser.add_argument
    add("--train", action="store_true", help="training steps; with neither flag, both")
    add("--decode", action="store_true", help="decoding from an exported SavedModel")
    add(
        "--scaling",
        action="store_true",
        help="instead: one step over 1, 2, 4 virtual devices and 2 workers, the exact step beside "
        "Keras's own, and what GPUs and hosts would give on paper",
    )
    add(
        "--attention",
        action="store_true",
        help="instead: time and memory of one layer of sparse attention beside the dense one",
    )
    add(
        "--length",
        nargs="+",
        type=_positive,
        default=attention.LENGTHS,
        help="of the sequences of --attention, in tokens",
    )
    add("--size", nargs="+", choices=SIZES, default=["small", "base"], help="models to train")
    add("--decode-size", choices=SIZES, default="base", help="model that decodes")
    add("--decode-batch", nargs="+", type=_positive, default=[32, 1], help="sentences at once")
    add(
        "--dtype",
        nargs="+",
        choices=["float32", "bfloat16"],
        default=["float32", "bfloat16"],
        help="bfloat16 trains in mixed precision, and decodes with bfloat16 weights against int8",
    )
    add("--repeats", type=_positive, default=5, help="rounds of each engine; 5 or more")
    add("--steps", type=_positive, default=3, help="training steps or decoded batches a round")
    add("--threads", type=_positive, default=cores, help="of each engine; default: all cores")
    add("--json", type=Path, help="file that gets every number of every round")
    options = parser.parse_args(arguments)
    if not options.train and not options.decode:
        options.train = options.decode = True
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent} to write into")
    return options


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1. Received: {text}")
    return int(text)


def main(arguments=None):
    """Returns the exit status: 1 if our own engine could not be measured."""
    options = parse(arguments)
    if options.scaling:
        return measure_scaling(options)
    if options.attention:
        return measure_attention(options)
    report = {"machine": machine(options.threads), "measurements": []}
    print("{processor}, {threads} threads; median of".format(**report["machine"]), end=" ")
    print(f"{options.repeats} rounds of {options.steps}, engines taking turns", flush=True)
    failed = False
    for title, entrants, tokens, flops in measurements(options):
        rows = measure(entrants, options.repeats, options.steps)
        compare(rows, tokens, flops)
        print("", title, *table(rows), sep="\n", flush=True)
        report["measurements"].append({"title": title, "engines": rows})
        failed = failed or rows[0]["unavailable"] is not None
        if options.json:  # after each table, so that an interrupted run leaves what it measured
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
