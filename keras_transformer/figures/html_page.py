"""The attention of all layers and heads as one HTML page to browse.

The page is `html_page.html` with the weights and tokens filled in. It contains its styles and
script and loads nothing, so you can open it from disk, mail it, or keep it with a run.
"""

import html
import json
import pathlib

import numpy as np

TEMPLATE = pathlib.Path(__file__).with_suffix(".html")


def attention_page(attention_scores, row_tokens, column_tokens, title="Attention"):
    """Makes a page to explore attention by kind, layer and head.

    It shows the tokens in two columns, connected by lines whose strength is the attention, and a
    heat map. Pointing at a token highlights what it attends to, or what attends to it; the arrow
    keys switch heads and layers. Weights are rounded to three digits.

    Args:
        attention_scores: {kind of attention: list of arrays (heads, target, source), one per
            layer}; probabilities in [0, 1] of one example.
        row_tokens: {kind: list of target tokens}, those that attend.
        column_tokens: {kind: list of source tokens}, those attended to.
        title: of the page, plain text.

    Returns:
        The HTML document, an ASCII string.

    Raises:
        ValueError: if the kinds differ or there is none, the tokens of a kind do not match its
            scores, or a score is not in [0, 1].

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
    # Escaped, because a token "</script" would end the script.
    data = json.dumps(kinds, separators=(",", ":")).replace("<", "\\u003c")
    escaped = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    page = TEMPLATE.read_text("ascii")
    # Neither contains a "<", so neither can contain the placeholder of the other.
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
    scores = np.asarray(scores).astype("float64")  # also from bfloat16 and tensors
    if scores.ndim != 3 or not scores.size or scores.shape[1:] != (num_rows, num_columns):
        raise ValueError(
            "The scores of a layer must have shape (heads, target, source), with one token per "
            "target and source. Pass one example of a batch at a time. "
            f"Received: {name!r} of shape={scores.shape}, {num_rows} row tokens, "
            f"{num_columns} column tokens."
        )
    # Negated, so that NaN fails too; bfloat16 may round a 1 up.
    if not (scores.min() >= 0.0 and scores.max() <= 1.0 + 1e-3):
        raise ValueError(
            "attention_scores must be probabilities in [0, 1], after the softmax. "
            f"Received: {name!r} with values from {scores.min():g} to {scores.max():g}."
        )
    return scores
