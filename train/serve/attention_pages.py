"""Pages that show the attention of a served model.

A SavedModel gives no attention scores. The run that it was exported from does, with its weights.
"""

import pathlib

import numpy as np
import tensorflow as tf

from keras_transformer.serving import Translator
from keras_transformer.serving.served_model import served_kernels, stored_columns

from ..convert import text_model_of
from .requests import NotFound, read_json

LONGEST = 1000  # characters, each of which may be several tokens
MOST_TOKENS = 256  # the weights, and so the page, grow with their square


class AttentionPages:
    """Draws attention with the runs of a folder, each loaded on first use; one page at a time.

    Args:
        folder: folder with one run folder per model, with the model's name; it need not
            exist.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self._models = {}  # by name

    def has(self, name):
        """Whether there is a trained run with a model's name."""
        return (self.folder / name / "model.keras").is_file()

    def page(self, served, body):
        """The `figures.Attention` page for a text, and for its translation.

        Args:
            served: a `SavedModel`, which has the name of its run.
            body: JSON, {"text": ...} and, for a translation model, "target".

        Raises:
            NotFound: if there is no such run.
            ValueError: if the body is anything else, the model has no attention to show, or the
                run has another model by now.
        """
        name = served.name
        if not self.has(name):
            raise NotFound(f"{self.folder} has no run called {name}. Start with --runs FOLDER.")
        texts = read_json(body)
        if not isinstance(texts, dict) or not {"text"} <= texts.keys() <= {"text", "target"}:
            raise ValueError('Expected {"text": ...} and, for a translation, "target".')
        if not all(isinstance(t, str) and len(t) <= LONGEST for t in texts.values()):
            raise ValueError(f"Texts are strings of at most {LONGEST} characters.")
        if name not in self._models:
            model = with_weights(text_model_of(self.folder / name), served)
            if "detokenize" in model.signatures:
                ids = np.arange(model.target_tokenizer.vocabulary_size, dtype=np.int32)
                rows = {"token_ids": ids[:, None], "length": np.ones_like(ids)}
                check_tokens(model, served, "detokenize", rows, "text")
            self._models[name] = model
        model = self._models[name]
        both = isinstance(model, Translator)
        texts = [texts[key] for key in ("text", "target")[: 1 + both] if key in texts]
        tokenizers = (model.tokenizer, model.target_tokenizer)
        for text, tokenizer in zip(texts, tokenizers, strict=False):
            count = len(tokenizer.tokenize([text])[0])
            if min(count, getattr(model, "max_length", count)) > MOST_TOKENS:
                raise ValueError(
                    f"Attention is shown of texts of at most {MOST_TOKENS} tokens. "
                    f"Received: {count} tokens."
                )
        text = {"text": np.array(texts[:1], object)}
        check_tokens(model, served, "tokenize", text, "token_ids")
        return model.attention(*texts).page()


def with_weights(model, served):
    """The model of a run, with the weights of a SavedModel that was exported from it.

    Raises:
        ValueError: if they are not those of such a model.
    """
    turned = {id(kernel) for kernel in served_kernels(model.model)}
    weights = model.model.weights
    shapes = [
        [weight.shape[1], stored_columns(weight.shape[0])]
        if id(weight) in turned
        else [*weight.shape]
        for weight in weights
    ]
    if shapes != [weight.shape.as_list() for weight in served.weights]:
        raise ValueError(
            f"The run {served.name} has other weights than the model served: it was trained with "
            "other settings after the export. Export it again."
        )
    for ours, exported in zip(weights, served.weights, strict=True):
        value = tf.transpose(exported[:, : ours.shape[0]]) if id(ours) in turned else exported
        ours.assign(tf.cast(value, ours.dtype))
    return model


def check_tokens(model, served, signature, inputs, output):
    """Raises ValueError unless a model's tokenizer answers as that of a `SavedModel`."""
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    ours, theirs = model.signatures[signature](**tensors), served.run(signature, inputs)
    if not np.array_equal(ours[output].numpy(), theirs[output]):
        raise ValueError(
            f"The run {served.name} has another tokenizer than the model served: it was trained "
            "again after the export. Export it again."
        )
