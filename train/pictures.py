"""The pictures of a run: its learning curves, and its model's attention to a text."""

import functools

from keras_transformer import figures
from keras_transformer.files import atomic_path

LONGEST = 64  # tokens of a text that is shown; a page holds the square of it for each head


def beginning(tokenizer, text, max_length):
    """The part of a text that fits into the model, `max_length` tokens, and into a picture."""
    ids = tokenizer.tokenize([text])[:, : min(max_length, LONGEST)]
    return tokenizer.detokenize(ids).numpy()[0].decode()


def save_pictures(run, attention, loss_unit="nats per token"):
    """Puts learning_curves.png, attention.png and attention.html into the run's folder.

    Args:
        run: a trained `Run`.
        attention: a `figures.Attention`.
        loss_unit: as for `figures.learning_curves`.

    Returns:
        Their paths.
    """
    page = attention.page()
    writers = {
        "attention.png": _png_writer(attention.figure()),
        "attention.html": lambda path: path.write_text(page, "ascii"),
    }
    if history := run.history():  # empty if a run was killed at the end of its only epoch
        curves = figures.learning_curves(history, loss_unit=loss_unit, losses=run.losses())
        writers["learning_curves.png"] = _png_writer(curves)
    paths = [run.path / name for name in writers]
    for path, write in zip(paths, writers.values(), strict=True):
        with atomic_path(path) as draft:
            write(draft)
    return paths


def _png_writer(figure):
    return functools.partial(figure.savefig, format="png")
