"""Where a model looks in a text: weights with the names of the tokens, as a figure or a page."""

from typing import NamedTuple

import numpy as np

from keras_transformer.figures.heat_maps import attention_heat_map
from keras_transformer.figures.html_page import attention_page

TITLES = {
    "cross": "Last decoder layer: where each target token looks in the source",
    "decoder": "Last layer: where each token looks in what came before",
    "encoder": "Last layer: where each token looks in the text",
}


class Attention(NamedTuple):
    """The attention weights of one text, or of one pair of texts, by kind of attention.

    A notebook shows it as the page that `page` returns.

    Attributes:
        scores: dict of lists of arrays (heads, target, source), one a layer.
        row_tokens: dict of lists of the tokens that look, the targets.
        column_tokens: dict of lists of the tokens looked at, the sources.
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
        """Takes the first example out of scores (batch, heads, target, source), in any dtype."""
        first = {
            kind: [np.asarray(layer[0]).astype("float32") for layer in layers]
            for kind, layers in scores.items()
        }
        return cls(first, row_tokens, column_tokens, title)

    def figure(self, kind=None, layer=-1):
        """Draws all heads of a layer.

        Args:
            kind: "encoder", "decoder" or "cross"; None for the last that there is.
            layer: index; -1 is the last.

        Returns:
            A `matplotlib.figure.Figure`, a panel a head.
        """
        kind = list(self.scores)[-1] if kind is None else kind
        rows, columns = self.row_tokens[kind], self.column_tokens[kind]
        title = TITLES[kind] if layer == -1 else f"Layer {layer + 1} of the {kind} attention"
        return attention_heat_map(self.scores[kind][layer], rows, columns, title=title)

    def page(self):
        """An HTML page to look through all layers and heads, a string; see `attention_page`."""
        weights = (self.scores, self.row_tokens, self.column_tokens)
        return attention_page(*weights, title=f"Attention: {self.title}")


def names_of(tokenizer, token_ids):
    """The pieces that ids stand for, with control characters escaped, a list of strings."""
    return [
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece)
        for piece in tokenizer.pieces(token_ids)
    ]
