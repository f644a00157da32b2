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
XLA and torch.compile fuse the training steps, and decoding is in bfloat16. --backend jax needs no
TensorFlow and also checks whether the numbers are those of a CPU, and the same in every run.

Run it on an idle machine. It skips peers that are not installed (`pip install -e '.[bench]'`
installs all of them), and takes about 15 minutes on two cores.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import signal
import sys

from ..command import one_line_errors
from ..gpus import cores, gpu_count, visible_gpus, warn_of_idle_gpus
from ..settings import Parser
from .engines import Workload, name_of_gpu
from .parts import DTYPES, PARTS, parts_of
from .rounds import in_process
from .tables import machine, nvidia_smi, report_table

BACKENDS = ("tensorflow", "jax")
EXAMPLES = """
examples:

    python -m train.benchmark                                   training of small and base, decoding
    python -m train.benchmark --part train-small --dtype bfloat16
    python -m train.benchmark --device gpu --part train-big --json gpu.json
    python -m train.benchmark --backend jax --gpu H100 --part exact long --json gpu.json
    python -m train.benchmark --part scaling                    devices, workers, all-reduce
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

    def add(flag, default, help, **kwargs):
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(flag, default=default, help=f"{help} (default: {shown})", **kwargs)

    count = {"type": _positive, "metavar": "N"}
    parts = "; ".join(f"{name}: {part.help}" for name, part in PARTS.items())
    add(
        "--part", ["train-small", "train-base", "decode"],
        f"{parts}; all: each but generate, scaling and served",
        nargs="+", choices=[*PARTS, "all"], metavar="PART",
    )  # fmt: skip
    parser.add_argument("--toy", action="store_true", help="a tiny model in every part")
    add("--backend", "tensorflow", "backend of our engine and KerasHub's", choices=BACKENDS)
    parser.add_argument(
        "--decode-batch", **count, nargs="+",
        help="sentences decoded at once (default: 32 1; on a GPU 1 32 256)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype",
        help="bfloat16 trains in mixed precision, and compares decoding in bfloat16 with int8 "
        "(default: both; on a GPU decode and long only bfloat16)",
        nargs="+",
        choices=DTYPES,
    )
    parser.add_argument(
        "--device", choices=["cpu", "gpu"], help="what to measure (default: gpu if there is one)"
    )
    parser.add_argument("--gpu", default="", metavar="NAME", help="refuse other GPUs, e.g. H100")
    add("--repeats", 5, "rounds per engine; do not trust fewer than 5", **count)
    parser.add_argument(
        "--steps", **count,
        help="training steps or decoded batches per round (default: 3; on a GPU 10 and 1)",
    )  # fmt: skip
    add("--threads", cores(), "threads of each engine", **count)
    parser.add_argument("--run", help="for --part served: folder of a run of train.translation")
    parser.add_argument("--text", help="for --part served: file with a source text in each line")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE",
        help="file for all numbers of every round, after those of earlier runs; all that it holds "
        "then is printed as one table",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    backend = options.backend
    if "all" in options.part:
        others = [name for name in options.part if name != "all"]
        options.part = list(dict.fromkeys([*parts_of(backend), *others]))
    if other := [name for name in options.part if backend not in PARTS[name].backends]:
        parser.error(f"--part {other[0]} needs another --backend. Received: {backend}")
    if importlib.util.find_spec(backend) is None:
        parser.error(f"--backend {backend} needs {backend}, which is not installed")
    if "served" in options.part and not (options.run and options.text):
        parser.error("--part served needs --run and --text")
    on_cpus = [f"--part {name}" for name in ("scaling", "served") if name in options.part]
    cpu, is_cpu = [*on_cpus, "--device cpu"][0], on_cpus or options.device == "cpu"
    if is_cpu and options.device == "gpu":
        parser.error(f"{cpu} measures CPUs. Received: --device gpu")
    if is_cpu and options.gpu:
        parser.error(f"{cpu} measures CPUs. Received: --gpu {options.gpu}")
    try:
        read_report(options.json)
        options.device, options.gpu = choose_device(
            "cpu" if is_cpu else options.device, backend, options.gpu
        )
    except ValueError as error:
        parser.error(str(error))
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
        runs = json.loads(path.read_text("utf-8"))["runs"]
        report_table(runs)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ValueError(
            f"--json: {path} is not a report of this version of train.benchmark. Choose another "
            "file"
        ) from None
    return runs


def run(arguments=None):
    """Returns the exit status: 1 if our own engine could not be measured, or a number is wrong."""
    options = parse(arguments)
    report = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}Z"}
    report |= {"machine": machine(options.threads, options.gpu), "measurements": []}
    report |= {"backend": options.backend, "toy": options.toy}
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
        for name, title, rows, lines, marks, num_ours in measure(options, size):
            print("", f"{name}: {title}", *lines, sep="\n", flush=True)
            measured = {"table": name, "title": title, "engines": rows, "marks": marks}
            if options.gpu:
                measured["gpu_state_after"] = nvidia_smi()
            report["measurements"].append(measured)
            failed |= any(row.get("unavailable") for row in rows[:num_ours])
            failed |= any(row.get("holds") is False for row in rows)
            if options.json:  # after each table, so that an interrupted run leaves what it measured
                draft = options.json.with_name(f".{options.json.name}.{os.getpid()}")
                draft.write_text(json.dumps({"runs": runs}, indent=1) + "\n", "utf-8")
                os.replace(draft, options.json)
    if options.json:
        print("", f"All of {options.json}:", *report_table(runs), sep="\n", flush=True)
    return int(failed)


def main(arguments=None):
    # So that the processes of the engines end, too, and leave the GPU to what comes next.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with one_line_errors():
        sys.exit(run(arguments))
