"""Plots of training curves and position encodings: arrays in, a Figure out.

Figures are made without pyplot: no window opens, no figure stays in memory, and no display is
needed. A notebook shows a returned Figure; elsewhere, call `figure.savefig`. matplotlib is imported
on first use.
"""

import numpy as np

from keras_transformer.arguments import check_integer

LINE_COLORS = ("#2f6fb5", "#d9772b")  # in order of use; distinguishable with any colour vision
INK = "#333333"
PANELS_IN_A_ROW = 4


def positional_encoding(encoding, title="Positional encoding"):
    """Draws a position encoding and the distance between its rows.

    Next to the table, a curve shows the Euclidean distance between the rows of two positions over
    their offset: the mean of all pairs, in a band from the smallest to the largest. The curve
    rises if the encoding separates near positions from far ones. A narrow band means that the
    distance depends only on the offset.

    Args:
        encoding: one row per position, (positions, dim), such as the sinusoidal table or learned
            position embeddings; finite values.
        title: a line above the figure, or None.

    Returns:
        A `matplotlib.figure.Figure`. The first axes show the table: positions downwards,
        dimensions to the right, negative values blue, zero white, positive values red. The second
        axes show the curve.

    Raises:
        ValueError: if `encoding` is not a table of finite numbers.

    Examples:
        >>> figure = positional_encoding(np.sin(np.outer(np.arange(7), [1.0, 0.1, 0.01])))
        >>> figure.axes[0].get_ylabel()
        'position, tokens'
    """
    table = finite("encoding", encoding)
    if table.ndim != 2 or not table.size:
        raise ValueError(
            "encoding must be a table of shape (positions, dim) with at least one entry. "
            f"Received: shape={table.shape}."
        )
    figure = new_figure((10.5, 4.2), title)
    axes, curve = figure.subplots(1, 2, width_ratios=(3, 2))
    largest = np.abs(table).max() or 1.0
    image = axes.imshow(
        table, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
    )
    axes.set_xlabel("dimension", color=INK)
    axes.set_ylabel("position, tokens", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[:].set_visible(False)
    color_bar(figure, image, axes, "value")
    mean, smallest, largest = _neighbour_distances(table).T
    offsets = np.arange(len(table))
    curve.fill_between(offsets, smallest, largest, color=LINE_COLORS[0], alpha=0.25, linewidth=0)
    curve.plot(offsets, mean, color=LINE_COLORS[0], linewidth=1.8)
    style_lines(curve, "offset, tokens", "distance of two encodings", legend=False)
    curve.set_ylim(bottom=0.0)
    return figure


def learning_curves(
    history, title="Learning curves", loss_unit="nats per token", validation_freq=None, losses=None
):
    """Draws loss and metrics over epochs, training and validation together.

    Each metric has a panel, at most four in a row; `val_loss` is drawn in the panel of `loss`. A
    validation curve with fewer points was measured every few epochs and is drawn at those. NaN
    stands for an epoch without a measurement, which the line skips. Perplexity has a logarithmic
    axis.

    Args:
        history: {metric: value after each epoch}, such as `model.fit(...).history`; names that
            begin with `val_` belong to the validation set.
        title: a line above the figure, or None.
        loss_unit: unit of the loss, written on its axis.
        validation_freq: that of `fit`, every how many epochs the validation set was measured; None
            if the numbers of points tell it.
        losses: {epochs, a fraction: training loss} for a curve that begins within the first epoch,
            in place of the history's training loss; None or empty for that of the history.

    Returns:
        A `matplotlib.figure.Figure` with one panel per metric, in the order of `history`.

    Raises:
        ValueError: if the history is empty, a curve has no points, or a validation curve has more
            points than the training curve, or another number than `validation_freq` gives, or one
            that does not tell it.

    Examples:
        >>> figure = learning_curves({"loss": [3.0, 2.0], "val_loss": [3.5, 2.9]})
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['training', 'validation']
    """
    if validation_freq is not None:
        check_integer("validation_freq", validation_freq, 1)
    metrics = list(dict.fromkeys(name.removeprefix("val_") for name in history))
    if not metrics:
        raise ValueError("history must hold at least one metric, e.g. 'loss'. Received: none.")
    rows = -(-len(metrics) // PANELS_IN_A_ROW)
    columns = -(-len(metrics) // rows)
    figure = new_figure((1.2 + 3.6 * columns, 0.8 + 3.0 * rows), title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(metrics) :]:
        axes.remove()
    trained = max([len(history[name]) for name in metrics if name in history], default=0)
    for axes, metric in zip(grid.flat, metrics, strict=False):
        curves = {"training": history.get(metric), "validation": history.get(f"val_{metric}")}
        curves = {label: values for label, values in curves.items() if values is not None}
        num_epochs = len(curves.get("training", ())) or trained
        num_epochs = num_epochs or len(curves.get("validation", ())) * (validation_freq or 1)
        for label, values in curves.items():
            every = 1 if label == "training" else validation_freq
            epochs = _epochs_of(metric, label, len(values), num_epochs, every)
            measured = np.isfinite(values)
            color = LINE_COLORS[label == "validation"]
            # A line through a single epoch would be invisible without a marker.
            marker = "o" if num_epochs <= 30 else None
            points = epochs[measured], np.asarray(values)[measured]
            if losses and (metric, label) == ("loss", "training"):
                points, marker = (list(losses), list(losses.values())), None
            axes.plot(*points, label=label, color=color, marker=marker, markersize=3.5)
        words = metric.replace("_", " ")
        unit = f", {loss_unit}" if metric == "loss" else ""
        style_lines(axes, "epoch", words + unit, legend=True)
        if metric == "perplexity":
            axes.set_yscale("log")
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _epochs_of(metric, label, num_points, num_epochs, every):
    if not 0 < num_points <= num_epochs:
        raise ValueError(
            "A curve needs at least one point, and a validation curve no more points than the "
            f"training curve. Received: {metric!r}, {label}, with {num_points} points; "
            f"training with {num_epochs}."
        )
    intervals = [n for n in range(1, num_epochs + 1) if num_epochs // n == num_points]
    if every is not None:
        intervals = [n for n in intervals if n == every]
    if len(intervals) != 1:
        raise ValueError(
            "Fewer points than epochs must be those of one validation_freq, which is needed where "
            f"several give as many. Received: {metric!r}, {label}, with {num_points} points in "
            f"{num_epochs} epochs; validation_freq={every}."
        )
    return intervals[0] * np.arange(1, num_points + 1)


def _neighbour_distances(table):
    """The mean, smallest and largest distance of rows at each offset, (offsets, 3)."""
    distances = []
    for offset in range(len(table)):
        apart = np.linalg.norm(table[offset:] - table[: len(table) - offset], axis=-1)
        distances.append((apart.mean(), apart.min(), apart.max()))
    return np.array(distances)


def finite(name, values):
    """Values as a float64 array; ValueError if one is NaN or infinite."""
    array = np.asarray(values).astype("float64")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} must hold finite numbers only. "
            f"Received: {np.count_nonzero(~np.isfinite(array))} values that are nan or infinite."
        )
    return array


def new_figure(size, title):
    """An empty figure of (width, height) inches, with a title unless that is None."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Figures need matplotlib, which is not installed. Install it with: "
            "pip install matplotlib."
        ) from error
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    if title is not None:
        figure.suptitle(title, color=INK, parse_math=False)
    return figure


def color_bar(figure, image, axes, label):
    """Adds a colour bar for an image next to its axes."""
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)


def style_lines(axes, x_label, y_label, legend):
    """Labels and styles the axes of a line plot."""
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    if legend:
        axes.legend(frameon=False, labelcolor=INK)
