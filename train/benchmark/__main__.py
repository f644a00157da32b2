"""Compares our training step and our decoding with other libraries, in one run.

Every engine (ours, each installed peer, and bare matrix products as the limit of the machine)
runs in its own process, which stays alive; they take turns, round after round. Read the ratios:
the time an engine needed in a round divided by our time. The table shows the median over the
rounds and, in parentheses, the lowest and highest. Above 1, we are faster.

"of products" compares a training step with the machine's limit: the time that its matrix products
(forward, and two for the gradients) take alone, in the same shapes and dtype, in TensorFlow or
PyTorch, whichever is faster, divided by the time of the step. GFLOP/s count 2·m·k·n for each of
these products and nothing else. "of peak" is the share that they are of a GPU's peak speed (model
FLOP utilisation), "bound" the least time in which the bytes that the compiler counts can be moved,
and "busy" how long the GPU computes in a step.

If there is a GPU, the benchmark measures one, otherwise the CPU. On a GPU the batches are larger,
XLA and torch.compile fuse the training steps, and the dtype is bfloat16. --backend jax needs no
TensorFlow and also checks whether the numbers are those of a CPU, and the same in every run.

Run it on an idle machine. It skips peers that are not installed (`pip install -e '.[bench]'`
installs all of them), and takes about 15 minutes on two cores.
"""

import argparse
import datetime
import functools
import itertools
import json
import os
import pathlib
import sys

from ..command import one_line_errors
from ..gpus import gpu_count, visible_gpus, warn_of_idle_gpus
from ..settings import Parser
from . import attention, decoding, on_jax, products, scaling, training
from .engines import SIZES, Candidate, Workload, name_of_gpu, size_on
from .exactness import measure_exactness
from .rounds import in_process, measure
from .tables import compare, engine_table, exactness_table, kernel_table, machine, nvidia_smi

EXAMPLES = """
examples:

    python -m train.benchmark                                   everything
    python -m train.benchmark --train --size small --dtype bfloat16
    python -m train.benchmark --device gpu --train --json gpu.json
    python -m train.benchmark --backend jax --gpu H100 --exact --long
    python -m train.benchmark --scaling                         devices, workers, all-reduce
    python -m train.benchmark --decode --decode-batch 1 --repeats 9 --json decoding.json
    python -m train.benchmark --size toy --decode-size toy --repeats 1 --steps 1
        a quick check that it runs; ignore its numbers
"""


# Operations a second, in float32 by TF32, and bytes a second: dense, from NVIDIA's data sheets.
PEAKS = {
    "H100": {"bfloat16": 989e12, "float32": 495e12, "bytes": 3.35e12},
    "H200": {"bfloat16": 989e12, "float32": 495e12, "bytes": 4.8e12},
}
DTYPES = ["float32", "bfloat16"]
DTYPE_HELP = "bfloat16 trains in mixed precision, and compares decoding in bfloat16 with int8"
LONG = {"batch_size": 4, "length": 4096}


def training_candidates(workload):
    """The engines that train; ours first and, on TensorFlow, the bare products last."""
    build = training.keras_training if workload.backend == "tensorflow" else on_jax.jax_training
    builders = {
        "keras_transformer": functools.partial(build, training.ours),
        "KerasHub layers": functools.partial(build, training.kerashub),
        "PyTorch nn.Transformer": training.pytorch_training,
    }
    if workload.backend == "tensorflow":
        builders["products, TensorFlow"] = products.tensorflow_products
        builders["products, PyTorch"] = products.pytorch_products
    return [Candidate(label, build, workload) for label, build in builders.items()]


def decoding_candidates(workload, num_beams=decoding.NUM_BEAMS):
    """The engines that decode a model; ours first.

    On TensorFlow our SavedModel, and CTranslate2, on CPUs also in int8; on JAX our search and
    Hugging Face's Marian.
    """
    if workload.backend == "jax":
        builders = {"ours": on_jax.jax_decoding, "Hugging Face": decoding.huggingface_decoding}
        return [
            Candidate(f"{label}, beam {num_beams}", functools.partial(build, num_beams), workload)
            for label, build in builders.items()
        ]
    dtype = workload.dtype
    types = ["float32", "int8"] if dtype == "float32" else ["int8"]  # bfloat16 needs AMX there
    types = [dtype] if workload.device == "gpu" else types
    return [
        Candidate(f"keras_transformer {dtype}", decoding.ours_decoding, workload),
        *(
            Candidate(
                f"CTranslate2 {each}",
                decoding.ctranslate2_decoding,
                workload._replace(dtype=each),
            )
            for each in types
        ),
    ]


def workload_of(options, size, dtype, batch_size=None):
    """A `Workload` on the device of the options, by default with the batches of the size."""
    compiled = options.device == "gpu" or options.backend == "jax"
    return Workload(
        size, dtype, batch_size or size.batch_size, options.threads, options.device, compiled,
        options.backend,
    )  # fmt: skip


def measure_training(options):
    for name, dtype in itertools.product(options.size, options.dtype):
        size = size_on(options.device, name)
        flops = products.training_flops(size)
        candidates = training_candidates(workload_of(options, size, dtype))
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, size.batch_size * size.length, flops)
        title = (
            f"training, {name}: {size.describe()}, batch {size.batch_size} x "
            f"{size.length}, {dtype}; ms per step of {flops / 1e9:.3g} GFLOP"
        )
        yield title, rows, engine_table(rows, peak_of(options, dtype)) + kernel_table(rows[0])


def measure_decoding(options):
    size = SIZES[options.decode_size]
    beams = [decoding.NUM_BEAMS, 1] if options.backend == "jax" else [decoding.NUM_BEAMS]
    for batch_size, dtype, num_beams in itertools.product(
        options.decode_batch, options.dtype, beams
    ):
        workload = workload_of(options, size, dtype, batch_size)
        candidates = decoding_candidates(workload, num_beams)
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, batch_size * decoding.OUTPUT_TOKENS)
        title = (
            f"decoding, {options.decode_size}: {size.describe()}, batch {batch_size}, beam "
            f"{num_beams}, {decoding.SOURCE_TOKENS} -> {decoding.OUTPUT_TOKENS} "
            f"tokens, {dtype}; ms per batch"
        )
        yield title, rows, engine_table(rows)


def measure_exact(options):
    size = SIZES["toy" if "toy" in options.size else "small"]._replace(batch_size=4)
    rows = measure_exactness(workload_of(options, size, "float32"))
    title = f"exactness: {size.describe()}, {size.batch_size} rows"
    yield title, rows, exactness_table(rows)


def measure_long(options):
    size = SIZES["toy"]._replace(**({"length": 64} if "toy" in options.size else LONG))
    for dtype in options.dtype:
        candidates = attention.attention_candidates(workload_of(options, size, dtype))
        rows = measure(candidates, options.repeats, options.steps)
        compare(rows, size.batch_size * size.length)
        title = (
            f"causal attention, forward and backward: {size.batch_size} x {size.length} tokens, "
            f"{attention.NUM_HEADS} heads of {attention.KEY_DIM}, {dtype}"
        )
        yield title, rows, engine_table(rows, peak_of(options, dtype), first="first")


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


PARTS = {
    "train": (measure_training, "training steps"),
    "decode": (measure_decoding, "decoding, on TensorFlow from an exported SavedModel"),
    "exact": (
        measure_exact,
        "with --backend jax: whether the numbers are those of a CPU, and the bits the same in "
        "every run and after a restart",
    ),
    "long": (
        measure_long,
        f"with --backend jax: attention of {LONG['length']} tokens, in cuDNN's kernel, in chunks "
        "and with all weights at once",
    ),
    "scaling": (
        measure_scaling,
        "instead: one step on 1, 2 and 4 virtual devices and on 2 workers, the exact step "
        "compared with Keras's own",
    ),
}
OF_BACKEND = {
    "tensorflow": ("train", "decode", "scaling"),
    "jax": ("train", "decode", "exact", "long"),
}


def peak_of(options, dtype):
    """Operations and bytes a second that the GPU can do at most; None if they are not known."""
    for name, speeds in PEAKS.items():
        if name in (options.gpu or ""):
            return speeds[dtype], speeds["bytes"]
    return None


def choose_device(wanted=None, backend="tensorflow", gpu=""):
    """The device to measure, and its name if it is a GPU.

    Args:
        wanted: "cpu", "gpu", or None for a GPU if the backend sees one.
        backend: "tensorflow" or "jax".
        gpu: a part of the name that a GPU must have.

    Returns:
        ("cpu", None), or "gpu" and its name.

    Raises:
        ValueError: if a GPU is wanted and there is none, or one of another name.
    """
    wanted = "gpu" if gpu else wanted
    if wanted == "cpu":
        return "cpu", None
    name, gpus = "", visible_gpus(gpu_count(), os.environ)
    received = f"{len(gpus)} NVIDIA GPUs that {backend} does not see" if gpus else "none"
    if gpus:
        try:
            name = in_process(name_of_gpu, Workload(None, "", 1, 1, "gpu", backend=backend))
        except Exception as error:  # of JAX and CUDA: such as a driver that is too old
            received += f": {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    if name and gpu.lower() in name.lower():
        return "gpu", name
    if wanted == "gpu" or (gpus and backend == "jax"):
        raise ValueError(
            f"--{f'gpu {gpu}' if gpu else 'device gpu'} needs an NVIDIA GPU that "
            "CUDA_VISIBLE_DEVICES does not hide, its driver and CUDA's libraries. Measure the CPU "
            f"with --device cpu. Received: {name or received}"
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
    for name, (_, text) in PARTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    add("--backend", "tensorflow", "backend of our engine and KerasHub's", choices=OF_BACKEND)
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
    parser.add_argument("--gpu", default="", metavar="NAME", help="refuse other GPUs, e.g. H100")
    add("--repeats", 5, "rounds per engine; do not trust fewer than 5", **count)
    add("--steps", 3, "training steps or decoded batches per round", **count)
    add("--threads", cores, "threads of each engine", **count)
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE",
        help="file for all numbers of every round, after those of earlier runs",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    chosen = [name for name in PARTS if getattr(options, name)]
    possible = OF_BACKEND[options.backend]
    if other := [name for name in chosen if name not in possible]:
        parser.error(f"--{other[0]} needs another --backend. Received: {options.backend}")
    usual = [name for name in possible if name != "scaling"]
    options.parts = ["scaling"] if options.scaling else chosen or usual
    if options.scaling and options.device == "gpu":
        parser.error("--scaling measures CPUs. Received: --device gpu")
    if options.gpu and (options.scaling or options.device == "cpu"):
        flag = "--scaling" if options.scaling else "--device cpu"
        parser.error(f"{flag} measures CPUs. Received: --gpu {options.gpu}")
    wanted = "cpu" if options.scaling else options.device
    try:
        options.device, options.gpu = choose_device(wanted, options.backend, options.gpu)
        read_report(options.json)
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


def read_report(path):
    """The runs that a report has already, a list.

    Raises:
        ValueError: if the file is something else.
    """
    if not path or not path.exists():
        return []
    try:
        return json.loads(path.read_text("utf-8"))["runs"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"--json: {path} is not a report of this version of train.benchmark. Choose another "
            "file."
        ) from None


def run(arguments=None):
    """Returns the exit status: 1 if our own engine could not be measured, or a number is wrong."""
    options = parse(arguments)
    earlier = read_report(options.json)
    report = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}Z"}
    report |= {"machine": machine(options.threads, options.gpu), "measurements": []}
    if options.gpu:
        print("{gpu}, {versions}, {gpu_state}".format(**report["machine"]))
    print("{processor}, {threads} threads; median of".format(**report["machine"]), end=" ")
    print(f"{options.repeats} rounds of {options.steps}, engines taking turns", flush=True)
    failed = False
    for name in options.parts:
        for title, rows, lines in PARTS[name][0](options):
            print("", title, *lines, sep="\n", flush=True)
            report["measurements"].append({"title": title, "part": name, "engines": rows})
            failed |= bool(rows and rows[0].get("unavailable"))
            failed |= any(row.get("holds") is False for row in rows)
            if options.gpu:
                report["measurements"][-1]["gpu_state_after"] = nvidia_smi()
            if options.json:  # after each table, so that an interrupted run leaves what it measured
                draft = options.json.with_name(f".{options.json.name}.{os.getpid()}")
                draft.write_text(json.dumps({"runs": [*earlier, report]}, indent=1) + "\n", "utf-8")
                os.replace(draft, options.json)
    return int(failed)


def main(arguments=None):
    with one_line_errors():
        sys.exit(run(arguments))


if __name__ == "__main__":
    main()
