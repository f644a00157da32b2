"""What all figures share: colours, axes, and figures without pyplot.

Without pyplot no window opens, no figure stays in memory, and no display is needed. A notebook
shows a returned Figure; elsewhere, call `figure.savefig`. matplotlib is imported on first use.
"""

import numpy as np

# In order of use; distinguishable with any colour vision.
LINE_COLORS = ("#2f6fb5", "#d9772b", "#2a9d8f", "#8a5fb0", "#b5485d", "#6b6b6b")
INK = "#333333"


def finite(name, values):
    """Checks that the values are finite; returns float64, also of bfloat16 and tensors.

    Args:
        name: of the values, for the message.
        values: anything that NumPy can convert.

    Raises:
        ValueError: if a value is NaN or infinite.
    """
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
    """Adds a colour bar for an image beside its axes."""
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
