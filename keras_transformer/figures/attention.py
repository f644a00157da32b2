"""Attention weights with their tokens, as a figure or as an HTML page to browse.

The page is `html_page.html` with the weights and tokens filled in. It contains its styles and
script and loads nothing, so you can open it from disk, mail it, or keep it with a run.
"""

import html
import json
import math
import pathlib
from typing import NamedTuple

import numpy as np

from keras_transformer.figures.plots import INK, color_bar, finite, new_figure

TEMPLATE = pathlib.Path(__file__).with_name("html_page.html")
MAX_ROW_TOKENS = 130  # of all panels in a row, about 30 inches
TITLES = {
    "encoder": ("layer", "where each token looks in the text"),
    "decoder": ("layer", "where each token looks in the text before it"),
    "cross": ("decoder layer", "where each target token looks in the source"),
}


class Attention(NamedTuple):
    """The attention weights of one text, or of one pair of texts, by kind of attention.

    Attributes:
        scores: {kind: list of arrays (heads, target, source), one per layer}; the kinds are
            "encoder", "decoder" and "cross".
        row_tokens: {kind: list of target tokens}, those that attend.
        column_tokens: {kind: list of source tokens}, those attended to.
        title: of the page.

    Examples:
        >>> weights = [np.array([[[0.9, 0.1], [0.2, 0.8]]])]
        >>> attention = Attention({"encoder": weights}, {"encoder": "ab"}, {"encoder": "ab"})
        >>> attention.figure().get_suptitle()
        'Last layer: where each token looks in the text'
    """

    scores: dict
    row_tokens: dict
    column_tokens: dict
    title: str = ""

    @classmethod
    def of_first_example(cls, scores, row_tokens, column_tokens, title=""):
        """Makes an `Attention` of the first example of a batch.

        Args:
            scores: {kind: list of arrays (batch, heads, target, source)}, in any dtype.
            row_tokens: {kind: list of target tokens} of the first example.
            column_tokens: {kind: list of source tokens} of the first example.
            title: of the page.
        """
        first = {
            kind: [np.asarray(layer[0]).astype("float32") for layer in layers]
            for kind, layers in scores.items()
        }
        return cls(first, row_tokens, column_tokens, title)

    def figure(self, kind=None, layer=-1):
        """Draws all heads of a layer.

        Args:
            kind: "encoder", "decoder" or "cross"; defaults to the last kind of the model.
            layer: index, counted from the end if negative.

        Returns:
            A `matplotlib.figure.Figure` with one panel per head.

        Raises:
            ValueError: if there is no such kind or layer.
        """
        kind = list(self.scores)[-1] if kind is None else kind
        num_layers = len(self.scores.get(kind, ()))
        if not -num_layers <= layer < num_layers:
            kinds = {name: len(layers) for name, layers in self.scores.items()}
            raise ValueError(
                f"kind and layer must be one of the model, which has these layers: {kinds}. "
                f"Received: kind={kind!r}, layer={layer}."
            )
        number = layer % num_layers + 1
        stack, meaning = TITLES.get(kind, ("layer", kind))
        is_last = number == num_layers
        name = f"Last {stack}" if is_last else f"{stack.capitalize()} {number} of {num_layers}"
        return attention_heat_map(
            self.scores[kind][layer],
            self.row_tokens[kind],
            self.column_tokens[kind],
            title=f"{name}: {meaning}",
        )

    def page(self):
        """An HTML page to browse all layers and heads, a string; see `attention_page`.

        It opens on the kind that `figure` draws: of a translation, the cross-attention.
        """
        scores = dict(reversed(self.scores.items()))
        weights = (scores, self.row_tokens, self.column_tokens)
        return attention_page(*weights, title=f"Attention: {self.title}")


def token_labels(tokenizer, token_ids):
    """The tokens with these ids as labels, a list of strings with control characters escaped."""
    return [
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece)
        for piece in tokenizer.pieces(token_ids)
    ]


def attention_heat_map(attention_scores, target_tokens, source_tokens, title=None):
    """Draws how much each target token attends to each source token, one panel per head.

    Rows are target tokens (the queries), columns source tokens (the keys). Darker cells mean
    more attention. All heads share one colour scale from zero, so you can compare panels.

    Args:
        attention_scores: probabilities in [0, 1] after the softmax, of one head, (target,
            source), or of several, (heads, target, source).
        target_tokens: one string per row; for self-attention, the same as `source_tokens`.
        source_tokens: one string per column.
        title: a line above the figure, or None.

    Returns:
        A `matplotlib.figure.Figure`; its last axes are the colour bar.

    Raises:
        ValueError: if the tokens do not match the scores, or a score is not in [0, 1].

    Examples:
        >>> scores = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]
        >>> figure = attention_heat_map(scores, ["Guten", "Tag"], ["a", "good", "day"])
        >>> len(figure.axes)
        2
    """
    scores = _checked(attention_scores, target_tokens, source_tokens)
    num_heads = len(scores)
    most = max(1, min(4, num_heads, MAX_ROW_TOKENS // len(source_tokens)))
    # Full rows if possible: 8 heads make 4 and 4.
    columns = next((n for n in range(most, 1, -1) if num_heads % n == 0), most)
    titles = [f"head {head + 1}" for head in range(num_heads)] if num_heads > 1 else [""]
    return _heat_maps(scores, titles, columns, target_tokens, source_tokens, title)


def attention_grid(attention_scores, target_tokens, source_tokens, title=None):
    """Draws all heads of all layers: one row of panels per layer, one panel per head.

    All panels share one colour scale, as in `attention_heat_map`, so that layers and heads can be
    compared at a glance.

    Args:
        attention_scores: probabilities in [0, 1], a list with one array (heads, target, source)
            per layer, all with the same number of heads.
        target_tokens: one string per row of a panel.
        source_tokens: one string per column of a panel.
        title: a line above the figure, or None.

    Returns:
        A `matplotlib.figure.Figure`; its last axes are the colour bar.

    Raises:
        ValueError: if there is no layer, the layers differ in the number of heads, the tokens do
            not match the scores, or a score is not in [0, 1].

    Examples:
        >>> layer = [[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]]
        >>> figure = attention_grid([layer, layer], ["Guten", "Tag"], ["a", "good", "day"])
        >>> [axes.get_title() for axes in figure.axes[:-1]]
        ['layer 1, head 1', 'layer 2, head 1']
    """
    layers = [_checked(s, target_tokens, source_tokens) for s in attention_scores]
    num_heads = [len(layer) for layer in layers]
    if len(set(num_heads)) != 1:
        raise ValueError(
            "attention_scores must have at least one layer, and every layer as many heads. "
            f"Received: layers of {num_heads} heads."
        )
    titles = [
        f"layer {layer + 1}, head {head + 1}"
        for layer in range(len(layers))
        for head in range(num_heads[0])
    ]
    scores = np.concatenate(layers)
    return _heat_maps(scores, titles, num_heads[0], target_tokens, source_tokens, title)


def _heat_maps(scores, titles, columns, target_tokens, source_tokens, title):
    """A grid with one panel per (target, source) of `scores`, `columns` of them in a row."""
    num_panels, num_rows, num_columns = scores.shape
    rows = math.ceil(num_panels / columns)
    cell = 0.34 if num_panels == 1 else 0.24  # inches per token
    size = (
        columns * max(1.6, cell * num_columns) + 2.0,
        rows * max(1.2, cell * num_rows) + 1.6,
    )
    figure = new_figure(size, title)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    highest = scores.max() or 1.0  # rows with nothing to attend to are all zeros
    for axes in grid.flat[num_panels:]:
        axes.set_axis_off()
    for panel, axes in enumerate(grid.flat[:num_panels]):
        image = axes.imshow(scores[panel], cmap="Blues", vmin=0.0, vmax=highest, aspect="auto")
        axes.set_title(titles[panel], color=INK, fontsize="medium")
        # matplotlib would read dollar signs, e.g. of prices, as formulas.
        axes.set_xticks(range(num_columns), source_tokens, rotation=90, parse_math=False)
        axes.set_yticks(range(num_rows), target_tokens, parse_math=False)
        # Below an incomplete last row, the labels belong to the panel above.
        axes.tick_params(length=0, colors=INK, labelbottom=panel + columns >= num_panels)
        axes.spines[:].set_visible(False)
        _separate_cells(axes, num_rows, num_columns)
    figure.supxlabel("source tokens", color=INK, fontsize="medium")
    figure.supylabel("target tokens", color=INK, fontsize="medium")
    color_bar(figure, image, grid, "attention probability")
    return figure


def _separate_cells(axes, num_rows, num_columns):
    """Draws white lines between cells, so that pale cells stay visible."""
    axes.set_xticks(np.arange(num_columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(num_rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)


def attention_page(attention_scores, row_tokens, column_tokens, title="Attention"):
    """Makes a page to explore attention by kind, layer and head.

    It opens on the first kind, and shows the tokens in two columns, connected by lines whose
    strength is the attention, and a heat map. Pointing at a token highlights what it attends to, or
    what attends to it; the arrow keys switch heads and layers. Weights are rounded to three digits.

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
    scores = [_checked(layer, row_tokens, column_tokens, f"{name!r}: ") for layer in layers]
    return {
        "name": name,
        "from": row_tokens,
        "to": column_tokens,
        "layers": [np.rint(1000 * layer).astype(int).tolist() for layer in scores],
    }


def _checked(attention_scores, target_tokens, source_tokens, whose=""):
    """The scores as (heads, target, source) in float64."""
    scores = finite("attention_scores", attention_scores)
    if scores.ndim == 2:
        scores = scores[None]  # (heads, target, source)
    expected = (len(target_tokens), len(source_tokens))
    if scores.ndim != 3 or not scores.size or scores.shape[1:] != expected:
        raise ValueError(
            "attention_scores must have shape (target, source) or (heads, target, source), with "
            "one token per row and column. Pass one example of a batch at a time. "
            f"Received: {whose}shape={np.shape(attention_scores)}, {expected[0]} target tokens, "
            f"{expected[1]} source tokens."
        )
    if scores.min() < 0.0 or scores.max() > 1.0 + 1e-3:  # bfloat16 may round a 1 up
        raise ValueError(
            "attention_scores must be probabilities in [0, 1], after the softmax. "
            f"Received: {whose}values from {scores.min():g} to {scores.max():g}."
        )
    return scores
