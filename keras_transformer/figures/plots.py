"""Pictures of what a Transformer does: arrays in, a matplotlib Figure out.

Nothing here touches pyplot, so no window opens, no figure stays behind in
memory, and a server without a display draws as well as a notebook does (a
notebook shows the returned Figure; anything else calls `figure.savefig`).
matplotlib is imported on the first call only.
"""

import itertools
import math

import numpy as np

# Told apart by readers with any colour vision; the order is the order of use.
LINE_COLORS = ("#2f6fb5", "#d9772b", "#2a9d8f", "#8a5fb0", "#b5485d", "#6b6b6b")
INK = "#333333"
UNITS = {"loss": "nats per token"}
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

    Example:
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

    Example:
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


def positional_encoding(encoding, title="Positional encoding"):
    """Draws the pattern that tells the model where a token stands, and how it tells distance.

    Beside the pattern is a curve of the Euclidean distance between the rows of two positions,
    over how far apart these are: its mean over all such pairs, in a band from the smallest to
    the largest. An encoding by which a model can tell neighbours from strangers has a curve
    that rises; a narrow band says that only the offset counts, not where in the text it is.

    Args:
        encoding: one row a position, (positions, dim), as the sinusoidal table
            or learned position embeddings have it. Any finite values.
        title: a line above the picture, or None.

    Returns:
        A `matplotlib.figure.Figure`. Its first axes are the pattern: positions
        downwards, dimensions to the right, blue below zero, white at zero, red
        above; its second axes the curve.

    Raises:
        ValueError: if `encoding` is not a table of finite numbers.

    Example:
        >>> figure = positional_encoding(np.sin(np.outer(np.arange(7), [1.0, 0.1, 0.01])))
        >>> figure.axes[0].get_ylabel()
        'position, tokens'
    """
    table = _finite("encoding", encoding)
    if table.ndim != 2 or not table.size:
        raise ValueError(
            "encoding must be a table of shape (positions, dim) with at least one entry. "
            f"Received: shape={table.shape}."
        )
    figure = _new_figure((10.5, 4.2), title)
    axes, curve = figure.subplots(1, 2, width_ratios=(3, 2))
    largest = np.abs(table).max() or 1.0
    image = axes.imshow(
        table, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
    )
    axes.set_xlabel("dimension", color=INK)
    axes.set_ylabel("position, tokens", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[:].set_visible(False)
    _color_bar(figure, image, axes, "value")
    mean, smallest, largest = _neighbour_distances(table).T
    offsets = np.arange(len(table))
    curve.fill_between(offsets, smallest, largest, color=LINE_COLORS[0], alpha=0.25, linewidth=0)
    curve.plot(offsets, mean, color=LINE_COLORS[0], linewidth=1.8)
    _dress_lines(curve, "offset, tokens", "distance of two encodings", legend=False)
    curve.set_ylim(bottom=0.0)
    return figure


def schedule(steps, learning_rates, title="Learning-rate schedule"):
    """Draws learning rates over training steps, one line a schedule.

    Args:
        steps: the training steps the rates belong to, (points,), increasing.
        learning_rates: dict from a label for the line to its rates, (points,).
        title: a line above the picture, or None.

    Returns:
        A `matplotlib.figure.Figure`. Lines are named in a legend if there is
        more than one.

    Raises:
        ValueError: if there is no line, or a line's length is not that of
            `steps`.

    Example:
        >>> figure = schedule([1, 2, 3], {"warm-up": [0.1, 0.2, 0.3], "flat": [0.2, 0.2, 0.2]})
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['warm-up', 'flat']
    """
    if not learning_rates:
        raise ValueError("learning_rates must hold at least one schedule. Received: none.")
    steps = _finite("steps", steps)
    figure = _new_figure((6.4, 3.8), title)
    axes = figure.subplots()
    for color, (label, rates) in zip(
        itertools.cycle(LINE_COLORS), learning_rates.items(), strict=False
    ):
        rates = _finite(f"learning_rates[{label!r}]", rates)
        if rates.shape != steps.shape or steps.ndim != 1:
            raise ValueError(
                "Every schedule needs one learning rate for each step. "
                f"Received: steps of shape {steps.shape}, {label!r} of shape {rates.shape}."
            )
        axes.plot(steps, rates, label=label, color=color, linewidth=1.8)
    _dress_lines(axes, "step", "learning rate", legend=len(learning_rates) > 1)
    # Rates are small: 7e-4 reads better as 7 with one factor for the whole axis.
    axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return figure


def learning_curves(history, title="Learning curves"):
    """Draws loss and metrics over epochs, training and validation together.

    Each metric gets a panel; `val_loss` goes into the panel of `loss`, as in
    the `history` of the object that `model.fit` returns. A validation curve
    with fewer points is one measured every few epochs (`validation_freq` of
    `fit`) and is drawn at those epochs. Values that are not numbers leave a
    gap in their line.

    Args:
        history: dict from a metric's name to its value after each epoch;
            names that begin with `val_` are of the validation set.
        title: a line above the picture, or None.

    Returns:
        A `matplotlib.figure.Figure` with a panel a metric, in the order of
        `history`.

    Raises:
        ValueError: if the history is empty, a curve has no points, or a
            validation curve has more points than the training curve.

    Example:
        >>> figure = learning_curves({"loss": [3.0, 2.0], "val_loss": [3.5, 2.9]})
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['training', 'validation']
    """
    metrics = list(dict.fromkeys(name.removeprefix("val_") for name in history))
    if not metrics:
        raise ValueError("history must hold at least one metric, e.g. 'loss'. Received: none.")
    figure = _new_figure((1.2 + 4.4 * len(metrics), 3.8), title)
    grid = figure.subplots(1, len(metrics), squeeze=False)
    for axes, metric in zip(grid.flat, metrics, strict=True):
        curves = {"training": history.get(metric), "validation": history.get(f"val_{metric}")}
        curves = {label: values for label, values in curves.items() if values is not None}
        num_epochs = max(len(values) for values in curves.values())
        for label, values in curves.items():
            epochs = _epochs_of(metric, label, len(values), len(next(iter(curves.values()))))
            color = LINE_COLORS[label == "validation"]
            # One epoch alone would be a line without length, that is nothing at all.
            marker = "o" if num_epochs <= 30 else None
            axes.plot(epochs, values, label=label, color=color, marker=marker, markersize=3.5)
        words = metric.replace("_", " ")
        unit = f", {UNITS[metric]}" if metric in UNITS else ""
        _dress_lines(axes, "epoch", words + unit, legend=True)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _epochs_of(metric, label, num_points, num_epochs):
    if not 0 < num_points <= num_epochs:
        raise ValueError(
            "A curve needs at least one point, and a validation curve no more points than the "
            f"training curve. Received: {metric!r}, {label}, with {num_points} points; "
            f"training with {num_epochs}."
        )
    interval = num_epochs // num_points
    return interval * np.arange(1, num_points + 1)


def _neighbour_distances(table):
    """Mean, least and greatest distance of rows `offset` apart, (offsets, 3)."""
    distances = []
    for offset in range(len(table)):
        apart = np.linalg.norm(table[offset:] - table[: len(table) - offset], axis=-1)
        distances.append((apart.mean(), apart.min(), apart.max()))
    return np.array(distances)


def _heat_maps(scores, titles, columns, target_tokens, source_tokens, title):
    """A grid of panels, `columns` wide, one for each (target, source) of `scores`."""
    num_panels, num_rows, num_columns = scores.shape
    rows = math.ceil(num_panels / columns)
    cell = 0.34 if num_panels == 1 else 0.24  # inches a token
    size = (
        columns * max(1.6, cell * num_columns) + 2.0,
        rows * max(1.2, cell * num_rows) + 1.6,
    )
    figure = _new_figure(size, title)
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
    _color_bar(figure, image, grid, "attention probability")
    return figure


def _checked_attention(attention_scores, target_tokens, source_tokens):
    scores = _finite("attention_scores", attention_scores)
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


def _finite(name, values):
    """The values as float64, which also accepts bfloat16 and framework tensors."""
    array = np.asarray(values).astype("float64")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} must hold finite numbers only. "
            f"Received: {np.count_nonzero(~np.isfinite(array))} values that are nan or infinite."
        )
    return array


def _new_figure(size, title):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, which is not installed. "
            "Install it with: pip install 'keras_transformer[train]'."
        ) from error
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    if title is not None:
        figure.suptitle(title, color=INK, parse_math=False)
    return figure


def _separate_cells(axes, num_rows, num_columns):
    """White lines between cells: a pale cell is then seen to be a cell."""
    axes.set_xticks(np.arange(num_columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(num_rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)


def _color_bar(figure, image, axes, label):
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)


def _dress_lines(axes, x_label, y_label, legend):
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    if legend:
        axes.legend(frameon=False, labelcolor=INK)
