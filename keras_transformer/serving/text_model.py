"""What translators, classifiers and generators share: many texts answered, and the export."""

import warnings

import numpy as np
import rich.console
import rich.progress
import tensorflow as tf

from keras_transformer.serving.publishing.export import EXAMPLES, export

TEXTS_AT_A_TIME = 64
NAMED = 5  # of the texts that were cut


class TextModel:
    """A trained model and its tokenizer, ready for texts.

    The weights are shared, not copied: after `model.fit` it answers with the new ones.

    Attributes:
        model: the Keras model, or the functions it was made of.
        tokenizer: cuts the texts that are read.
        module: what `export` publishes; its `endpoints` are the signatures of the SavedModel.
    """

    def __init__(self, model, tokenizer, module):
        self.model, self.tokenizer, self.module = model, tokenizer, module

    def answer(self, texts, signature="serving_default", **others):
        """What a signature of the SavedModel answers, for any number of texts of any length.

        Texts of similar length are answered together, a few at a time, with a progress bar if
        there is a terminal.

        Args:
            texts: a list of strings.
            signature: one whose answers have the same shape for every text.
            **others: further inputs of the signature, a value for each text.

        Returns:
            A dictionary of arrays, one row a text, in the order of `texts`; strings are bytes.

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        check_texts(texts)
        endpoint = self.module.endpoints[signature]
        inputs = {endpoint.input_signature[0].name: texts, **others}
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        parts = []
        for rows in chunks(order):
            outputs = endpoint(
                **{
                    spec.name: tf.constant(
                        [inputs[spec.name][row] for row in rows], spec.dtype, [len(rows)]
                    )
                    for spec in endpoint.input_signature
                }
            )
            parts.append({key: value.numpy() for key, value in outputs.items()})
        back = np.argsort(np.array(order, int))
        return {key: np.concatenate([part[key] for part in parts])[back] for key in parts[0]}

    def export(self, directory, name, examples=EXAMPLES):
        """Publishes the next version of a served model; see `serving.export`.

        Args:
            directory: folder of all served models.
            name: of this model, as requests will call it.
            examples: texts to answer, at least one, for warm-up and the checks.

        Returns:
            The path of the new version.

        Raises:
            ValueError: if an argument is not as described.
            RuntimeError: if a check fails; then nothing is published.
        """
        return export(self.module, directory, name, examples)


def chunks(order):
    """Lists of a few rows each, at least one list; a progress bar shows on a terminal."""
    starts = range(0, max(len(order), 1), TEXTS_AT_A_TIME)
    console = rich.console.Console(stderr=True)
    hidden = len(starts) == 1 or not console.is_terminal
    for start in rich.progress.track(
        starts, "Reading", console=console, transient=True, disable=hidden
    ):
        yield order[start : start + TEXTS_AT_A_TIME]


def check_texts(texts, name="texts"):
    """Raises ValueError unless `texts` is a list of strings."""
    if isinstance(texts, (str, bytes)) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{name} must be a list of strings; put a single text into a list. Received: "
            f"{name}={texts!r:.100}"
        )


def warn_of_cut(is_cut, max_length, how="were cut at the end"):
    """Warns if texts were too long to be read whole.

    Args:
        is_cut: a boolean for each text.
        max_length: in tokens.
        how: they were cut, in words.
    """
    places = [str(place) for place in np.flatnonzero(is_cut)]
    if places:
        named = ", ".join(places[:NAMED]) + (", ..." if len(places) > NAMED else "")
        warnings.warn(
            f"{len(places):,} of {len(is_cut):,} texts are longer than {max_length} tokens and "
            f"{how}: texts {named}.",
            stacklevel=3,
        )
