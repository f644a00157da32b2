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
        """Draws how much each target token attends to each source token, one panel per head.

        Rows are target tokens (the queries), columns source tokens (the keys). Darker cells mean
        more attention. All panels share one colour scale from zero, so you can compare them.

        Args:
            kind: "encoder", "decoder" or "cross"; defaults to the last kind of the model.
            layer: index, counted from the end if negative; None draws one row of panels for each
                layer.

        Returns:
            A `matplotlib.figure.Figure`; its last axes are the colour bar.

        Raises:
            ValueError: if there is no such kind or layer, the layers of a grid differ in the
                number of heads, or tokens and scores do not match.
        """
        kind = list(self.scores)[-1] if kind is None else kind
        layers = self.scores.get(kind, ())
        is_known = len(layers) > 0 if layer is None else -len(layers) <= layer < len(layers)
        if not is_known:
            kinds = {name: len(layers) for name, layers in self.scores.items()}
            raise ValueError(
                f"kind and layer must be one of the model, which has these layers: {kinds}. "
                f"Received: kind={kind!r}, layer={layer}."
            )
        tokens = self.row_tokens[kind], self.column_tokens[kind]
        stack, meaning = TITLES.get(kind, ("layer", kind))
        if layer is None:
            return _grid(layers, *tokens, title=f"All {stack}s: {meaning}")
        number = layer % len(layers) + 1
        is_last = number == len(layers)
        name = f"Last {stack}" if is_last else f"{stack.capitalize()} {number} of {len(layers)}"
        return draw_heads(layers[layer], *tokens, title=f"{name}: {meaning}")

    def page(self):
        """Makes an HTML page to explore attention by kind, layer and head.

        It shows the tokens in two columns, connected by lines whose strength is the attention, and
        a heat map. Pointing at a token highlights what it attends to, or what attends to it; the
        arrow keys switch heads and layers. It opens on the kind that `figure` draws: of a
        translation, the cross-attention. Weights are rounded to three digits.

        Returns:
            The HTML document, an ASCII string.

        Raises:
            ValueError: if the kinds differ or there is none, the tokens of a kind do not match
                its scores, or a score is not in [0, 1].

        Examples:
            >>> scores = {"cross": [np.array([[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]])]}
            >>> tokens = {"cross": ["Guten", "Tag"]}, {"cross": ["a", "good", "day"]}
            >>> Attention(scores, *tokens).page().splitlines()[0]
            '<!doctype html>'
        """
        rows, columns, names = self.row_tokens, self.column_tokens, list(self.scores)
        if not names or set(names) != set(rows) or set(names) != set(columns):
            raise ValueError(
                "scores, row_tokens and column_tokens must have the same names, at least one. "
                f"Received: {names}, {list(rows)} and {list(columns)}."
            )
        kinds = [
            _kind(name, self.scores[name], list(rows[name]), list(columns[name]))
            for name in reversed(names)
        ]
        # Escaped, because a token "</script" would end the script.
        data = json.dumps(kinds, separators=(",", ":")).replace("<", "\\u003c")
        title = html.escape(f"Attention: {self.title}").encode("ascii", "xmlcharrefreplace")
        page = TEMPLATE.read_text("ascii")
        # Neither contains a "<", so neither can contain the placeholder of the other.
        return page.replace("<!-- title -->", title.decode()).replace("<!-- data -->", data)


def token_labels(tokenizer, token_ids):
    """The tokens with these ids as labels, a list of strings with control characters escaped."""
    return [
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece)
        for piece in tokenizer.pieces(token_ids)
    ]


def draw_heads(attention_scores, target_tokens, source_tokens, title=None):
    """Draws one head, (target, source), or several, (heads, target, source), a panel each."""
    scores = _checked(attention_scores, target_tokens, source_tokens)
    num_heads = len(scores)
    most = max(1, min(4, num_heads, MAX_ROW_TOKENS // len(source_tokens)))
    # Full rows if possible: 8 heads make 4 and 4.
    columns = next((n for n in range(most, 1, -1) if num_heads % n == 0), most)
    titles = [f"head {head + 1}" for head in range(num_heads)] if num_heads > 1 else [""]
    return _heat_maps(scores, titles, columns, target_tokens, source_tokens, title)


def _grid(layers, target_tokens, source_tokens, title):
    """One row of panels per layer, one panel per head."""
    layers = [_checked(scores, target_tokens, source_tokens) for scores in layers]
    num_heads = [len(layer) for layer in layers]
    if len(set(num_heads)) != 1:
        raise ValueError(
            "All layers of a grid must have the same number of heads. "
            f"Received: layers of {num_heads} heads."
        )
    heads = range(1, num_heads[0] + 1)
    titles = [f"layer {layer + 1}, head {head}" for layer in range(len(layers)) for head in heads]
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


def _kind(name, layers, row_tokens, column_tokens):
    if not len(layers):
        raise ValueError(f"scores must have at least one layer. Received: none for {name!r}.")
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
