"""Training steps of the same model: ours, KerasHub's and PyTorch's.

All train a pre-norm encoder-decoder with ReLU and sinusoidal positions, one table for source,
target and output, dropout 0.1 after embeddings and sub-layers and on attention weights, padding
and causal masks, label smoothing 0.1, Adam. They have equally many parameters, random at first.
A unit of work is one training step.
"""

import itertools
import math

import numpy as np

from .engines import (
    FIRST_WORD_ID,
    Engine,
    import_keras,
    import_torch,
    wait_for_tensorflow,
    wait_for_torch,
)

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
ADAM = {"rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


def training_batches(workload):
    """Four batches of random ids without padding: every engine sees the same."""
    shape = (4, 3, workload.batch_size, workload.size.length)
    ids = np.random.default_rng(0).integers(FIRST_WORD_ID, workload.size.vocabulary_size, shape)
    return [
        ({"source_ids": source, "target_ids": target}, labels)
        for source, target, labels in ids.astype("int32")
    ]


def ours(workload):
    """The name of our engine, and our model, compiled with our loss and Adam."""
    import_keras(workload, mixed=True)
    from keras_transformer.models.encoder_decoder import translation
    from keras_transformer.training import Adam, TokenCrossentropy

    size = workload.size
    rates = {"dropout": DROPOUT, "attention_dropout": DROPOUT}
    model = translation(size.vocabulary_size, **size.dimensions, **rates)
    optimizer = Adam(*ADAM.values())
    loss = TokenCrossentropy(label_smoothing=LABEL_SMOOTHING)
    model.compile(optimizer, loss=loss, jit_compile=workload.compiled)
    return "keras_transformer", model


def kerashub(workload):
    """The name of KerasHub's engine, and its layers in Keras's own model, compiled.

    On a CPU in graph mode, where XLA is slower.
    """
    tensorflow, keras = import_keras(workload, mixed=True)
    import keras_hub

    layers, size = keras_hub.layers, workload.size
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
        # Smoothing without one-hot vectors, on top of the backend's cross-entropy.
        ops, labels = keras.ops, keras.ops.cast(labels, "int32")  # Keras passes both in float32
        sparse = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        if tensorflow is not None:
            chosen = tensorflow.gather(logits, labels, batch_dims=2)
        else:
            chosen = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        smoothed = sparse + LABEL_SMOOTHING * (chosen - ops.mean(logits, axis=-1))
        real = ops.cast(labels != 0, "float32")
        return ops.sum(smoothed * real) / ops.sum(real)

    model.compile(keras.optimizers.Adam(*ADAM.values()), loss=loss, jit_compile=workload.compiled)
    return f"KerasHub {keras_hub.__version__} layers", model


def pytorch_training(workload):
    """`torch.nn.Transformer` with its fused attention, fused Adam and autocast for bfloat16.

    Under `torch.compile` if the workload is to be compiled.
    """
    torch, device = import_torch(workload)
    nn, size = torch.nn, workload.size
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
    dropout = nn.Dropout(DROPOUT)
    parameters = [*transformer.parameters(), *embedding.parameters()]
    positions = future = optimizer = batches = None

    def prepare():
        nonlocal positions, future, optimizer, batches
        transformer.to(device)
        embedding.to(device)
        positions = torch.tensor(_sinusoids(size), dtype=torch.float32, device=device)
        future = torch.ones(size.length, size.length, dtype=torch.bool, device=device).triu(1)
        betas = ADAM["beta_1"], ADAM["beta_2"]
        optimizer = torch.optim.Adam(parameters, ADAM["rate"], betas, ADAM["epsilon"], fused=True)
        batches = itertools.cycle(
            [torch.from_numpy(ids).long().to(device) for ids in (*inputs.values(), labels)]
            for inputs, labels in training_batches(workload)
        )

    def embed(ids):
        return dropout(embedding(ids) * math.sqrt(size.hidden_dim) + positions)

    def loss_of(source, target, labels):
        with torch.autocast(device, torch.bfloat16, enabled=workload.dtype == "bfloat16"):
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
            return nn.functional.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=0,
                label_smoothing=LABEL_SMOOTHING,
            )

    if workload.compiled:
        loss_of = torch.compile(loss_of)

    def unit():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*next(batches))
        loss.backward()
        optimizer.step()
        return loss

    def finish(loss):
        wait_for_torch(device)
        return loss.item()

    def details():
        yield {"peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None}

    name = f"PyTorch {torch.__version__.partition('+')[0]} nn.Transformer"
    num_parameters = sum(parameter.numel() for parameter in parameters)
    return Engine(name, unit, num_parameters, finish, prepare, details)


def keras_training(named_model, workload):
    """The step that `fit` runs, without its callbacks and progress bar.

    Args:
        named_model: function from the workload to a name and a compiled model.
        workload: the work of a step.
    """
    name, model = named_model(workload)
    batches = iter(training_dataset(workload))
    model.make_train_function()

    def finish(logs):
        wait_for_tensorflow()
        return float(logs["loss"])

    return Engine(name, lambda: model.train_function(batches), model.count_params(), finish)


def training_dataset(workload):
    """The same batches, again and again, as a tf.data pipeline."""
    from tensorflow.data import Dataset

    inputs, labels = zip(*training_batches(workload), strict=True)
    inputs = {key: np.stack([batch[key] for batch in inputs]) for key in inputs[0]}
    return Dataset.from_tensor_slices((inputs, np.stack(labels))).repeat().prefetch(2)


def _sinusoids(size):
    """The paper's table of positions, (length, hidden_dim)."""
    angles = np.arange(size.length)[:, None] / 1e4 ** (
        np.arange(0, size.hidden_dim, 2) / size.hidden_dim
    )
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(size.length, -1)
