"""What translators, classifiers and generators share: signatures, batches of texts, the export."""

import concurrent.futures
import contextlib
import copy
import functools
import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import rich.console
import rich.progress
import tensorflow as tf

from keras_transformer.arguments import read_texts
from keras_transformer.decoding.compiling import is_static
from keras_transformer.models.lora import projections
from keras_transformer.ops.projection import with_columns
from keras_transformer.serving.publishing.export import EXAMPLES, export
from keras_transformer.tokenizers.control_ids import PAD_ID

TEXTS_AT_A_TIME = 64  # of all threads together, unless these are more than four
FEWEST_TEXTS = 16  # of each of many threads
LISTED = 5  # indices of truncated texts in a warning

TEXT = tf.TensorSpec([None], tf.string)
NUMBER = tf.TensorSpec([None], tf.int32)  # one per row, e.g. a length
REAL = tf.TensorSpec([None], tf.float32)
IDS = tf.TensorSpec([None, None], tf.int32)


class Signature(NamedTuple):
    """A function that a SavedModel serves."""

    method: Callable  # from tensors to a dictionary of tensors, the batch first
    inputs: dict[str, tf.TensorSpec]  # in the order of the method's arguments, texts first
    outputs: dict[str, tuple]  # {name: shape of one row}; None is a size that may vary

    def function(self):
        """The method as a tf.function, traced when it is first called."""
        specs = [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in self.inputs.items()]
        return tf.function(self.method, input_signature=specs, autograph=False)


class ServedModel:
    """A trained model with its tokenizers, ready for texts: from Python, or as a SavedModel.

    It shares the weights of the model: after `model.fit` it answers with the new ones. A subclass
    defines `_signatures`.

    In all signatures the batch is the first axis, and the answer to a row does not depend on the
    other rows, which may come from other requests that TensorFlow Serving merged. Token ids come
    with their lengths, and columns beyond a length are never read, because TensorFlow Serving
    pads rows with arbitrary values. Floating-point outputs are float32.

    Args:
        model: with the methods and the `weights` that `models.TextModel` documents.
        tokenizer: splits the input texts into tokens.
        target_tokenizer: joins output texts; defaults to `tokenizer`.
        cache: "growing", "static" or "auto", as for `Translator`.

    Attributes:
        model: the model.
        tokenizer: splits the input texts into tokens.
        signatures: {name: tf.function}, what this process answers with and a SavedModel serves;
            each is traced when it is first called.
        row_shapes: {name: {output: shape of one row}}, to check exports.
    """

    def __init__(self, model, tokenizer, target_tokenizer=None, cache="growing"):
        self.model, self.tokenizer = model, tokenizer
        self._text_model = model  # a subclass may adapt it to the ids of the tokenizer
        self._columns = {}  # what an export stores instead of kernels: `transposed_kernels`
        self.target_tokenizer = target_tokenizer or tokenizer
        self._use_cache(is_static(cache, getattr(model, "has_static_cache", False)))

    def _use_cache(self, is_static):
        signatures = self._signatures()
        self._is_static = is_static
        self.signatures = {
            name: each._replace(method=self._with_columns(each.method)).function()
            for name, each in signatures.items()
        }
        self.row_shapes = {name: each.outputs for name, each in signatures.items()}

    def _with_columns(self, method):
        """A method whose graph reads kernels as they are stored."""

        @functools.wraps(method)
        def served(*inputs, **named):
            with with_columns(self._columns):
                return method(*inputs, **named)

        return served

    def _signatures(self):
        """{name: `Signature`}, `serving_default` among them."""
        raise NotImplementedError

    @property
    def weights(self):
        """The tensors behind the Keras variables, which is what a SavedModel stores."""
        return [self._columns.get(id(w), raw(w)) for w in self.model.weights]

    def answer(self, texts, signature="serving_default", **others):
        """The outputs of a signature of the SavedModel, for any number of texts.

        Texts of similar length share a batch. Without a GPU, several batches are answered side by
        side: as many as TensorFlow has inter-op threads, or one for each core. That is fastest if
        operations have one thread each, as in the commands
        (`tf.config.threading.set_intra_op_parallelism_threads(1)`). On a terminal, a progress bar
        shows.

        Args:
            texts: a list of strings; ValueError for anything else.
            signature: one whose outputs have the same shape for every text.
            **others: further inputs of the signature, lists with one value per text.

        Returns:
            A dictionary of arrays with one row per text, in the order of `texts`; strings are
            bytes.
        """
        texts = list(read_texts(texts))
        function = self.signatures[signature]
        specs = function.input_signature
        columns = {specs[0].name: texts, **others}
        for spec in specs[1:]:
            if spec.dtype == tf.string:
                columns[spec.name] = list(read_texts(columns[spec.name], spec.name))
        function.get_concrete_function()  # traced here, because Keras keeps state for each thread

        def answered(rows):
            inputs = [
                tf.constant([columns[spec.name][row] for row in rows], spec.dtype, [len(rows)])
                for spec in specs
            ]
            return {key: value.numpy() for key, value in function(*inputs).items()}

        order = sorted(range(len(texts)), key=lambda row: len(texts[row]), reverse=True)
        parts = list(side_by_side(answered, order, 1 if self._is_static else None))
        original_order = np.argsort(np.array(order, int))
        return {
            key: np.concatenate([part[key] for part in parts])[original_order] for key in parts[0]
        }

    def _attention_scores(self, *inputs):
        """What the model's `attention_scores` returns for inputs of shape (batch, length).

        Raises ValueError if the model has no such method.
        """
        if not hasattr(self._text_model, "attention_scores"):
            raise ValueError("The model must have a method attention_scores. Received: none.")
        return self._text_model.attention_scores(*inputs)

    def _check_scores(self, size):
        """Raises ValueError unless so many logits score every id of the target tokenizer."""
        check_vocabulary(size, self.target_tokenizer, "score every id of the tokenizer")

    def export(self, directory, name, examples=EXAMPLES, timeout=600):
        """Publishes the next version of a served model, once it has passed all checks.

        The draft of the SavedModel gets warm-up requests and batching parameters. Then its graph
        and size are checked, and its answers in a fresh process without Keras or Python code.
        Only a draft that passes is renamed to `<directory>/<name>/<next integer>`, in one step.
        Its cache always grows, because TensorFlow Serving disables XLA by default. Kernels are
        stored as (input, output or some more), with which most processors decode faster; until the
        export ends, they are in memory twice.

        Args:
            directory: folder of all served models.
            name: of this model in requests.
            examples: at least one text, for warm-up and checks.
            timeout: for the fresh process, in seconds.

        Returns:
            The path of the new version.

        Raises:
            ValueError: if `name` is not a plain folder name, no server could load a model from
                `directory`, or there are no examples.
            RuntimeError: if a check fails; then nothing is published.
        """
        return export(self.as_exported(), directory, name, examples, timeout)

    def as_exported(self):
        """A copy with kernels of its own, as (input, output), and whose search needs no XLA."""
        exported = copy.copy(self)
        exported._columns = transposed_kernels(self.model)
        exported._check_columns()
        exported._use_cache(is_static=False)
        return exported

    def _check_columns(self):
        """Raises RuntimeError unless the model answers alike with kernels as they are stored.

        What is exported is later compared with this process's answers from the same columns.
        """
        if not self._columns or not getattr(self.model, "inputs", None):
            return  # no kernels, or a model of the user's own that names no inputs
        # Of one token, for a model may have few positions.
        ones = keras.tree.map_structure(
            lambda x: tf.ones([size or 1 for size in x.shape], x.dtype), self.model.input
        )
        answers = []
        for columns in ({}, self._columns):
            with with_columns(columns):
                answers.append(keras.tree.flatten(self.model(ones, training=False)))
        for pair in zip(*answers, strict=True):
            expected, answered = (tf.cast(each, tf.float32).numpy() for each in pair)
            largest = np.abs(expected).max(initial=1, where=np.isfinite(expected))
            if not np.allclose(answered, expected, rtol=0, atol=0.02 * largest, equal_nan=True):
                raise RuntimeError("The model answers otherwise with kernels as they are stored.")

    def saved_module(self):
        """What a SavedModel stores: weights and tokenizers.

        Not the Keras model: a `tf.Module` that holds a Keras layer saves each weight twice, and
        only Python links the second copy to the first.
        """
        module = tf.Module(type(self).__name__.lower())
        module.weights = self.weights
        module.tokenizer, module.target_tokenizer = self.tokenizer, self.target_tokenizer
        return module

    def warm_up_requests(self, texts):
        """Requests of the most common sizes: pairs of a signature and its inputs."""
        name = self.signatures["serving_default"].input_signature[0].name
        return [("serving_default", {name: some}) for some in (texts[:1], texts)]

    def _detokenize(self, token_ids, length):
        """Joins tokens, (batch, length), to texts without control ids."""
        check_rows(token_ids, length)
        inside = tf.sequence_mask(length, tf.shape(token_ids)[1])
        return {"text": self.target_tokenizer.detokenize(tf.where(inside, token_ids, PAD_ID))}


def raw(weight):
    """The TensorFlow variable behind a Keras variable."""
    return weight if isinstance(weight, tf.Variable) else weight.value


def served_kernels(model):
    """The weights that an export stores transposed: kernels, and a table that scores tokens."""
    parts = projections(model) if isinstance(model, keras.Model) else ()
    output = getattr(model, "output_projection", None)
    tables = [output.projection_table] if hasattr(output, "projection_table") else []
    return [*(part.kernel for part in parts), *tables]


def transposed_kernels(model):
    """New variables for the `served_kernels`, as `with_columns` takes them.

    Decoding multiplies few rows, for which most processors are faster with them: docs/design.md.
    They have `stored_columns`; those beyond the kernel's are zero.
    """
    turned = {}
    for kernel in served_kernels(model):
        more = stored_columns(kernel.shape[0]) - kernel.shape[0]
        columns = tf.pad(tf.transpose(raw(kernel)), ((0, 0), (0, more)))
        turned[id(kernel)] = tf.Variable(columns, trainable=False)
    return turned


def stored_columns(output_dim):
    """How many columns an export stores of a kernel: its own, and 32 if they are a multiple of 512.

    Rows that are a multiple of 2 KiB apart share a few places of a processor's cache, for which
    products of 64 rows take up to twice as long.
    """
    return output_dim + (0 if output_dim % 512 else 32)


def check_rows(first, *others):
    """Fails if the inputs of a request have different numbers of rows."""
    for other in others:
        tf.debugging.assert_equal(
            tf.shape(first)[0], tf.shape(other)[0], "All inputs need the same number of rows."
        )


def side_by_side(function, order, threads=None):
    """Yields `function(rows)` for batches of the row indices in `order`, at least one.

    Each of the threads takes the next batch; None is as many as `ServedModel.answer` says. On a
    terminal, a progress bar shows.
    """
    threads = threads or answering_threads()
    size = max(TEXTS_AT_A_TIME // threads, FEWEST_TEXTS)
    size = max(1, min(size, -(-len(order) // threads)))
    batches = [order[start : start + size] for start in range(0, max(len(order), 1), size)]
    console = rich.console.Console(stderr=True)
    hidden = len(order) <= TEXTS_AT_A_TIME or not console.is_terminal
    with contextlib.ExitStack() as stack:
        answers = map(function, batches)
        if threads > 1:
            pool = concurrent.futures.ThreadPoolExecutor(threads)
            answers = stack.enter_context(pool).map(function, batches)
        yield from rich.progress.track(
            answers, "Answering", len(batches), console=console, transient=True, disable=hidden
        )


def answering_threads():
    """How many batches are answered side by side: one on a GPU."""
    if tf.config.list_logical_devices("GPU"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tf.config.threading.get_inter_op_parallelism_threads() or cores


def check_vocabulary(size, tokenizer, what="embed every id of the tokenizer"):
    """Raises ValueError if a model has fewer ids than a tokenizer; None is any number."""
    if size is not None and size < tokenizer.vocabulary_size:
        raise ValueError(
            f"The model must {what}. Received: a model of {size} ids, a tokenizer of "
            f"{tokenizer.vocabulary_size}."
        )


def check_positions(name, length, positions, settings):
    """Raises ValueError if a layer that adds positions has fewer than a setting allows tokens.

    Args:
        name: of the setting.
        length: its value.
        positions: the layer; one without `max_sequence_length`, such as sinusoids, has no limit.
        settings: what to choose, with {0} for the number of positions, {1} for half of it.
    """
    num_positions = getattr(positions, "max_sequence_length", length)
    if num_positions < length:
        raise ValueError(
            f"{name} must be at most the {num_positions} positions of the model. Choose e.g. "
            f"{settings.format(num_positions, num_positions // 2)}. Received: {name}={length}."
        )


def warn_truncated(is_truncated, max_length, how="truncated", stacklevel=3):
    """Warns of texts that were too long, as `is_truncated`, (texts,), says; `how` is a participle.

    The warning points to the caller of the caller, or further up with a larger `stacklevel`.
    """
    rows = [str(row) for row in np.flatnonzero(is_truncated)]
    if rows:
        listed = ", ".join(rows[:LISTED]) + (", ..." if len(rows) > LISTED else "")
        warnings.warn(
            f"{len(rows):,} of {len(is_truncated):,} texts are longer than {max_length} tokens "
            f"and were {how}: texts {listed}.",
            stacklevel=stacklevel,
        )
