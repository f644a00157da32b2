"""Attention weights as heat maps: arrays in, a matplotlib Figure out."""

import math

import numpy as np

from keras_transformer.figures.canvas import INK, color_bar, finite, new_figure

WIDEST_ROW = 130  # tokens of all panels side by side, about 30 inches


def attention_heat_map(attention_scores, target_tokens, source_tokens, title=None):
    """Draws which source tokens each target token attends to, a panel a head.

    Rows are target tokens (the queries), columns source tokens (the keys); the
    darker, the more attention. All heads share one colour scale that starts
    at zero, so panels can be compared.

    Args:
        attention_scores: probabilities in [0, 1] after the softmax, of one
            head, (target, source), or of all, (heads, target, source).
        target_tokens: one string for each row. For self-attention the same
            tokens as the columns.
        source_tokens: one string for each column.
        title: a line above the picture, or None.

    Returns:
        A `matplotlib.figure.Figure`; its last axes are the colour bar.

    Raises:
        ValueError: if the tokens do not fit the scores, or a score is not a
            number in [0, 1].

    Examples:
        >>> scores = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]
        >>> figure = attention_heat_map(scores, ["Guten", "Tag"], ["a", "good", "day"])
        >>> len(figure.axes)
        2
    """
    scores = _checked_attention(attention_scores, target_tokens, source_tokens)
    num_heads = len(scores)
    most = max(1, min(4, num_heads, WIDEST_ROW // len(source_tokens)))
    # Full rows where that can be: 8 heads are 4 and 4.
    columns = next((n for n in range(most, 1, -1) if num_heads % n == 0), most)
    titles = [f"head {head + 1}" for head in range(num_heads)] if num_heads > 1 else [""]
    return _heat_maps(scores, titles, columns, target_tokens, source_tokens, title)


def attention_grid(attention_scores, target_tokens, source_tokens, title=None):
    """Draws every head of every layer at once: a row of panels a layer, a panel a head.

    All share one colour scale, as in `attention_heat_map`, so it can be seen at a glance
    in which layers and heads something happens.

    Args:
        attention_scores: probabilities in [0, 1], a list with one array a layer,
            (heads, target, source), every layer with as many heads.
        target_tokens: one string for each row of a panel.
        source_tokens: one string for each column of a panel.
        title: a line above the picture, or None.

    Returns:
        A `matplotlib.figure.Figure`; its last axes are the colour bar.

    Raises:
        ValueError: if there is no layer, the layers differ in their heads, the
            tokens do not fit the scores, or a score is not a number in [0, 1].

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
    """A grid of panels, `columns` wide, one for each (target, source) of `scores`."""
    num_panels, num_rows, num_columns = scores.shape
    rows = math.ceil(num_panels / columns)
    cell = 0.34 if num_panels == 1 else 0.24  # inches a token
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
        # Prices hold dollar signs, which matplotlib would read as formulas.
        axes.set_xticks(range(num_columns), source_tokens, rotation=90, parse_math=False)
        axes.set_yticks(range(num_rows), target_tokens, parse_math=False)
        # A last row that is not full leaves panels above it at the bottom of their column.
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
            "one token for each row and each column. Take one example out of a batch first. "
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
    """White lines between cells: a pale cell is then seen to be a cell."""
    axes.set_xticks(np.arange(num_columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(num_rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
