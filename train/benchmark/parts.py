"""What `train.benchmark` can measure: its parts, and what each of them prints."""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

from . import decoding, generation, products, served, training
from .engines import SIZES, Candidate, Workload, size_on
from .products import peak_of
from .rounds import measure
from .tables import compare, engine_table

DTYPES = ["float32", "bfloat16"]
NEW_TOKENS = 64  # of a continuation


class Table(NamedTuple):
    """What was measured together, in one table."""

    name: str  # short, such as "train-base, bfloat16"
    title: str  # what was done, on how much
    rows: list  # one dictionary per engine
    lines: list  # the same as text
    num_ours: int = 1  # how many rows, from the first on, may not fail


class Part(NamedTuple):
    """One part of the benchmark."""

    measure: Callable  # from the options and the name of a size to tables, one after the other
    size: str
    help: str


def training_candidates(workload):
    """The engines that train; ours first and the bare products last."""
    build = training.keras_training
    builders = {
        "keras_transformer": functools.partial(build, training.ours),
        "KerasHub layers": functools.partial(build, training.kerashub),
        "PyTorch nn.Transformer": training.pytorch_training,
        "products, TensorFlow": products.tensorflow_products,
        "products, PyTorch": products.pytorch_products,
    }
    return [Candidate(label, build, workload) for label, build in builders.items()]


def decoding_candidates(workload):
    """The engines that decode a model: our SavedModel, and CTranslate2, on CPUs also in int8."""
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
    batch_size, on_gpu = batch_size or size.batch_size, options.device == "gpu"
    return Workload(size, dtype, batch_size, options.threads, options.device, compiled=on_gpu)


def measure_training(options, name):
    for dtype in options.dtype or DTYPES:
        size = size_on(options.device, name)
        flops = products.training_flops(size)
        rows = measure(
            training_candidates(workload_of(options, size, dtype)),
            options.repeats,
            steps_of(options, on_gpu=10),
        )
        compare(rows, size.batch_size * size.length, flops, peak_of(options.gpu, dtype))
        yield Table(
            f"train-{name}, {dtype}",
            f"{size.describe()}, batch {size.batch_size} x {size.length}; ms per step of "
            f"{flops / 1e9:.3g} GFLOP",
            rows,
            engine_table(rows),
        )


def measure_decoding(options, name):
    size = SIZES[name]
    batches = options.decode_batch or ([1, 32, 256] if options.device == "gpu" else [32, 1])
    for batch_size, dtype in itertools.product(batches, dtypes_of(options)):
        workload = workload_of(options, size, dtype, batch_size)
        candidates = decoding_candidates(workload)
        rows = measure(candidates, options.repeats, steps_of(options, on_gpu=1))
        compare(rows, batch_size * decoding.OUTPUT_TOKENS)
        yield Table(
            f"decode, batch {batch_size}, beam {decoding.NUM_BEAMS}, {dtype}",
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
    title = f"{text}: the first token after a prompt of {size.length}; ms"
    yield Table("first token", title, rows, engine_table(rows), num_ours=3)

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
    title = f"{text}: {new} tokens after a prompt of {workload.size.length}, batch 1; ms for all"
    yield Table("generate", title, rows, engine_table(rows), num_ours=2)


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


PARTS = {
    **{
        f"train-{size}": Part(measure_training, size, f"training, model {size}")
        for size in ("tiny", "small", "base", "big")
    },
    "decode": Part(measure_decoding, "base", "decoding, from an exported SavedModel"),
    "generate": Part(
        measure_generation,
        "gpt2",
        "continuations by GPT-2's smallest shape in float32, one at a time, from text to text",
    ),
    "served": Part(
        measure_served,
        "base",
        "translation as it is served, from text to text, by the model of --run, of the texts of "
        "--text",
    ),
}
ALL = ("train-tiny", "train-small", "train-base", "train-big", "decode")  # of --part all


def dtypes_of(options):
    """The dtypes in which to decode: on a GPU only bfloat16, unless others are named."""
    return options.dtype or (["bfloat16"] if options.device == "gpu" else DTYPES)


def steps_of(options, on_gpu=3):
    """Units of work per round."""
    return options.steps or (on_gpu if options.device == "gpu" else 3)
