"""Where a model looked: the attention of the run that a served model was exported from."""

import pathlib
import threading

from keras_transformer.serving import Translator

from ..convert import text_model_of
from .requests import read_json

LONGEST = 1000  # characters, each of which may be several tokens
MOST_TOKENS = 256  # the weights, and so the page, grow with their square


class Runs:
    """The runs of a folder, each loaded on first use, and again after another training.

    Args:
        folder: folder with one run folder per model, with the model's name; it need not
            exist.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self._models, self._lock = {}, threading.Lock()

    def has(self, name):
        """Whether there is a trained run with a model's name."""
        return (self.folder / name / "model.keras").is_file()

    def page(self, name, body):
        """The page of `figures.attention_page` for a text, and for its translation.

        Args:
            name: name of the model and of its run.
            body: JSON, {"text": ...} and, for a translation model, "target".

        Raises:
            LookupError: if there is no such run.
            ValueError: if the body is anything else, or the model has no attention to show.
        """
        if not self.has(name):
            raise LookupError(f"{self.folder} has no run called {name}. Start with --runs FOLDER.")
        texts = read_json(body)
        if not isinstance(texts, dict) or not {"text"} <= texts.keys() <= {"text", "target"}:
            raise ValueError('Expected {"text": ...} and, for a translation, "target".')
        if not all(isinstance(t, str) and len(t) <= LONGEST for t in texts.values()):
            raise ValueError(f"Texts are strings of at most {LONGEST} characters.")
        written = (self.folder / name / "model.keras").stat().st_mtime_ns
        with self._lock:
            if self._models.get(name, (None,))[0] != written:  # never read, or trained again
                self._models[name] = written, text_model_of(self.folder / name)
            model = self._models[name][1]
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
        return model.attention(*texts).page()
