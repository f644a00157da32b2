"""What `train.benchmark` can measure: its parts, and what each of them prints."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from . import attention, decoding, generation, on_jax, products, scaling, served, training
from .engines import SIZES, Candidate, Workload, size_on
from .exactness import measure_exactness
from .rounds import measure, why_not
from .tables import compare, engine_table, exactness_table, kernel_table, mark_lines

# Operations a second, in float32 by TF32, and bytes a second: dense, from NVIDIA's data sheets, of
# the cards with these names. Others of their families, such as PCIe's, are slower.
H100 = "NVIDIA H100 80GB HBM3"
PEAKS = {
    H100: {"bfloat16": 989e12, "float32": 495e12, "bytes": 3.35e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 495e12, "bytes": 4.8e12},
}
DTYPES = ["float32", "bfloat16"]
LONG = {"batch_size": 4, "length": 4096}
# What our training step should reach on an H100.
FASTER_THAN = {"KerasHub": 1.5, "PyTorch": 1.0}
TOKENS_PER_SECOND_AT_BIG = 120_000
NEW_TOKENS = 64  # of a continuation
PASSES_TO_FIRST_TOKEN = 1.3  # most forward passes that may last as long


class Table(NamedTuple):
    """What was measured together, in one table."""

    name: str  # short, such as "train-base, bfloat16"
    title: str  # what was done, on how much
    rows: list  # one dictionary per engine, or per fact
    lines: list  # the same as text
    marks: list = []  # what should be reached, dictionaries
    num_ours: int = 1  # how many rows, from the first on, may not fail


class Part(NamedTuple):
    """One part of the benchmark."""

    measure: Callable  # from the options and the name of a size to tables, one after the other
    size: str
    backends: tuple
    help: str


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


def measure_training(options, name):
    for dtype in options.dtype or DTYPES:
        size = size_on(options.device, name)
        flops = products.training_flops(size)
        rows = measure(
            training_candidates(workload_of(options, size, dtype)),
            options.repeats,
            steps_of(options, on_gpu=10),
        )
        compare(rows, size.batch_size * size.length, flops, peak_of(options, dtype))
        marks = marks_of(name, dtype, rows) if options.gpu == H100 else []
        yield Table(
            f"train-{name}, {dtype}",
            f"{size.describe()}, batch {size.batch_size} x {size.length}; ms per step of "
            f"{flops / 1e9:.3g} GFLOP",
            rows,
            engine_table(rows) + kernel_table(rows[0]) + mark_lines(marks),
            marks,
        )


def measure_decoding(options, name):
    size = SIZES[name]
    beams = [decoding.NUM_BEAMS, 1] if options.backend == "jax" else [decoding.NUM_BEAMS]
    batches = options.decode_batch or ([1, 32, 256] if options.device == "gpu" else [32, 1])
    for batch_size, dtype, num_beams in itertools.product(batches, dtypes_of(options), beams):
        workload = workload_of(options, size, dtype, batch_size)
        candidates = decoding_candidates(workload, num_beams)
        rows = measure(candidates, options.repeats, steps_of(options, on_gpu=1))
        compare(rows, batch_size * decoding.OUTPUT_TOKENS)
        yield Table(
            f"decode, batch {batch_size}, beam {num_beams}, {dtype}",
            f"{name}: {size.describe()}, {decoding.SOURCE_TOKENS} -> {decoding.OUTPUT_TOKENS} "
            "tokens; ms per batch",
            rows,
            engine_table(rows),
        )


def measure_generation(options, name):
    size = generation.size_of(SIZES[name])
    workload = workload_of(options, size, "float32", batch_size=1)
    new = min(NEW_TOKENS, size.length)

    def measured(builders, tokens):
        candidates = [Candidate(label, build, workload) for label, build in builders.items()]
        rows = measure(candidates, options.repeats, steps_of(options, on_gpu=1))
        compare(rows, tokens)
        return rows

    text = f"{size.num_layers} layers, {size.hidden_dim} wide, vocabulary {size.vocabulary_size}"
    rows = measured(
        {
            "generate": functools.partial(generation.ours_generation, 1),
            "stream": functools.partial(generation.ours_stream, 1),
            "forward pass": generation.ours_forward,
            "Hugging Face": functools.partial(generation.huggingface_generation, 1),
        },
        1,
    )
    passes = rows[2].get("ours_is_faster_by", [None])[0]
    wanted = round(1 / PASSES_TO_FIRST_TOKEN, 2)
    marks = [mark_of("times the first token's time for a forward pass", passes, wanted)]
    title = f"{text}: the first token after a prompt of {size.length}; ms"
    lines = engine_table(rows) + mark_lines(marks)
    yield Table("first token", title, rows, lines, marks, num_ours=3)

    # With a short prompt, so that what is measured is the tokens after it.
    workload = workload._replace(size=size._replace(length=min(size.length, new)))
    rows = measured(
        {
            "generate": functools.partial(generation.ours_generation, new),
            "stream": functools.partial(generation.ours_stream, new),
            "Hugging Face": functools.partial(generation.huggingface_generation, new),
        },
        new,
    )
    ratio = rows[2].get("ours_is_faster_by", [None])[0]
    marks = [mark_of("times as fast as Hugging Face", ratio, 1.0)]
    title = f"{text}: {new} tokens after a prompt of {workload.size.length}, batch 1; ms for all"
    lines = engine_table(rows) + mark_lines(marks)
    yield Table("generate", title, rows, lines, marks, num_ours=2)


def measure_served(options, _):
    texts = served.texts_of(options.text)
    size = SIZES["toy"]  # of no consequence: the run has a size
    for batch_size in options.decode_batch or [32, 1]:
        some = texts[: 32 * batch_size]
        workload = workload_of(options, size, "float32", batch_size)
        ours = functools.partial(served.ours_served, options.run, some)
        theirs = functools.partial(served.ctranslate2_served, options.run, some)
        candidates = [
            Candidate("keras_transformer", ours, workload),
            Candidate("CTranslate2 float32", theirs, workload),
            Candidate("CTranslate2 int8", theirs, workload._replace(dtype="int8")),
        ]
        rows = measure(candidates, options.repeats, options.steps or 1)
        compare(rows, len(some))
        yield Table(
            f"served, batch {batch_size}",
            f"{len(some)} texts of {options.text} by {options.run}, in requests of {batch_size}; "
            "ms for all; texts/s",
            rows,
            engine_table(rows),
        )


def measure_exact(options, name):
    size = SIZES[name]._replace(batch_size=4)
    try:
        rows = measure_exactness(workload_of(options, size, "float32"))
    except Exception as error:  # the other parts go on
        rows = [{"name": "exactness", "unavailable": why_not(error)}]
    title = f"{name}: {size.describe()}, {size.batch_size} rows"
    yield Table("exact", title, rows, exactness_table(rows))


def measure_long(options, name):
    size = SIZES["toy"]._replace(**({"length": 64} if name == "toy" else LONG))
    for dtype in dtypes_of(options):
        candidates = attention.attention_candidates(workload_of(options, size, dtype))
        rows = measure(candidates, options.repeats, steps_of(options, on_gpu=10))
        compare(rows, size.batch_size * size.length, peak=peak_of(options, dtype))
        yield Table(
            f"long, {dtype}",
            f"causal attention, forward and backward: {size.batch_size} x {size.length} tokens, "
            f"{attention.NUM_HEADS} heads of {attention.KEY_DIM}",
            rows,
            engine_table(rows, first="first"),
            num_ours=len(rows),
        )


def measure_scaling(options, name):
    size = SIZES[name]
    steps = steps_of(options)
    rows = [
        scaling.measure_arrangement(arrangement, name, steps)
        for arrangement in scaling.ARRANGEMENTS
    ]
    title = (
        f"training, {name}: {size.describe()}, float32; the same global batch of "
        f"{size.batch_size} x {size.length} everywhere, all on the same cores"
    )
    yield Table("scaling", title, rows, scaling.arrangement_table(rows))
    rows = measure(scaling.step_candidates(size, options.threads), options.repeats, steps)
    compare(rows, size.batch_size * size.length)
    lines = engine_table(rows)
    yield Table("scaling, one device", "steps of the same model", rows, lines, num_ours=len(rows))


TENSORFLOW, JAX = ("tensorflow",), ("jax",)
PARTS = {
    **{
        f"train-{size}": Part(measure_training, size, TENSORFLOW + JAX, f"training, model {size}")
        for size in ("tiny", "small", "base", "big")
    },
    "decode": Part(
        measure_decoding,
        "base",
        TENSORFLOW + JAX,
        "decoding; on TensorFlow from an exported SavedModel, on JAX with 4 beams and with 1",
    ),
    "generate": Part(
        measure_generation,
        "gpt2",
        TENSORFLOW,
        "continuations by GPT-2's smallest shape in float32, one at a time, from text to text",
    ),
    "served": Part(
        measure_served,
        "base",
        TENSORFLOW,
        "translation as it is served, from text to text, by the model of --run, of the texts of "
        "--text",
    ),
    "exact": Part(
        measure_exact,
        "small",
        JAX,
        "whether the numbers are those of a CPU, and the bits the same in every run and after a "
        "restart",
    ),
    "long": Part(
        measure_long,
        "base",
        JAX,
        f"attention of {LONG['length']} tokens, in cuDNN's kernel, in chunks and with all weights "
        "at once",
    ),
    "scaling": Part(
        measure_scaling,
        "small",
        TENSORFLOW,
        "one step on 1, 2 and 4 virtual devices and on 2 workers of a CPU, the exact step compared "
        "with Keras's own",
    ),
}


def parts_of(backend):
    """The names of the parts that `--part all` measures on a backend, a list."""
    others = ("generate", "scaling", "served")
    return [n for n, part in PARTS.items() if backend in part.backends and n not in others]


def dtypes_of(options):
    """The dtypes in which to decode or attend: on a GPU only bfloat16, unless others are named."""
    return options.dtype or (["bfloat16"] if options.device == "gpu" else DTYPES)


def steps_of(options, on_gpu=3):
    """Units of work per round."""
    return options.steps or (on_gpu if options.device == "gpu" else 3)


def peak_of(options, dtype):
    """Operations and bytes a second that the GPU can do at most; None if they are not known."""
    speeds = PEAKS.get(options.gpu)
    return speeds and (speeds[dtype], speeds["bytes"])


def mark_of(text, measured, wanted=None):
    """A mark as of `marks_of`; `measured` is None if it was not, `wanted` if there is no least."""
    reached = None if None in (measured, wanted) else measured >= wanted
    return {"mark": text, "wanted": wanted, "measured": measured, "reached": reached}


def marks_of(name, dtype, rows):
    """What a training step should reach on an H100, and what it reached.

    Args:
        name: of the size.
        dtype: of the step.
        rows: rows of `compare`, ours first.

    Returns:
        A list of dictionaries: `mark`; `wanted`, the least it should be, or None; `measured`, None
        if it was not; `reached`, None if nothing is wanted or was measured.
    """
    ours, *peers = rows

    def ratio(peer):
        [row] = [row for row in peers if row["name"].startswith(peer)]
        return row.get("ours_is_faster_by", [None])[0]

    marks = [
        mark_of(f"times as fast as {peer}", ratio(peer), wanted)
        for peer, wanted in FASTER_THAN.items()
    ]
    if (name, dtype) == ("big", "bfloat16"):
        speed = ours.get("tokens_per_second")
        marks.append(mark_of("target tokens a second", speed, TOKENS_PER_SECOND_AT_BIG))
    if (name, dtype) == ("base", "bfloat16"):
        milliseconds = 1000 * statistics.median(ours["seconds"]) if ours["seconds"] else None
        text = f"ms a step, at least {ours.get('bound_ms', math.nan):.2f} by what it moves"
        marks.append(mark_of(text, milliseconds))
    return marks
