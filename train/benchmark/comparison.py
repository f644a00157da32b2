"""Compares our training step and our decoding with other libraries, in one run.

Every engine (ours, each installed peer, and bare matrix products as the limit of the machine)
runs in its own process, which stays alive; they take turns, round after round. Read the ratios:
the time an engine needed in a round divided by our time. The table shows the median over the
rounds and, in parentheses, the lowest and highest. Above 1, we are faster.

"of products" compares a training step with the machine's limit: the time that its matrix products
(forward, and two for the gradients) take alone, in the same shapes and dtype, in TensorFlow or
PyTorch, whichever is faster, divided by the time of the step. GFLOP/s count 2·m·k·n for each of
these products and nothing else.

If TensorFlow sees a GPU, the benchmark measures one, otherwise the CPU. On a GPU the batches are
larger, XLA and torch.compile fuse the training steps, and the dtype is bfloat16.

Run it on an idle machine. It skips peers that are not installed (`pip install -e '.[bench]'`
installs all of them), and takes about 15 minutes on two cores.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from ..settings import Parser
from . import attention, decoding, products, scaling, training
from .device import DEVICES, choose_device
from .engines import SIZES, Candidate, Workload, size_on
from .rounds import measure
from .tables import compare, describe, machine, table

EXAMPLES = """
examples:

    python -m train.benchmark                                   everything
    python -m train.benchmark --train --size small --dtype bfloat16
    python -m train.benchmark --device gpu --train --json gpu.json
    python -m train.benchmark --scaling                         devices, workers, all-reduce
    python -m train.benchmark --attention                       sparse and dense attention
    python -m train.benchmark --decode --decode-batch 1 --repeats 9 --json decoding.json
    python -m train.benchmark --size toy --decode-size toy --repeats 1 --steps 1
        a quick check that it runs; ignore its numbers
"""


CHOICES = {
    "train": "training steps; measured together with --decode if neither is given",
    "decode": "decoding from an exported SavedModel",
    "scaling": "instead: one step on 1, 2 and 4 virtual devices and on 2 workers, the exact step "
    "compared with Keras's own, and an estimate for GPUs and hosts",
    "attention": "instead: time and memory of a layer of sparse attention and of dense attention",
}
DTYPES = ["float32", "bfloat16"]
DTYPE_HELP = "bfloat16 trains in mixed precision, and compares decoding in bfloat16 with int8"


def training_candidates(size, dtype, threads, device="cpu"):
    """The engines that train; ours first, the bare products last."""
    workload = Workload(size, dtype, size.batch_size, threads, device, compiled=device == "gpu")
    return [
        Candidate("keras_transformer", training.ours_training, workload, "tensorflow"),
        Candidate("KerasHub layers", training.kerashub_training, workload, "keras_hub"),
        Candidate("PyTorch nn.Transformer", training.pytorch_training, workload, "torch"),
        Candidate("products, TensorFlow", products.tensorflow_products, workload, "tensorflow"),
        Candidate("products, PyTorch", products.pytorch_products, workload, "torch"),
    ]


def decoding_candidates(size, dtype, batch_size, threads, device="cpu"):
    """The engines that decode a model: our SavedModel, and CTranslate2, on CPUs also in int8."""
    ours = Workload(size, dtype, batch_size, threads, device)
    types = ["float32", "int8"] if dtype == "float32" else ["int8"]  # bfloat16 needs AMX there
    if device == "gpu":
        types = [dtype]
    return [
        Candidate(f"keras_transformer {dtype}", decoding.ours_decoding, ours, "tensorflow"),
        *(
            Candidate(
                f"CTranslate2 {theirs}",
                decoding.ctranslate2_decoding,
                ours._replace(dtype=theirs),
                "ctranslate2",
            )
            for theirs in types
        ),
    ]


def measurements(options):
    """Yields (title, candidates, tokens per unit, flops per unit or None), one per table."""
    threads = options.threads
    for size_name in options.size if options.train else []:
        size = size_on(options.device, size_name)
        for dtype in options.dtype:
            flops = products.training_flops(size)
            title = (
                f"training, {size_name}: {describe(size)}, batch {size.batch_size} x "
                f"{size.length}, {dtype}; ms per step of {flops / 1e9:.3g} GFLOP"
            )
            candidates = training_candidates(size, dtype, threads, options.device)
            yield title, candidates, size.batch_size * size.length, flops
    for batch_size in options.decode_batch if options.decode else []:
        size = SIZES[options.decode_size]
        for dtype in options.dtype:
            title = (
                f"decoding, {options.decode_size}: {describe(size)}, batch {batch_size}, beam "
                f"{decoding.NUM_BEAMS}, {decoding.SOURCE_TOKENS} -> {decoding.OUTPUT_TOKENS} "
                "tokens; ms per batch"
            )
            candidates = decoding_candidates(size, dtype, batch_size, threads, options.device)
            yield title, candidates, batch_size * decoding.OUTPUT_TOKENS, None


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
    rows = measure(scaling.step_candidates(size, options.threads), options.repeats, options.steps)
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


def parse(arguments):
    parser = Parser(prog="python -m train.benchmark", description=__doc__, epilog=EXAMPLES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def add(flag, default, help, **kwargs):
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(flag, default=default, help=f"{help} (default: {shown})", **kwargs)

    several = {"nargs": "+"}
    count = {"type": _positive, "metavar": "N"}
    for name, text in CHOICES.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    add("--length", attention.LENGTHS, "tokens, with --attention", **several, **count)
    add("--size", ["small", "base"], "models to train", **several, choices=SIZES)
    add("--decode-size", "base", "model to decode with", choices=SIZES)
    add("--decode-batch", [32, 1], "sentences decoded at once", **several, **count)
    parser.add_argument(
        "--dtype",
        help=f"{DTYPE_HELP} (default: both; on a GPU bfloat16)",
        nargs="+",
        choices=DTYPES,
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="what to measure (default: gpu if there is one)"
    )
    add("--repeats", 5, "rounds per engine; do not trust fewer than 5", **count)
    add("--steps", 3, "training steps or decoded batches per round", **count)
    add("--threads", cores, "threads of each engine", **count)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="file for all numbers of every round"
    )
    options = parser.parse_args(arguments)
    if not options.train and not options.decode:
        options.train = options.decode = True
    on_cpus = options.scaling or options.attention
    if on_cpus and options.device == "gpu":
        parser.error("--scaling and --attention measure CPUs. Received: --device gpu")
    try:
        options.device, options.gpu = choose_device("cpu" if on_cpus else options.device)
    except ValueError as error:
        parser.error(str(error))
    options.dtype = options.dtype or (["bfloat16"] if options.device == "gpu" else DTYPES)
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent} to write to")
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
    report = {"machine": machine(options.threads, options.gpu), "measurements": []}
    print(f"{options.gpu}, " if options.gpu else "", end="")
    print("{processor}, {threads} threads; median of".format(**report["machine"]), end=" ")
    print(f"{options.repeats} rounds of {options.steps}, engines taking turns", flush=True)
    failed = False
    for title, candidates, tokens, flops in measurements(options):
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, tokens, flops)
        print("", title, *table(rows), sep="\n", flush=True)
        report["measurements"].append({"title": title, "engines": rows})
        failed = failed or rows[0]["unavailable"] is not None
        if options.json:  # after each table, so that an interrupted run leaves what it measured
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
