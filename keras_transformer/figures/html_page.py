"""Attention of every layer and head as one HTML page to look through.

The page is `html_page.html` beside this file with the weights and tokens put into it:
styles and script are in it, and it loads nothing, so it can be opened from a disk, sent by
mail or kept with a run.
"""

import html
import json
import pathlib

import numpy as np

TEMPLATE = pathlib.Path(__file__).with_suffix(".html")


def attention_page(attention_scores, row_tokens, column_tokens, title="Attention"):
    """Makes a page on which one chooses a kind of attention, a layer and a head.

    It shows the tokens in two columns with lines between them, the stronger the more
    attention, and a heat map. Pointing at a token shows where it looks, or what looks at it;
    the arrow keys go through heads and layers. Weights are kept to three digits.

    Args:
        attention_scores: dict from the name of a kind of attention to a list with one array
            a layer, (heads, target, source): probabilities in [0, 1] of one example.
        row_tokens: dict from the same names to the tokens that look, a string a target.
        column_tokens: dict from the same names to the tokens looked at, a string a source.
        title: of the page, plain text.

    Returns:
        The HTML document, a string of ASCII characters alone.

    Raises:
        ValueError: if the names differ, nothing is given, the tokens of a kind do not fit
            its scores, or a score is not a number in [0, 1].

    Examples:
        >>> scores = [[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]]
        >>> page = attention_page(
        ...     {"cross": [scores]}, {"cross": ["Guten", "Tag"]}, {"cross": ["a", "good", "day"]}
        ... )
        >>> page.splitlines()[0]
        '<!doctype html>'
    """
    names = list(attention_scores)
    if not names or set(names) != set(row_tokens) or set(names) != set(column_tokens):
        raise ValueError(
            "attention_scores, row_tokens and column_tokens must have the same names, at least "
            f"one. Received: {names}, {list(row_tokens)} and {list(column_tokens)}."
        )
    kinds = [
        _kind(name, attention_scores[name], list(row_tokens[name]), list(column_tokens[name]))
        for name in names
    ]
    # A script ends where its text says "</script", whatever a token meant by it.
    data = json.dumps(kinds, separators=(",", ":")).replace("<", "\\u003c")
    escaped = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    page = TEMPLATE.read_text("ascii")
    # Neither holds a "<", so neither can be taken for the place of the other.
    return page.replace("<!-- title -->", escaped).replace("<!-- data -->", data)


def _kind(name, layers, row_tokens, column_tokens):
    if not len(layers):
        raise ValueError(
            f"attention_scores must have at least one layer. Received: none for {name!r}."
        )
    thousandths = [
        np.rint(1000 * _checked(name, layer, len(row_tokens), len(column_tokens)))
        for layer in layers
    ]
    return {
        "name": name,
        "from": row_tokens,
        "to": column_tokens,
        "layers": [layer.astype(int).tolist() for layer in thousandths],
    }


def _checked(name, scores, num_rows, num_columns):
    scores = np.asarray(scores).astype("float64")  # also of bfloat16 and of tensors
    if scores.ndim != 3 or not scores.size or scores.shape[1:] != (num_rows, num_columns):
        raise ValueError(
            "The scores of a layer must have shape (heads, target, source), with one token for "
            "each target and each source. Take one example out of a batch first. "
            f"Received: {name!r} of shape={scores.shape}, {num_rows} row tokens, "
            f"{num_columns} column tokens."
        )
    # Written so that a score that is no number fails too; bfloat16 rounds a one up.
    if not (scores.min() >= 0.0 and scores.max() <= 1.0 + 1e-3):
        raise ValueError(
            "attention_scores must be probabilities in [0, 1], after the softmax. "
            f"Received: {name!r} with values from {scores.min():g} to {scores.max():g}."
        )
    return scores
