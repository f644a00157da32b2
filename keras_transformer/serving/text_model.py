"""What translators, classifiers and generators share: batches of texts, warnings, the export."""

import warnings

import numpy as np
import rich.console
import rich.progress
import tensorflow as tf

from keras_transformer.serving.publishing.export import EXAMPLES, export

TEXTS_PER_BATCH = 64
LISTED = 5  # indices of truncated texts in a warning


class ServedModel:
    """A trained model with its tokenizer, ready for texts.

    It shares the weights of the model: after `model.fit` it answers with the new ones.

    Attributes:
        model: the model.
        tokenizer: splits the input texts into tokens.
        module: what `export` publishes; its `endpoints` are the signatures of the SavedModel.
        compiled_module: the module, compiled by XLA, that answers from Python instead; or None.
    """

    def __init__(self, model, tokenizer, module, compiled_module=None):
        self.model, self.tokenizer, self.module = model, tokenizer, module
        self.compiled_module = compiled_module

    def answer(self, texts, signature="serving_default", **others):
        """The outputs of a signature of the SavedModel, for any number of texts.

        Texts of similar length share a batch. On a terminal, a progress bar shows.

        Args:
            texts: a list of strings.
            signature: one whose outputs have the same shape for every text.
            **others: further inputs of the signature, lists with one value per text.

        Returns:
            A dictionary of arrays with one row per text, in the order of `texts`; strings are
            bytes.

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        texts = list_of_strings(texts)
        endpoint = (self.compiled_module or self.module).endpoints[signature]
        inputs = {endpoint.input_signature[0].name: texts, **others}
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        parts = []
        for rows in batches(order):
            outputs = endpoint(
                **{
                    spec.name: tf.constant(
                        [inputs[spec.name][row] for row in rows], spec.dtype, [len(rows)]
                    )
                    for spec in endpoint.input_signature
                }
            )
            parts.append({key: value.numpy() for key, value in outputs.items()})
        original_order = np.argsort(np.array(order, int))
        return {
            key: np.concatenate([part[key] for part in parts])[original_order] for key in parts[0]
        }

    def attention_scores(self, *token_ids):
        """The attention weights of the model, as its `attention_scores` returns them.

        Args:
            *token_ids: the inputs of the model, (batch, length) each.

        Raises:
            ValueError: if the model has no such method.
        """
        scores_of = getattr(self.module.model, "attention_scores", None)
        if scores_of is None:
            raise ValueError("The model must have a method attention_scores. Received: none.")
        return scores_of(*token_ids)

    def export(self, directory, name, examples=EXAMPLES):
        """Publishes the next version of a served model; see `serving.export`.

        Args:
            directory: folder of all served models.
            name: of this model in requests.
            examples: at least one text, for warm-up and checks.

        Returns:
            The path of the new version.

        Raises:
            ValueError: if `directory`, `name` or `examples` is invalid.
            RuntimeError: if a check fails; then nothing is published.
        """
        return export(self.module, directory, name, examples)


def batches(order):
    """Splits row indices into batches, at least one; on a terminal, a progress bar shows."""
    starts = range(0, max(len(order), 1), TEXTS_PER_BATCH)
    console = rich.console.Console(stderr=True)
    hidden = len(starts) == 1 or not console.is_terminal
    for start in rich.progress.track(
        starts, "Reading", console=console, transient=True, disable=hidden
    ):
        yield order[start : start + TEXTS_PER_BATCH]


def list_of_strings(texts, name="texts"):
    """Any iterable of strings as a list; raises ValueError for anything else."""
    is_iterable = np.iterable(texts) and not isinstance(texts, (str, bytes))
    strings = list(texts) if is_iterable else [None]
    if not all(isinstance(text, str) for text in strings):
        raise ValueError(
            f"{name} must be a list of strings; put a single text into a list. Received: "
            f"{name}={texts!r:.100}"
        )
    return strings


def check_string(text, name):
    """Raises ValueError unless `text` is one string."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string. Received: {name}={text!r:.100}")


def check_vocabulary(embedding, tokenizer):
    """Raises ValueError if an embedding has fewer ids than the tokenizer that feeds it."""
    size = embedding.vocabulary_size
    if size < tokenizer.vocabulary_size:
        raise ValueError(
            "The model must embed every id of the tokenizer. Received: a model of "
            f"{size} ids, a tokenizer of {tokenizer.vocabulary_size}."
        )


def warn_truncated(is_truncated, max_length, how="truncated", stacklevel=3):
    """Warns if texts were too long to be read whole.

    Args:
        is_truncated: (texts,) booleans.
        max_length: in tokens.
        how: what happened to them, a participle.
        stacklevel: of `warnings.warn`; 3 is the caller of the caller.
    """
    rows = [str(row) for row in np.flatnonzero(is_truncated)]
    if rows:
        listed = ", ".join(rows[:LISTED]) + (", ..." if len(rows) > LISTED else "")
        warnings.warn(
            f"{len(rows):,} of {len(is_truncated):,} texts are longer than {max_length} tokens "
            f"and were {how}: texts {listed}.",
            stacklevel=stacklevel,
        )
