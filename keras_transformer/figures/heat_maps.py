"""Attention weights as heat maps: arrays in, a matplotlib Figure out."""

import math

import numpy as np

from keras_transformer.figures.canvas import INK, color_bar, finite, new_figure

MAX_ROW_TOKENS = 130  # of all panels in a row, about 30 inches


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
    scores = _checked_attention(attention_scores, target_tokens, source_tokens)
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
    layers = [_checked_attention(s, target_tokens, source_tokens) for s in attention_scores]
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


def _checked_attention(attention_scores, target_tokens, source_tokens):
    scores = finite("attention_scores", attention_scores)
    if scores.ndim == 2:
        scores = scores[None]  # (heads, target, source)
    expected = (len(target_tokens), len(source_tokens))
    if scores.ndim != 3 or not scores.size or scores.shape[1:] != expected:
        raise ValueError(
            "attention_scores must have shape (target, source) or (heads, target, source), with "
            "one token per row and column. Pass one example of a batch at a time. "
            f"Received: shape={np.shape(attention_scores)}, {expected[0]} target tokens, "
            f"{expected[1]} source tokens."
        )
    if scores.min() < 0.0 or scores.max() > 1.0 + 1e-3:  # bfloat16 rounds a one up
        raise ValueError(
            "attention_scores must be probabilities in [0, 1], after the softmax. "
            f"Received: values from {scores.min():g} to {scores.max():g}."
        )
    return scores


def _separate_cells(axes, num_rows, num_columns):
    """Draws white lines between cells, so that pale cells stay visible."""
    axes.set_xticks(np.arange(num_columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(num_rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
