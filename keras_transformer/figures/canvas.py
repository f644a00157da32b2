"""What all pictures share: a figure without pyplot, colours, axes.

No window opens, no figure stays behind in memory, and a server without a display draws as well
as a notebook does (a notebook shows the returned Figure; anything else calls `figure.savefig`).
matplotlib is imported on the first call.
"""

import numpy as np

# Told apart by readers with any colour vision; the order is the order of use.
LINE_COLORS = ("#2f6fb5", "#d9772b", "#2a9d8f", "#8a5fb0", "#b5485d", "#6b6b6b")
INK = "#333333"


def finite(name, values):
    """The values as float64, which also accepts bfloat16 and framework tensors."""
    array = np.asarray(values).astype("float64")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} must hold finite numbers only. "
            f"Received: {np.count_nonzero(~np.isfinite(array))} values that are nan or infinite."
        )
    return array


def new_figure(size, title):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, which is not installed. Install it with: "
            "pip install matplotlib."
        ) from error
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    if title is not None:
        figure.suptitle(title, color=INK, parse_math=False)
    return figure


def color_bar(figure, image, axes, label):
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(label, color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)


def dress_lines(axes, x_label, y_label, legend):
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    if legend:
        axes.legend(frameon=False, labelcolor=INK)
