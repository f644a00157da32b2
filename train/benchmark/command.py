"""Compares our training step and our decoding with other libraries, in one run.

Every engine (ours, each installed peer, and bare matrix products as the limit of the machine)
runs in its own process, which stays alive; they take turns, round after round. Read the ratios:
the time an engine needed in a round divided by our time. The table shows the median over the
rounds and, in parentheses, the lowest and highest. Above 1, we are faster.

"of products" compares a training step with the machine's limit: the time that its matrix products
(forward, and two for the gradients) take alone, in the same shapes and dtype, in TensorFlow or
PyTorch, whichever is faster, divided by the time of the step. GFLOP/s count 2·m·k·n for each of
these products and nothing else. "of peak" is the share that they are of a GPU's peak speed (model
FLOP utilisation).

If there is a GPU, the benchmark measures one, otherwise the CPU. On a GPU the batches are larger,
XLA and torch.compile fuse the training steps, and decoding is in bfloat16. --backend jax, which
needs no TensorFlow, measures a GPU in a few minutes and has a --help of its own.

Run it on an idle machine. It skips peers that are not installed (`pip install -e '.[bench]'`
installs all of them), and takes about 15 minutes on two cores.
"""

import argparse
import contextlib
import math
import os
import pathlib

from ..gpus import cores, gpu_count, visible_gpus, warn_of_idle_gpus
from ..settings import Parser
from .engines import Workload, name_of_gpu
from .parts import ALL, DTYPES, PARTS
from .report import new_run, read_report, save
from .rounds import in_process
from .tables import nvidia_smi, report_table

BACKENDS = ("tensorflow", "jax")
EXAMPLES = """
examples:

    python -m train.benchmark                                   training of small and base, decoding
    python -m train.benchmark --part train-small --dtype bfloat16
    python -m train.benchmark --device gpu --part train-big --json gpu.json
    python -m train.benchmark --backend jax --minutes 4 --json gpu.json
    python -m train.benchmark --part generate                   GPT-2's shape against Hugging Face
    python -m train.benchmark --part served --run runs/demo --text texts.en
    python -m train.benchmark --part decode --decode-batch 1 --repeats 9 --json decoding.json
    python -m train.benchmark --part all --toy --repeats 1 --steps 1
        a quick check that it runs; ignore its numbers
"""


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
    received = f"NVIDIA GPUs that {backend} does not see ({len(gpus)})" if gpus else "none"
    if gpus and backend == "jax":
        name = (nvidia_smi() or {}).get("name", "")  # its engines find out if JAX sees it
    if gpus and not name:
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


def add_to(parser):
    """A function that adds a flag with a default, which its help tells, to a parser."""

    def add(flag, default, help, **kwargs):
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(flag, default=default, help=f"{help} (default: {shown})", **kwargs)

    return add


def add_what_all_have(parser):
    """Adds the flags that every backend has."""
    add = add_to(parser)
    add("--backend", "tensorflow", "backend of our engine and KerasHub's", choices=BACKENDS)
    parser.add_argument("--toy", action="store_true", help="a tiny model in every part")
    parser.add_argument(
        "--device", choices=["cpu", "gpu"], help="what to measure (default: gpu if there is one)"
    )
    parser.add_argument("--gpu", default="", metavar="NAME", help="refuse other GPUs, e.g. H100")
    add("--threads", cores(), "threads of each engine", type=positive, metavar="N")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE",
        help="file for all numbers of every round, after those of earlier runs; all that it holds "
        "then is printed as one table",
    )  # fmt: skip


def parse(arguments):
    parser = Parser(prog="python -m train.benchmark", description=__doc__, epilog=EXAMPLES)
    add = add_to(parser)
    count = {"type": positive, "metavar": "N"}
    parts = "; ".join(f"{name}: {part.help}" for name, part in PARTS.items())
    add(
        "--part", ["train-small", "train-base", "decode"],
        f"{parts}; all: each but generate and served",
        nargs="+", choices=[*PARTS, "all"], metavar="PART",
    )  # fmt: skip
    add_what_all_have(parser)
    parser.add_argument(
        "--decode-batch", **count, nargs="+",
        help="sentences decoded at once (default: 32 1; on a GPU 1 32 256)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype",
        help="bfloat16 trains in mixed precision, and compares decoding in bfloat16 with int8 "
        "(default: both; on a GPU decode only bfloat16)",
        nargs="+",
        choices=DTYPES,
    )
    add("--repeats", 5, "rounds per engine; do not trust fewer than 5", **count)
    parser.add_argument(
        "--steps", **count,
        help="training steps or decoded batches per round (default: 3; on a GPU 10 and 1)",
    )  # fmt: skip
    parser.add_argument("--run", help="for --part served: folder of a run of translation")
    parser.add_argument("--text", help="for --part served: file with a source text in each line")
    options = parser.parse_args(arguments)
    if "all" in options.part:
        others = [name for name in options.part if name != "all"]
        options.part = list(dict.fromkeys([*ALL, *others]))
    if "served" in options.part and not (options.run and options.text):
        parser.error("--part served needs --run and --text")
    choose(parser, options, ["--part served"] if "served" in options.part else [])
    return options


def choose(parser, options, on_cpus=()):
    """Sets the device and the GPU of the options; an error of the parser if they do not fit.

    Args:
        parser: the parser of the options.
        options: as `add_what_all_have` has them.
        on_cpus: options that measure CPUs, a list.
    """
    if options.device == "cpu":
        on_cpus = [*on_cpus, "--device cpu"]
    if on_cpus and (options.device == "gpu" or options.gpu):
        received = f"--gpu {options.gpu}" if options.gpu else "--device gpu"
        parser.error(f"{on_cpus[0]} measures CPUs. Received: {received}")
    wanted = "cpu" if on_cpus else options.device
    try:
        read_report(options.json)
        options.device, options.gpu = choose_device(wanted, options.backend, options.gpu)
    except ValueError as error:
        parser.error(str(error))


def positive_number(text):
    """A finite number above zero, of a command line."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above zero. Received: {text}")


def positive(text):
    """A whole number above zero, of a command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1. Received: {text}")
    return int(text)


def run(arguments=None):
    """Returns the exit status: 1 if our own engine could not be measured."""
    options = parse(arguments)
    report = new_run(options)
    runs = [*read_report(options.json), report]
    if options.gpu:
        print("{gpu}, {versions}, {gpu_state}".format(**report["machine"]))
    print("{processor}, {threads} threads; median of".format(**report["machine"]), end=" ")
    print(f"{options.repeats} rounds, engines taking turns", flush=True)
    failed = False
    # With --toy, the models of several parts are the same.
    for measure, size in dict.fromkeys(
        (PARTS[name].measure, "toy" if options.toy else PARTS[name].size) for name in options.part
    ):
        for name, title, rows, lines, num_ours in measure(options, size):
            print("", f"{name}: {title}", *lines, sep="\n", flush=True)
            measured = {"table": name, "title": title, "engines": rows}
            if options.gpu:
                measured["gpu_state_after"] = nvidia_smi()
            report["measurements"].append(measured)
            failed |= any(row.get("unavailable") for row in rows[:num_ours])
            if options.json:  # after each table, so that an interrupted run leaves what it measured
                save(options.json, runs)
    if options.json:
        print("", f"All of {options.json}:", *report_table(runs), sep="\n", flush=True)
    return int(failed)
