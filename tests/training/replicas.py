"""Trains the same models on the devices that it is told of, and keeps what came out.

python -m tests.training.replicas DEVICES FOLDER [CASE ...]

A program of its own, since the devices must be split before TensorFlow starts. With TF_CONFIG
it is one of several workers. Writes FOLDER/<index of the worker>.npz.
"""

import gc
import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.data import TokenBatches, tokenize
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder
from keras_transformer.models.lora import add_lora
from keras_transformer.tokenizers import train_sentencepiece
from keras_transformer.training import (
    Adam,
    InverseSqrtWarmup,
    Model,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
    choose_strategy,
    split_cpu,
    train_step,
)
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import check_workers_agree, this_worker
from keras_transformer.training.internals import loss_tracker

from .conftest import SecondViewTimes

VOCABULARY_SIZE, DIM, TARGET = 11, 3, 7
TODAY = {
    "num_heads": 2, "intermediate_dim": 5, "activation": "silu", "gated": True,
    "normalization": "rms", "use_bias": False,
    "attention_arguments": {"rotary": {}, "num_key_value_heads": 1, "query_key_norm": 1e-3},
    "position_bias": {"type": "t5", "num_buckets": 4, "max_distance": 5},
}  # fmt: skip


def language_model(
    dropout=0.0, dtype=None, remat=None, penalised=False, lora=False, today=False, dim=DIM,
    factor=None,
):  # fmt: skip
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(VOCABULARY_SIZE, dim, dtype=dtype)
    hidden = keras.layers.Dense(dim, "tanh", dtype=dtype)(embedding(ids))
    if penalised:
        l1 = {"kernel_regularizer": "l1", "activity_regularizer": "l2"}
        hidden = keras.layers.Dense(DIM, **l1)(hidden)
    if dropout:
        hidden = ReproducibleDropout(dropout, dtype=dtype)(hidden)
    if factor is not None:
        hidden = SecondViewTimes(factor)(hidden)
    if today:
        hidden = Encoder(1, **TODAY)(hidden)
    if remat is not None:
        dropout = 0.0 if lora else 0.25  # which is other noise on each replica
        hidden = Encoder(1, num_heads=1, intermediate_dim=5, dropout=dropout, remat=remat)(hidden)
    model = Model(ids, embedding(hidden, reverse=True))
    return add_lora(model, 2, targets=("query", "value", "widen", "narrow")) if lora else model


def rows(count, long):
    """`count` rows of ids and labels, of TARGET tokens where `long`, else of one."""
    generator = np.random.default_rng(5)
    ids = generator.integers(1, VOCABULARY_SIZE, (count, TARGET)).astype("int32")
    labels = (2 * ids + 1) % (VOCABULARY_SIZE - 1) + 1  # something to learn
    padding = np.arange(TARGET) >= np.where(long, TARGET, 1)[:, None]
    ids[padding] = labels[padding] = 0
    return ids, labels


def batches(count, batch_size):
    """Long rows in the first half of each batch, short ones in the second."""
    long = np.arange(count) % batch_size < batch_size // 2
    return tf.data.Dataset.from_tensor_slices(rows(count, long)).batch(batch_size)


def buckets():
    """Batches of short rows and of long ones, of different sizes, in a seeded order."""
    dataset = tf.data.Dataset.from_tensor_slices(rows(29, np.arange(29) % 3 == 0))
    dataset = dataset.shuffle(29, seed=7)

    def length(ids, _):
        return tf.reduce_sum(tf.cast(ids != 0, tf.int32))

    return dataset.bucket_by_sequence_length(length, [2], [9, 4])


def in_files():
    """Batches of the lines of two files, which TensorFlow's AUTO would divide by files."""
    pairs = np.concatenate(rows(16, np.arange(16) % 8 < 5), axis=1)
    lines = [" ".join(map(str, pair)) for pair in pairs]
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("a.txt", "b.txt")]
        for path, part in zip(paths, (lines[:8], lines[8:]), strict=True):
            path.write_text("\n".join(part))

        def parsed(line):
            numbers = tf.strings.to_number(tf.strings.split(line), tf.int32)
            return tf.unstack(tf.reshape(numbers, [2, TARGET]))

        yield tf.data.TextLineDataset(list(map(str, paths))).map(parsed).batch(4)


class BatchLogs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append([float(logs[name]) for name in sorted(logs)])


def train(
    strategy, data, repeats, optimizer, loss=None, dropout=0.0, dtype=None, remat=None, **settings
):
    """What two epochs leave: weights, moving averages, logs of batches, of epochs, and more."""
    with strategy.scope():
        kinds = {kind: settings.pop(kind, False) for kind in ("penalised", "lora", "today")}
        kinds["factor"] = settings.pop("factor", None)
        model = language_model(dropout, dtype, remat, **kinds, dim=settings.pop("dim", DIM))
        validated = settings.pop("validated", False)
        if validated and "weighted_metrics" not in settings:
            settings["metrics"] = [TokenAccuracy(), Perplexity()]
        loss_scale = settings.pop("loss_scale", None)
        model.compile(optimizer(), loss or TokenCrossentropy(0.1), **settings)
        if loss_scale is not None:
            model._step.loss_scale.variables[0].assign(loss_scale)
    start = [v.numpy() for v in model.trainable_variables]
    logs = BatchLogs()
    history = model.fit(
        data.repeat(repeats),
        epochs=2,
        callbacks=[logs],
        validation_data=data if validated else None,
        verbose=0,
    ).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True) if validated else {}
    weights = [v.numpy() for v in model.trainable_variables]
    average = model._step.average
    averages = [] if average is None else average.values
    moved = max(np.abs(w - s).max() for w, s in zip(weights, start, strict=True))
    return {
        **{f"weights/{index}": weight for index, weight in enumerate(weights)},
        **{f"averages/{i}": a.numpy() for i, a in enumerate(averages)},
        "batch_logs": np.array(logs.values),
        "epoch_logs": np.array([history[name] for name in sorted(history)]),
        "evaluated": np.array([evaluated[name] for name in sorted(evaluated)]),
        "counted": np.array(float(loss_tracker(model).count.numpy())),
        "sums": np.array([v.numpy() for metric in model.metrics for v in metric.variables]),
        "moved": np.array(moved),
        **scale_of(model),
    }


def scale_of(model):
    if model._step.loss_scale is None:
        return {}
    return {"loss_scale": np.array([float(v.numpy()) for v in model._step.loss_scale.variables])}


def sgd():
    return keras.optimizers.SGD(0.1)


def adam():
    return Adam(InverseSqrtWarmup(0.1, 3), weight_decay=0.01)


def muon():
    return keras.optimizers.Muon(0.1, weight_decay=0.01)


def keras_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def trainings(strategy, cases):
    """Yields (name, what the training leaves), or None for that if it is not among the cases."""

    def case(name, *arguments, **settings):
        is_wanted = name in cases or not cases
        return name, train(strategy, *arguments, **settings) if is_wanted else None

    even, uneven = batches(24, batch_size=8), batches(17, batch_size=8)
    everything = {"clip_norm": 0.125, "accumulation_steps": 2, "ema_momentum": 0.75}
    yield case("plain", even, 3, sgd)
    # 8, 8 and 1 rows: at the end only one replica has any. Gradients in several packs.
    train_step.PACK_BYTES, usual = 64, train_step.PACK_BYTES
    yield case("everything", uneven, 3, sgd, validated=True, **everything)
    train_step.PACK_BYTES = usual
    yield case("buckets", buckets(), 2, sgd, clip_norm=0.25)
    for dataset in in_files():
        yield case("files", dataset, 3, sgd)
    for name, jit_compile in ("plain", False), ("compiled", True):
        with strategy.scope():
            loss, accuracy = keras_loss(), keras.metrics.SparseCategoricalAccuracy()
        settings = {"weighted_metrics": [accuracy], "validated": True, "jit_compile": jit_compile}
        yield case(f"{name} keras loss and metric", uneven, 3, sgd, loss, **settings)
    penalties = {"penalised": True, "clip_norm": 0.5, "accumulation_steps": 2}
    with strategy.scope():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    yield case("penalties", uneven, 3, sgd, loss, **penalties)
    yield case("penalties of tokens", uneven, 3, sgd, **penalties)
    views = {"r_drop": 5.0, "factor": 1.75}
    yield case("two views", uneven, 3, sgd, **views, **everything)
    yield case("today's blocks", uneven, 3, sgd, today=True, dim=4, **everything)
    yield case("adam", uneven, 1, adam)
    yield case("muon", uneven, 1, muon)
    yield case("lora", uneven, 3, sgd, lora=True, remat=False, **everything)
    replicas, bfloat16 = strategy.num_replicas_in_sync, {"dtype": "mixed_bfloat16"}
    if replicas == 1:
        in_two = {"accumulation_steps": 2, **bfloat16}
        yield case("bfloat16 in two parts", even, 3, sgd, clip_norm=0.125, **in_two)
    if replicas == 2:
        yield case("bfloat16", even, 3, sgd, clip_norm=0.125, **bfloat16)
    half = {"dtype": "mixed_float16", "loss_scale": 2.0**26, "ema_momentum": 0.75}
    yield case("float16", even, 3, adam, clip_norm=0.125, **half)
    yield case("float16 compiled", uneven, 3, sgd, jit_compile=True, **half)
    # Each worker takes its part of every batch, as of `TokenBatches`: the same rows on the same
    # replicas in all arrangements.
    shares = sharded(even, tf.data.experimental.AutoShardPolicy.DATA)
    if replicas == 1:
        return
    if "dropout" in cases:
        yield case("dropout", shares, 3, sgd, dropout=0.5)
    yield case("blocks", uneven, 1, sgd, remat=False)
    yield case("rematerialised blocks", uneven, 1, sgd, remat=True)
    for name, jit_compile in ("plain", False), ("compiled", True):
        # Of eight units of a row XLA draws the noise in one pass.
        settings = {**everything, "dropout": 0.5, "dim": 8, "jit_compile": jit_compile}
        yield case(f"{name} everything", shares, 1, sgd, **settings)


def sharded(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def dropout_noise(strategy):
    """Which of 64 units each replica keeps, in two steps; (replicas, 2, 64)."""
    with strategy.scope():
        model = language_model(dropout=0.5)
        model.compile("sgd", TokenCrossentropy())
    model._step.dropout_seeds.spread()
    model._step.dropout_seeds.spread()  # which changes nothing
    with strategy.scope():
        model.compile("sgd", TokenCrossentropy())  # nor does another set of seeds
    model._step.dropout_seeds.spread()
    layer = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dropout))

    @tf.function
    def drop():
        return strategy.run(lambda: layer(tf.ones([1, 1, 64]), training=True))

    steps = [strategy.gather(drop(), axis=0).numpy() for _ in range(2)]
    return np.concatenate(steps, axis=1) > 0


def seen_sentences(strategy):
    """The sentences that this worker sees in two training epochs and one for validation."""
    sentences = [" ".join("ab"[int(bit)] for bit in f"{number:b}") for number in range(37)]
    tokenizer = train_sentencepiece(sentences, vocabulary_size=264)
    data = TokenBatches(*[tokenize(sentences, tokenizer)] * 2, 64, 16, seed=3)
    seen = {}
    for name, dataset, steps in (
        ("train", data.dataset(), 2 * data.steps_per_epoch),
        ("resumed", data.dataset(data.steps_per_epoch), data.steps_per_epoch),
        ("validation", data.epoch(), data.epoch().cardinality().numpy()),
    ):
        ids = []
        for inputs, _ in strategy.experimental_distribute_dataset(dataset.take(steps)):
            for part in strategy.experimental_local_results(inputs["source_ids"]):
                ids += tokenizer.detokenize(part).numpy().tolist()
        seen[f"seen/{name}"] = np.array(ids)
    return seen


def predictions(strategy):
    with strategy.scope():
        model = language_model()
        model.compile("sgd", TokenCrossentropy())
    return model.predict(batches(17, batch_size=8), verbose=0)


def restore_on_the_chief_alone(strategy, folder):
    with strategy.scope():
        model = language_model()
        model.compile("sgd", TokenCrossentropy())
    here = folder / ("shared" if this_worker(strategy).index == 0 else "elsewhere")
    checkpoints = Checkpoints(here, model)
    checkpoints.save()
    for variable in model.trainable_variables:
        variable.assign(variable.value * 2 + 1)
    checkpoints.restore()


class Unbuilt(Model):
    def call(self, inputs):
        return inputs


def compile_subclass(strategy):
    with strategy.scope():
        Unbuilt().compile("sgd", "mse")


def compile_normalised(strategy):
    with strategy.scope():
        inputs = keras.Input((3,))
        model = Model(inputs, keras.layers.BatchNormalization()(inputs))
        model.compile("sgd", "mse")


def refusals(strategy, folder):
    """What is said to settings and data that a strategy does not allow."""
    with strategy.scope():
        model = language_model()
        model.compile("sgd", TokenCrossentropy())
    ids, labels = rows(16, np.arange(16) < 8)
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(8)
    undivided = sharded(dataset, tf.data.experimental.AutoShardPolicy.OFF)
    tf.random.set_seed(None)  # Keras's seed would be given to the shuffle below

    def compile_in_scope(**settings):
        with strategy.scope():
            model.compile("sgd", TokenCrossentropy(), **settings)

    calls = {
        "steps_per_execution": lambda: compile_in_scope(steps_per_execution=2),
        "scope": lambda: model.compile("sgd", TokenCrossentropy()),
        "train_on_batch": lambda: model.train_on_batch(ids, labels),
        "test_on_batch": lambda: model.test_on_batch(ids, labels),
        "predict_on_batch": lambda: model.predict_on_batch(ids),
        "unbuilt": lambda: compile_subclass(strategy),
        "normalisation": lambda: compile_normalised(strategy),
    }
    if this_worker(strategy).count > 1:
        index = this_worker(strategy).index
        calls |= {
            "arrays": lambda: model.fit(ids, labels, verbose=0),
            "validation": lambda: model.fit(dataset, validation_data=(ids, labels), verbose=0),
            "sharding": lambda: model.fit(undivided, verbose=0),
            "unseeded": lambda: model.fit(dataset.unbatch().shuffle(8).batch(8), verbose=0),
            "restored": lambda: restore_on_the_chief_alone(strategy, folder),
            "agree": lambda: check_workers_agree(strategy, 5 + index, "a number"),
        }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[f"refused/{name}"] = np.array("")
        except (ValueError, RuntimeError) as error:
            said[f"refused/{name}"] = np.array(str(error))
    return said


def results_of(strategy, folder, cases):
    """{case/what came out: an array}, of this worker."""
    results = {}
    for name, values in trainings(strategy, cases):
        results.update({f"{name}/{key}": value for key, value in (values or {}).items()})
    results["noise"] = dropout_noise(strategy)
    results["predictions"] = predictions(strategy)
    results.update(seen_sentences(strategy))
    if strategy.num_replicas_in_sync > 1:
        results.update(refusals(strategy, folder))
    results["size"] = np.array([this_worker(strategy).count, strategy.num_replicas_in_sync])
    return results


def main(devices, folder, *cases):
    gc.set_threshold(100_000, 20, 10)  # as in conftest.py
    split_cpu(int(devices))
    strategy, folder = choose_strategy(), pathlib.Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    results = results_of(strategy, folder, cases)
    np.savez(folder / f"{this_worker(strategy).index}.npz", **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
