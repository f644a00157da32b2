"""Attention weights with their tokens, as a figure or an HTML page."""

from typing import NamedTuple

import numpy as np

from keras_transformer.figures.heat_maps import attention_heat_map
from keras_transformer.figures.html_page import attention_page

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
        """An HTML page to browse all layers and heads, a string; see `attention_page`."""
        weights = (self.scores, self.row_tokens, self.column_tokens)
        return attention_page(*weights, title=f"Attention: {self.title}")


def names_of(tokenizer, token_ids):
    """The tokens of ids as labels, a list of strings with control characters escaped."""
    return [
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece)
        for piece in tokenizer.pieces(token_ids)
    ]
