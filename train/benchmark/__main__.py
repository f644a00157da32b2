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
import functools
import itertools
import json
import os
import sys
from pathlib import Path

from ..command import one_line_errors, without_start_up_notes
from ..gpus import gpu_count, visible_gpus, warn_of_idle_gpus
from ..settings import Parser
from . import decoding, products, scaling, training
from .engines import SIZES, Candidate, Workload, size_on
from .rounds import measure
from .tables import compare, engine_table, machine

EXAMPLES = """
examples:

    python -m train.benchmark                                   everything
    python -m train.benchmark --train --size small --dtype bfloat16
    python -m train.benchmark --device gpu --train --json gpu.json
    python -m train.benchmark --scaling                         devices, workers, all-reduce
    python -m train.benchmark --decode --decode-batch 1 --repeats 9 --json decoding.json
    python -m train.benchmark --size toy --decode-size toy --repeats 1 --steps 1
        a quick check that it runs; ignore its numbers
"""


CHOICES = {
    "train": "training steps; measured together with --decode if neither is given",
    "decode": "decoding from an exported SavedModel",
    "scaling": "instead: one step on 1, 2 and 4 virtual devices and on 2 workers, the exact step "
    "compared with Keras's own",
}
DTYPES = ["float32", "bfloat16"]
DTYPE_HELP = "bfloat16 trains in mixed precision, and compares decoding in bfloat16 with int8"


def training_candidates(size, dtype, threads, device="cpu"):
    """The engines that train; ours first, the bare products last."""
    workload = Workload(size, dtype, size.batch_size, threads, device, compiled=device == "gpu")
    builders = {
        "keras_transformer": functools.partial(training.keras_training, training.ours),
        "KerasHub layers": functools.partial(training.keras_training, training.kerashub),
        "PyTorch nn.Transformer": training.pytorch_training,
        "products, TensorFlow": products.tensorflow_products,
        "products, PyTorch": products.pytorch_products,
    }
    return [Candidate(label, build, workload) for label, build in builders.items()]


def decoding_candidates(size, dtype, batch_size, threads, device="cpu"):
    """The engines that decode a model: our SavedModel, and CTranslate2, on CPUs also in int8."""
    ours = Workload(size, dtype, batch_size, threads, device)
    types = ["float32", "int8"] if dtype == "float32" else ["int8"]  # bfloat16 needs AMX there
    peers = [ours._replace(dtype=each) for each in ([dtype] if device == "gpu" else types)]
    return [
        Candidate(f"keras_transformer {dtype}", decoding.ours_decoding, ours),
        *(
            Candidate(f"CTranslate2 {peer.dtype}", decoding.ctranslate2_decoding, peer)
            for peer in peers
        ),
    ]


def measure_training(options):
    for name in options.size:
        size = size_on(options.device, name)
        flops = products.training_flops(size)
        for dtype in options.dtype:
            candidates = training_candidates(size, dtype, options.threads, options.device)
            rows = measure(candidates, options.repeats, options.steps)
            compare(rows, size.batch_size * size.length, flops)
            title = (
                f"training, {name}: {size.describe()}, batch {size.batch_size} x "
                f"{size.length}, {dtype}; ms per step of {flops / 1e9:.3g} GFLOP"
            )
            yield title, rows, engine_table(rows)


def measure_decoding(options):
    size = SIZES[options.decode_size]
    for batch_size, dtype in itertools.product(options.decode_batch, options.dtype):
        candidates = decoding_candidates(size, dtype, batch_size, options.threads, options.device)
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, batch_size * decoding.OUTPUT_TOKENS)
        title = (
            f"decoding, {options.decode_size}: {size.describe()}, batch {batch_size}, beam "
            f"{decoding.NUM_BEAMS}, {decoding.SOURCE_TOKENS} -> {decoding.OUTPUT_TOKENS} "
            "tokens; ms per batch"
        )
        yield title, rows, engine_table(rows)


def measure_scaling(options):
    name = options.size[0]
    size = SIZES[name]
    rows = [
        scaling.measure_arrangement(arrangement, name, options.steps)
        for arrangement in scaling.ARRANGEMENTS
    ]
    title = (
        f"training, {name}: {size.describe()}, float32; the same global batch of "
        f"{size.batch_size} x {size.length} everywhere, all on the same cores"
    )
    yield title, rows, scaling.arrangement_table(rows)
    rows = measure(scaling.step_candidates(size, options.threads), options.repeats, options.steps)
    compare(rows, size.batch_size * size.length)
    yield "On one device:", rows, engine_table(rows)


def choose_device(wanted=None):
    """The device to measure, and its name if it is a GPU.

    Args:
        wanted: "cpu", "gpu", or None for a GPU if TensorFlow sees one.

    Returns:
        ("cpu", None), or "gpu" and its name.

    Raises:
        ValueError: if a GPU is wanted and there is none.
    """
    if wanted == "cpu":
        return "cpu", None
    gpus, seen = visible_gpus(gpu_count(), os.environ), []
    if gpus:
        with without_start_up_notes():
            import tensorflow as tf

        seen = tf.config.list_physical_devices("GPU")  # allocates no GPU memory
    if seen:
        details = tf.config.experimental.get_device_details(seen[0])
        return "gpu", details.get("device_name", "unknown GPU")
    if wanted == "gpu":
        received = f"{len(gpus)} NVIDIA GPUs that TensorFlow does not see" if gpus else "none"
        raise ValueError(
            "--device gpu needs an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide, and "
            f"pip install -e '.[cuda]'. Received: {received}"
        )
    warn_of_idle_gpus()
    return "cpu", None


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
        "--device", choices=["cpu", "gpu"], help="what to measure (default: gpu if there is one)"
    )
    add("--repeats", 5, "rounds per engine; do not trust fewer than 5", **count)
    add("--steps", 3, "training steps or decoded batches per round", **count)
    add("--threads", cores, "threads of each engine", **count)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="file for all numbers of every round"
    )
    options = parser.parse_args(arguments)
    if options.scaling:
        options.parts = [measure_scaling]
    else:
        both = not options.train and not options.decode
        options.parts = [measure_training] * (options.train or both)
        options.parts += [measure_decoding] * (options.decode or both)
    if options.scaling and options.device == "gpu":
        parser.error("--scaling measures CPUs. Received: --device gpu")
    try:
        options.device, options.gpu = choose_device("cpu" if options.scaling else options.device)
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


def run(arguments=None):
    """Returns the exit status: 1 if our own engine could not be measured."""
    options = parse(arguments)
    report = {"machine": machine(options.threads, options.gpu), "measurements": []}
    print(f"{options.gpu}, " if options.gpu else "", end="")
    print("{processor}, {threads} threads; median of".format(**report["machine"]), end=" ")
    print(f"{options.repeats} rounds of {options.steps}, engines taking turns", flush=True)
    failed = False
    for part in options.parts:
        for title, rows, lines in part(options):
            print("", title, *lines, sep="\n", flush=True)
            report["measurements"].append({"title": title, "engines": rows})
            failed = failed or bool(rows and rows[0].get("unavailable"))
            if options.json:  # after each table, so that an interrupted run leaves what it measured
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def main(arguments=None):
    with one_line_errors():
        sys.exit(run(arguments))


if __name__ == "__main__":
    main()
