"""The pictures of a run: its learning curves, and where a translation looked."""

import numpy as np

from keras_transformer import plots
from keras_transformer.models.translation import attention_scores
from keras_transformer.text import END_ID, START_ID


def save_pictures(run, model, source, target):
    """Draws learning_curves.png and attention.png into the run's folder.

    Args:
        run: a trained `Run`.
        model: its model.
        source: a sentence.
        target: its translation, whose tokens look back at the source.

    Returns:
        The two paths.
    """
    tokenizer = run.tokenizer()
    ids = tokenizer.tokenize([source, target]).to_list()
    source_ids, target_ids = [*ids[0], END_ID], [START_ID, *ids[1]]
    scores = attention_scores(model, np.array([source_ids]), np.array([target_ids]))
    # Rows are named by the token that is being chosen there, not by the one before it.
    figures = {
        "learning_curves.png": plots.learning_curves(run.history()),
        "attention.png": plots.attention_heat_map(
            np.array(scores["cross"][-1])[0],
            tokenizer.pieces([*ids[1], END_ID]),
            tokenizer.pieces(source_ids),
            title="Last decoder layer: where each target token looks in the source",
        ),
    }
    paths = [run.path / name for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        draft = path.with_name(f".{path.name}")
        figure.savefig(draft, format="png")
        draft.replace(path)
    return paths
