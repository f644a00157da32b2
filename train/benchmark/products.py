"""The matrix products of a training step, and nothing else: the limit of the machine."""

import math
from collections import Counter
from typing import NamedTuple

from .engines import (
    Engine,
    import_keras,
    import_torch,
    wait_for_tensorflow,
    wait_for_torch,
)

# Operations a second, in float32 by TF32, and bytes a second: dense, from NVIDIA's data sheets, of
# the cards with these names. Others of their families, such as PCIe's, are slower.
PEAKS = {
    "NVIDIA H100 80GB HBM3": {"bfloat16": 989e12, "float32": 495e12, "bytes": 3.35e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 495e12, "bytes": 4.8e12},
}


class Product(NamedTuple):
    """`batch` matrix products of (rows, inner) by (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int


def forward_products(size):
    """How often each matrix product occurs in one pass forward over a batch.

    Queries, keys, values and outputs are counted as separate products, and attention in full,
    although causal masks hide half of it. A training step does each product three times: forward,
    for the gradient of its inputs, and for that of its weights.
    """
    layers, dim, heads = size.num_layers, size.hidden_dim, size.num_heads
    tokens, attended = size.batch_size * size.length, size.batch_size * heads
    counts = Counter()
    # One attention in an encoder block, two in a decoder block.
    counts[Product(1, tokens, dim, dim)] += 4 * 3 * layers
    counts[Product(attended, size.length, dim // heads, size.length)] += 3 * layers
    counts[Product(attended, size.length, size.length, dim // heads)] += 3 * layers
    counts[Product(1, tokens, dim, size.intermediate_dim)] += 2 * layers
    counts[Product(1, tokens, size.intermediate_dim, dim)] += 2 * layers
    counts[Product(1, tokens, dim, size.vocabulary_size)] += 1
    return counts


def training_flops(size):
    """Floating-point operations of all products of a training step: 2·m·k·n, three times."""
    return 3 * sum(2 * math.prod(p) * count for p, count in forward_products(size).items())


def peak_of(gpu, dtype):
    """Operations and bytes a second that a GPU can do at most; None if they are not known."""
    speeds = PEAKS.get(gpu)
    return speeds and (speeds[dtype], speeds["bytes"])


def tensorflow_products(workload):
    """Only the matrix products of a training step, by TensorFlow."""
    tensorflow = import_keras(workload)[0]

    def operand(*shape):
        return tensorflow.cast(tensorflow.random.normal(shape), workload.dtype)

    def products_of(a, b, c):
        yield lambda: tensorflow.matmul(a, b)
        yield lambda: tensorflow.matmul(c, b, transpose_b=True)
        yield lambda: tensorflow.matmul(a, c, transpose_a=True)

    unit = all_products(workload.size, operand, products_of)
    name = f"products, TensorFlow {tensorflow.__version__}"
    return Engine(name, unit, finish=lambda _: wait_for_tensorflow())


def pytorch_products(workload):
    """Only the matrix products of a training step, by PyTorch."""
    torch, device = import_torch(workload)

    def operand(*shape):
        return torch.randn(shape, device=device).to(getattr(torch, workload.dtype))

    def products_of(a, b, c):
        yield lambda: torch.matmul(a, b)
        yield lambda: torch.matmul(c, b.mT)
        yield lambda: torch.matmul(a.mT, c)

    unit = all_products(workload.size, operand, products_of)
    name = f"products, PyTorch {torch.__version__.partition('+')[0]}"
    return Engine(name, unit, finish=lambda _: wait_for_torch(device))


def all_products(size, operand, products_of):
    """A function that computes each product of a training step as often as the step does.

    Args:
        size: of the model and its batches.
        operand: function from a shape to a random matrix, or several in a batch.
        products_of: function from two operands and a result to the three products of a step:
            forward, for the gradient of the inputs, and for that of the weights.
    """
    calls = []
    for product, count in forward_products(size).items():
        outer = (product.batch,) if product.batch > 1 else ()
        shapes = (
            (product.rows, product.inner),
            (product.inner, product.columns),
            (product.rows, product.columns),
        )
        for call in products_of(*(operand(*outer, *shape) for shape in shapes)):
            calls += [call] * count

    def unit():
        for call in calls:
            call()

    return unit
