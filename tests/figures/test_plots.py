import io
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from keras_transformer import figures
from keras_transformer.figures.attention import draw_heads
from tests.reference import positions as sinusoidal_table

SOURCE = ["a", "day", "$5$"]
TARGET = ["Guten", "Tag"]
SCORES = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])


def labels(axes, axis):
    return [label.get_text() for label in getattr(axes, f"get_{axis}ticklabels")()]


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def test_heat_map_shows_the_scores_with_target_tokens_down_and_source_tokens_across():
    figure = draw_heads(SCORES, TARGET, SOURCE, title="layer 1")
    heat_map, color_bar = figure.axes
    np.testing.assert_array_equal(heat_map.images[0].get_array(), SCORES)
    assert labels(heat_map, "y") == TARGET, "rows are target tokens"
    assert labels(heat_map, "x") == SOURCE, "columns are source tokens"
    assert color_bar.get_ylabel() == "attention probability", "the colour bar has its unit"
    assert figure.get_suptitle() == "layer 1", "the title is the one asked for"


def test_every_head_has_its_panel_and_all_share_one_colour_scale():
    heads = np.stack([SCORES, 0.5 * SCORES, SCORES[::-1], 0.1 * SCORES, SCORES])
    figure = draw_heads(heads, TARGET, SOURCE)
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == [f"head {n}" for n in range(1, 6)], (
        "one panel a head, and empty places of the grid stay empty"
    )
    for axes, scores in zip(panels, heads, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), scores)
        assert axes.images[0].get_clim() == (0.0, 0.9), "equal colours mean equal attention"


def test_tokens_with_dollar_signs_are_text_and_not_formulas():
    figure = draw_heads(SCORES, TARGET, ["$", r"$\broken{$", "$5$"])
    assert png(figure).startswith(b"\x89PNG"), "a broken formula would not be drawn"
    text = figure.axes[0].get_xticklabels()[2]
    assert not text.get_parse_math(), "5 would be drawn in italics, without its dollar signs"


def test_a_row_with_nothing_to_attend_to_is_drawn():
    assert png(draw_heads(np.zeros((2, 3)), TARGET, SOURCE)), "all zeros is a picture"


@pytest.mark.parametrize(("length", "columns"), [(32, 4), (64, 2), (128, 1)])
def test_panels_of_long_texts_are_put_below_each_other(length, columns):
    tokens = ["a"] * length
    figure = draw_heads(np.zeros((4, 1, length)), ["b"], tokens)
    panels = [axes.get_subplotspec() for axes in figure.axes if axes.images]
    assert len({panel.colspan.start for panel in panels}) == columns
    assert figure.get_figwidth() < 35, "inches"


def grid(layers):
    attention = figures.Attention({"encoder": layers}, {"encoder": TARGET}, {"encoder": SOURCE})
    return attention.figure(layer=None)


def test_the_grid_has_one_row_per_layer_and_one_column_per_head():
    layers = np.random.uniform(size=(3, 2, 2, 3))
    layers[2, 1, 1, 2] = 1.0
    figure = grid(list(layers))
    panels = [axes for axes in figure.axes if axes.images]
    for index, axes in enumerate(panels):
        layer, head = divmod(index, 2)
        place = axes.get_subplotspec()
        assert (place.rowspan.start, place.colspan.start) == (layer, head), "its place"
        assert axes.get_title() == f"layer {layer + 1}, head {head + 1}"
        np.testing.assert_array_equal(axes.images[0].get_array(), layers[layer, head])
        assert axes.images[0].get_clim() == (0.0, 1.0), "one colour scale for all"
        assert labels(axes, "x") == (SOURCE if layer == 2 else []), "named once a column"
        assert labels(axes, "y") == (TARGET if head == 0 else []), "named once a row"
    assert len(panels) == 6 and figure.get_suptitle() == (
        "All layers: where each token looks in the text"
    )


def test_layers_with_different_heads_are_refused():
    with pytest.raises(
        ValueError, match=r"same number of heads. Received: layers of \[1, 2\] heads"
    ):
        grid([SCORES[None], np.stack([SCORES, SCORES])])
    with pytest.raises(ValueError, match=r"these layers: {'encoder': 0}.*layer=None"):
        grid([])
    with pytest.raises(ValueError, match=r"Received: shape=\(2, 2, 2, 3\)"):
        grid([np.zeros((2, 2, 2, 3))])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((5, 3)), r"Received: shape=\(5, 3\), 2 target tokens, 3 source tokens"),
        (np.zeros((2, 2, 2, 3)), r"one example of a batch at a time.*shape=\(2, 2, 2, 3\)"),
        (np.zeros((0, 2, 3)), r"shape=\(0, 2, 3\)"),
        (SCORES - 1, r"after the softmax. Received: values from -1 to -0.1"),
        (SCORES * 7, r"values from 0 to 6.3"),
        (SCORES * np.nan, r"attention_scores must hold finite numbers only. Received: 6 values"),
    ],
)
def test_scores_that_are_not_attention_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        draw_heads(scores, TARGET, SOURCE)


def test_positional_encoding_is_drawn_with_zero_in_the_middle_of_the_colours():
    encoding = np.arange(35.0).reshape(7, 5) - 10
    axes = figures.positional_encoding(encoding).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), encoding)
    assert axes.images[0].get_clim() == (-24.0, 24.0), "zero is white"
    assert axes.get_xlabel() == "dimension", "columns are dimensions"
    assert axes.get_ylabel() == "position, tokens", "rows are positions"


def test_the_curve_is_the_distance_over_the_offset():
    encoding = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])  # distances 5, 0 and 5
    curve = figures.positional_encoding(encoding).axes[1]
    [line], [band] = curve.lines, curve.collections
    np.testing.assert_array_equal(line.get_xdata(), [0, 1, 2])
    np.testing.assert_allclose(line.get_ydata(), [0, 2.5, 5])
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert corners == {(0, 0), (1, 0), (1, 5), (2, 5)}, "from the nearest pair to the farthest"
    assert curve.get_xlabel() == "offset, tokens"
    assert curve.get_ylabel() == "distance of two encodings"


def test_the_distance_of_sinusoids_depends_on_the_offset_alone():
    table = sinusoidal_table(length=53, dim=22)
    curve = figures.positional_encoding(table).axes[1]
    distances = curve.lines[0].get_ydata()
    np.testing.assert_allclose(distances, np.linalg.norm(table - table[0], axis=-1), atol=1e-9)
    assert (np.diff(distances[:4]) > 0).all(), "neighbours are nearer than strangers"


def test_a_single_position_is_drawn():
    assert png(figures.positional_encoding([[1.0, 2.0]]))


def test_an_encoding_that_is_not_a_table_is_refused():
    with pytest.raises(ValueError, match=r"\(positions, dim\).*Received: shape=\(2, 3, 5\)"):
        figures.positional_encoding(np.zeros((2, 3, 5)))
    with pytest.raises(ValueError, match="encoding must hold finite numbers only"):
        figures.positional_encoding([[0.0, np.inf]])


def test_learning_curves_put_training_and_validation_of_a_metric_into_one_panel():
    history = {
        "loss": [5.0, 3.0, 2.0],
        "token_accuracy": [0.1, 0.2, 0.3],
        "val_loss": [6.0, 4.0, 3.5],
        "val_token_accuracy": [0.1, 0.1, 0.2],
    }
    loss, accuracy = figures.learning_curves(history).axes
    assert loss.get_ylabel() == "loss, nats per token", "the loss has its unit"
    assert accuracy.get_ylabel() == "token accuracy", "names are read as words"
    for axes, metric in ((loss, "loss"), (accuracy, "token_accuracy")):
        training, validation = axes.lines
        assert training.get_label() == "training"
        assert validation.get_label() == "validation"
        np.testing.assert_array_equal(training.get_xdata(), [1, 2, 3])
        np.testing.assert_array_equal(training.get_ydata(), history[metric])
        np.testing.assert_array_equal(validation.get_ydata(), history[f"val_{metric}"])
        assert axes.get_legend() is not None, "the two lines are named"
        assert training.get_color() != validation.get_color(), "the two lines are told apart"


def test_a_validation_every_few_epochs_is_drawn_at_those_epochs():
    history = {"loss": [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "val_loss": [5.5, 3.5, 1.5]}
    _, validation = figures.learning_curves(history).axes[0].lines
    np.testing.assert_array_equal(validation.get_xdata(), [2, 4, 6])


@pytest.mark.parametrize("every", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_epochs", [1, 2, 3, 5, 7, 11])
def test_a_validation_is_drawn_at_its_epochs_or_its_interval_is_asked_for(num_epochs, every):
    measured = [epoch for epoch in range(1, num_epochs + 1) if epoch % every == 0]
    if not measured:
        return
    history = {"loss": [1.0] * num_epochs, "val_loss": [2.0] * len(measured)}
    history["val_bleu"] = history["val_loss"]
    draws = [lambda: figures.learning_curves(history, validation_freq=every)]
    if [num_epochs // n for n in range(1, num_epochs + 1)].count(len(measured)) == 1:
        draws.append(lambda: figures.learning_curves(history))
    else:
        with pytest.raises(ValueError, match=rf"one validation_freq.*in {num_epochs} epochs"):
            figures.learning_curves(history)
    for draw in draws:
        for axes in draw().axes:
            np.testing.assert_array_equal(axes.lines[-1].get_xdata(), measured)
    with pytest.raises(ValueError, match="one validation_freq"):
        figures.learning_curves(history, validation_freq=num_epochs + 1)


def test_a_metric_of_the_validation_alone_has_its_panel():
    axes = figures.learning_curves({"loss": [2.0, 1.0], "val_bleu": [31.0, 37.0]}).axes
    assert [panel.get_ylabel() for panel in axes] == ["loss, nats per token", "bleu"]
    assert [line.get_label() for line in axes[1].lines] == ["validation"]


def test_an_epoch_without_a_measurement_is_left_out():
    figure = figures.learning_curves({"loss": [2.0, float("nan"), 1.0]})
    [line] = figure.axes[0].lines
    assert line.get_xdata().tolist() == [1, 3] and line.get_ydata().tolist() == [2.0, 1.0]
    assert png(figure)


@pytest.mark.parametrize(("count", "rows"), [(1, [1]), (4, [4]), (5, [3, 2]), (7, [4, 3])])
def test_no_panel_has_a_row_for_itself_and_perplexity_is_logarithmic(count, rows):
    names = ["loss", "perplexity", "accuracy", "rate", "bleu", "chrf", "speed"][:count]
    figure = figures.learning_curves({name: [3.0, 2.0] for name in names})
    scales = [axes.get_yscale() for axes in figure.axes]
    assert scales == ["log" if name == "perplexity" else "linear" for name in names]
    tops = [round(axes.get_position().y1, 2) for axes in figure.axes]
    assert [tops.count(top) for top in dict.fromkeys(tops)] == rows


def test_losses_within_epochs_begin_before_the_first_epoch_ends():
    losses = {0.25: 5.0, 0.5: 4.0, 2.0: 1.0}
    history = {"loss": [3.0, 2.0], "val_loss": [2.5, 2.0]}
    training, validation = figures.learning_curves(history, losses=losses).axes[0].lines
    assert dict(zip(*training.get_data(), strict=True)) == losses
    assert validation.get_xdata().tolist() == [1, 2]
    [training] = figures.learning_curves({"loss": [3.0]}, losses={}).axes[0].lines
    assert training.get_xdata().tolist() == [1], "an empty log, as of several workers"


def test_curves_without_points_are_refused():
    with pytest.raises(ValueError, match=r"at least one metric, e\.g\. 'loss'\. Received: none"):
        figures.learning_curves({})
    with pytest.raises(ValueError, match="'loss', training, with 0 points"):
        figures.learning_curves({"loss": []})
    with pytest.raises(ValueError, match="'loss', validation, with 3 points; training with 2"):
        figures.learning_curves({"loss": [2.0, 1.0], "val_loss": [2.0, 1.0, 1.0]})


def test_figures_leave_nothing_in_pyplot():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    figures.learning_curves({"loss": [2.0, 1.0]})
    assert pyplot.get_fignums() == before, "pyplot would keep every figure in memory"


def test_without_matplotlib_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        figures.learning_curves({"loss": [2.0, 1.0]})
