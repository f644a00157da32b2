"""What `train.benchmark` compares in training: our step, its peers, and bare matrix products.

A function here builds a model with random weights for a `Task` and hands back an `Engine`,
whose `unit` is one training step. Each engine lives in a process of its own, so frameworks
are imported inside the functions. All train the same thing: a pre-norm encoder-decoder with
ReLU and sinusoidal positions, one table for source, target and output, dropout 0.1 after
embeddings and sub-layers and on attention weights, padding and causal masks, label smoothing
0.1, Adam. They have equally many parameters.
"""

import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
ADAM = {"rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
FIRST_WORD_ID = 4  # below it: padding, unknown, start, end
PRODUCT_CALLS = 3
DIMENSIONS = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")


class Size(NamedTuple):
    """Dimensions of a model, and of the batches it is trained with."""

    num_layers: int  # of the encoder, and again of the decoder
    hidden_dim: int
    intermediate_dim: int
    num_heads: int
    vocabulary_size: int
    batch_size: int
    length: int  # tokens of every source and every target


class Task(NamedTuple):
    """What an engine is asked to do: train or decode, how large, how precise."""

    size: Size
    dtype: str  # "float32" or "bfloat16"; in decoding also "int8"
    batch_size: int  # sentence pairs of a step, or sentences decoded at once
    threads: int


class Engine(NamedTuple):
    """One engine, ready to run."""

    name: str  # with the version measured
    unit: Callable  # does one unit of work, and returns its result when all of it is done
    num_parameters: int = 0
    measures_itself: bool = False  # whether that result is the seconds to report


class Product(NamedTuple):
    """`batch` matrix products of (rows, inner) by (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int


def forward_products(size):
    """How often each matrix product occurs in one pass forward over a batch.

    Queries, keys, values and outputs are counted as products of their own, and attention in
    full although causal masks hide half of it. A training step does each product three
    times: forward, for the gradient of its inputs, and for that of its weights.
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


def training_batches(task):
    """Four batches of random ids without padding: every engine sees the same."""
    shape = (4, 3, task.batch_size, task.size.length)
    ids = np.random.default_rng(0).integers(FIRST_WORD_ID, task.size.vocabulary_size, shape)
    return [
        ({"source_ids": source, "target_ids": target}, labels)
        for source, target, labels in ids.astype("int32")
    ]


def ours_training(task):
    """Our model, loss, Adam and train step, one call of the compiled step at a time."""
    import_keras(task, mixed=True)
    from keras_transformer.models.encoder_decoder import translation
    from keras_transformer.training import Adam, TokenCrossentropy

    dimensions = {name: getattr(task.size, name) for name in DIMENSIONS}
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT}
    model = translation(task.size.vocabulary_size, **dimensions, **rates)
    optimizer = Adam(*ADAM.values())
    model.compile(optimizer, loss=TokenCrossentropy(label_smoothing=LABEL_SMOOTHING))
    return _keras_training("keras_transformer", model, task)


def kerashub_training(task):
    """KerasHub's layers in Keras's own model, in graph mode: XLA is slower on a CPU."""
    tensorflow, keras = import_keras(task, mixed=True)
    import keras_hub

    layers, size = keras_hub.layers, task.size
    arguments = {"dropout": DROPOUT, "normalize_first": True}
    embedding = layers.ReversibleEmbedding(size.vocabulary_size, size.hidden_dim)
    scale = keras.layers.Rescaling(math.sqrt(size.hidden_dim))

    def embed(ids):
        vectors = scale(embedding(ids))
        return keras.layers.Dropout(DROPOUT)(vectors + layers.SinePositionEncoding()(vectors))

    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    source_mask = keras.ops.not_equal(source_ids, 0)
    target_mask = keras.ops.not_equal(target_ids, 0)
    source, target = embed(source_ids), embed(target_ids)
    for _ in range(size.num_layers):
        block = layers.TransformerEncoder(size.intermediate_dim, size.num_heads, **arguments)
        source = block(source, padding_mask=source_mask)
    source = keras.layers.LayerNormalization()(source)
    for _ in range(size.num_layers):
        block = layers.TransformerDecoder(size.intermediate_dim, size.num_heads, **arguments)
        target = block(
            target, source, decoder_padding_mask=target_mask, encoder_padding_mask=source_mask
        )
    logits = embedding(keras.layers.LayerNormalization()(target), reverse=True)
    model = keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)

    def loss(labels, logits):
        # Smoothing without one-hot vectors, on top of TensorFlow's fused cross-entropy.
        labels = tensorflow.cast(labels, "int32")  # Keras hands both over in float32
        sparse = tensorflow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        chosen = tensorflow.gather(logits, labels, batch_dims=2)
        smoothed = sparse + LABEL_SMOOTHING * (chosen - tensorflow.reduce_mean(logits, axis=-1))
        real = tensorflow.cast(labels != 0, "float32")
        return tensorflow.reduce_sum(smoothed * real) / tensorflow.reduce_sum(real)

    model.compile(keras.optimizers.Adam(*ADAM.values()), loss=loss, jit_compile=False)
    return _keras_training(f"KerasHub {keras_hub.__version__} layers", model, task)


def pytorch_training(task):
    """`torch.nn.Transformer`, eager, with fused Adam and autocast for bfloat16."""
    import torch
    from torch import nn

    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    size = task.size
    transformer = nn.Transformer(
        size.hidden_dim,
        size.num_heads,
        size.num_layers,
        size.num_layers,
        size.intermediate_dim,
        dropout=DROPOUT,
        batch_first=True,
        norm_first=True,
    )
    for block in [*transformer.encoder.layers, *transformer.decoder.layers]:
        block.dropout = nn.Identity()  # inside the feed-forward network: the others have none
    embedding = nn.Embedding(size.vocabulary_size, size.hidden_dim)
    nn.init.normal_(embedding.weight, std=size.hidden_dim**-0.5)
    dropout, positions = nn.Dropout(DROPOUT), torch.tensor(_sinusoids(size), dtype=torch.float32)
    future = torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
    parameters = [*transformer.parameters(), *embedding.parameters()]
    optimizer = torch.optim.Adam(
        parameters, ADAM["rate"], (ADAM["beta_1"], ADAM["beta_2"]), ADAM["epsilon"], fused=True
    )
    batches = itertools.cycle(
        [torch.from_numpy(ids).long() for ids in (*inputs.values(), labels)]
        for inputs, labels in training_batches(task)
    )

    def embed(ids):
        return dropout(embedding(ids) * math.sqrt(size.hidden_dim) + positions)

    def unit():
        source, target, labels = next(batches)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=task.dtype == "bfloat16"):
            features = transformer(
                embed(source),
                embed(target),
                tgt_mask=future,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            logits = nn.functional.linear(features, embedding.weight)
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=0,
                label_smoothing=LABEL_SMOOTHING,
            )
        loss.backward()
        optimizer.step()
        return loss.item()

    name = f"PyTorch {torch.__version__.partition('+')[0]} nn.Transformer"
    return Engine(name, unit, sum(parameter.numel() for parameter in parameters))


def import_keras(task, mixed=False):
    """TensorFlow and Keras, set to the threads and, with `mixed`, to the dtype of the task."""
    import tensorflow

    tensorflow.config.threading.set_intra_op_parallelism_threads(task.threads)
    tensorflow.config.threading.set_inter_op_parallelism_threads(task.threads)
    import keras

    keras.utils.set_random_seed(0)
    if mixed and task.dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    return tensorflow, keras


def _keras_training(name, model, task):
    """The step that `fit` runs, without its callbacks and progress bar."""
    from tensorflow.data import Dataset

    inputs, labels = zip(*training_batches(task), strict=True)
    inputs = {key: np.stack([batch[key] for batch in inputs]) for key in inputs[0]}
    dataset = Dataset.from_tensor_slices((inputs, np.stack(labels))).repeat().prefetch(2)
    batches = iter(dataset)
    model.make_train_function()
    return Engine(name, lambda: float(model.train_function(batches)["loss"]), model.count_params())


def _sinusoids(size):
    """The paper's table of positions, (length, hidden_dim)."""
    angles = np.arange(size.length)[:, None] / 1e4 ** (
        np.arange(0, size.hidden_dim, 2) / size.hidden_dim
    )
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(size.length, -1)


def tensorflow_products(task):
    """Nothing but the matrix products of a training step, by TensorFlow."""
    tensorflow = import_keras(task)[0]

    def operand(*shape):
        return tensorflow.cast(tensorflow.random.normal(shape), task.dtype)

    def forms(a, b, c):
        yield lambda: tensorflow.matmul(a, b)
        yield lambda: tensorflow.matmul(c, b, transpose_b=True)
        yield lambda: tensorflow.matmul(a, c, transpose_a=True)

    name = f"products, TensorFlow {tensorflow.__version__}"
    unit = functools.partial(_product_seconds, task, operand, forms)
    return Engine(name, unit, measures_itself=True)


def pytorch_products(task):
    """Nothing but the matrix products of a training step, by PyTorch."""
    import torch

    torch.set_num_threads(task.threads)

    def operand(*shape):
        return torch.randn(shape).to(getattr(torch, task.dtype))

    def forms(a, b, c):
        yield lambda: torch.matmul(a, b)
        yield lambda: torch.matmul(c, b.mT)
        yield lambda: torch.matmul(a.mT, c)

    name = f"products, PyTorch {torch.__version__.partition('+')[0]}"
    unit = functools.partial(_product_seconds, task, operand, forms)
    return Engine(name, unit, measures_itself=True)


def _product_seconds(task, operand, forms):
    """Seconds that a training step would take if its products were all it did."""
    total = 0.0
    for product, count in forward_products(task.size).items():
        outer = (product.batch,) if product.batch > 1 else ()
        a = operand(*outer, product.rows, product.inner)
        b = operand(*outer, product.inner, product.columns)
        c = operand(*outer, product.rows, product.columns)
        for form in forms(a, b, c):
            form()
            start = time.perf_counter()
            for _ in range(PRODUCT_CALLS):
                form()
            total += count * (time.perf_counter() - start) / PRODUCT_CALLS
    return total
