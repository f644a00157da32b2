"""The pictures of a run: its learning curves, and where a translation looked."""

import functools

import numpy as np

from keras_transformer import plots
from keras_transformer.attention_page import attention_page
from keras_transformer.models.translation import attention_scores
from keras_transformer.text import END_ID, START_ID


def save_pictures(run, model, source, target):
    """Puts learning_curves.png, attention.png and attention.html into the run's folder.

    Args:
        run: a trained `Run`.
        model: its model.
        source: a sentence.
        target: its translation, whose tokens look back at the source.

    Returns:
        The three paths.
    """
    tokenizer = run.tokenizer()
    ids = tokenizer.tokenize([source, target]).to_list()
    source_ids, target_ids = [*ids[0], END_ID], [START_ID, *ids[1]]
    scores = attention_scores(model, np.array([source_ids]), np.array([target_ids]))
    scores = {kind: [layer[0].numpy() for layer in layers] for kind, layers in scores.items()}
    sources, targets = tokenizer.pieces(source_ids), tokenizer.pieces(target_ids)
    # Rows are named by the token that is being chosen there, not by the one before it.
    chosen = tokenizer.pieces([*ids[1], END_ID])
    heat_map = plots.attention_heat_map(
        scores["cross"][-1],
        chosen,
        sources,
        title="Last decoder layer: where each target token looks in the source",
    )
    page = attention_page(
        scores,
        row_tokens={"encoder": sources, "decoder": chosen, "cross": chosen},
        column_tokens={"encoder": sources, "decoder": targets, "cross": sources},
        title=f"Attention: {source}",
    )
    writers = {
        "learning_curves.png": _png_writer(plots.learning_curves(run.history())),
        "attention.png": _png_writer(heat_map),
        "attention.html": lambda path: path.write_text(page, "ascii"),
    }
    paths = [run.path / name for name in writers]
    for path, write in zip(paths, writers.values(), strict=True):
        draft = path.with_name(f".{path.name}")
        write(draft)
        draft.replace(path)
    return paths


def _png_writer(figure):
    return functools.partial(figure.savefig, format="png")
