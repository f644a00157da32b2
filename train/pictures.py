"""The pictures of a run: its learning curves, and where its model looks in a text."""

import functools
from typing import NamedTuple

import numpy as np

from keras_transformer import figures
from keras_transformer.figures.html_page import attention_page
from keras_transformer.files import whole
from keras_transformer.models.encoder_decoder import attention_scores
from keras_transformer.tokenizers import END_ID, START_ID

TITLES = {
    "cross": "Last decoder layer: where each target token looks in the source",
    "decoder": "Last layer: where each token looks in what came before",
    "encoder": "Last layer: where each token looks in the text",
}
LONGEST = 64  # tokens of a text that is shown; a page holds the square of it for each head


class Attention(NamedTuple):
    """Where a model looks, by kind of attention: one array a layer, and the tokens' names.

    Attributes:
        scores: dict of lists of arrays (heads, target, source).
        row_tokens: dict of lists of the tokens that look.
        column_tokens: dict of lists of the tokens looked at.
    """

    scores: dict
    row_tokens: dict
    column_tokens: dict


def translation_attention(model, tokenizer, source, target):
    """The `Attention` of a translation model for a sentence and its translation."""
    ids = tokenizer.tokenize([source, target]).to_list()
    source_ids, target_ids = [*ids[0], END_ID], [START_ID, *ids[1]]
    scores = attention_scores(model, np.array([source_ids]), np.array([target_ids]))
    sources, targets = (_names(tokenizer, side) for side in (source_ids, target_ids))
    # Rows are named by the token that is being chosen there, not by the one before it.
    chosen = _names(tokenizer, [*ids[1], END_ID])
    return Attention(
        _first_examples(scores),
        row_tokens={"encoder": sources, "decoder": chosen, "cross": chosen},
        column_tokens={"encoder": sources, "decoder": targets, "cross": sources},
    )


def self_attention(scores, tokenizer, token_ids):
    """The `Attention` of a model of one stack.

    Args:
        scores: what the `attention_scores` of its module returned for a batch of one text.
        tokenizer: names its tokens.
        token_ids: of the text, (length,).
    """
    tokens = {kind: _names(tokenizer, token_ids) for kind in scores}
    return Attention(_first_examples(scores), tokens, tokens)


def save_pictures(run, attention, title):
    """Puts learning_curves.png, attention.png and attention.html into the run's folder.

    Args:
        run: a trained `Run`.
        attention: an `Attention`. The picture shows the last layer of its last kind.
        title: of the page.

    Returns:
        Their paths.
    """
    kind = list(attention.scores)[-1]
    heat_map = figures.attention_heat_map(
        attention.scores[kind][-1],
        attention.row_tokens[kind],
        attention.column_tokens[kind],
        title=TITLES[kind],
    )
    page = attention_page(*attention, title=f"Attention: {title}")
    writers = {
        "attention.png": _png_writer(heat_map),
        "attention.html": lambda path: path.write_text(page, "ascii"),
    }
    if history := run.history():  # none of a run that was killed as it ended its only epoch
        writers["learning_curves.png"] = _png_writer(figures.learning_curves(history))
    paths = [run.path / name for name in writers]
    for path, write in zip(paths, writers.values(), strict=True):
        with whole(path) as draft:
            write(draft)
    return paths


def _first_examples(scores):
    return {
        kind: [np.asarray(layer[0]).astype("float32") for layer in layers]
        for kind, layers in scores.items()
    }


def _names(tokenizer, token_ids):
    return [piece.replace("\n", "\\n") for piece in tokenizer.pieces(token_ids)]


def _png_writer(figure):
    return functools.partial(figure.savefig, format="png")
