"""Attention weights of every layer that has them, recorded while it is called."""

import contextlib
import contextvars

# Within `recorded_scores`: the weights of each attention layer called so far.
_recorded_scores = contextvars.ContextVar("recorded_scores", default=None)


@contextlib.contextmanager
def recorded_scores():
    """While it lasts, every attention layer that is called writes its weights to a dictionary.

    Within another, it is the same dictionary.
    """
    recorded = {} if _recorded_scores.get() is None else _recorded_scores.get()
    token = _recorded_scores.set(recorded)
    try:
        yield recorded
    finally:
        _recorded_scores.reset(token)


def scores_are_recorded():
    """Whether the call that is running must record its attention weights."""
    return _recorded_scores.get() is not None


class AttentionScoresMixin:
    """Adds `attention_scores` to attention layers, and to the blocks and stacks that hold them.

    `call` stays the only forward pass: while it runs, each attention layer records its weights if
    somebody asks for them. A layer that holds others overrides `scores_in`.
    """

    def attention_scores(self, *args, **kwargs):
        """The attention weights of a call with the same arguments, but for `training`.

        Returns:
            Weights in [0, 1], (batch, heads, target, source); of a decoder's block the pair of
            those to the target and to the source, the second None without a source; of a stack,
            a list with one entry a block.

        Raises:
            ValueError: if the layer was never called, so that it has no weights yet.
        """
        if not self.built:
            raise ValueError(
                "Call the layer before you ask for its attention. "
                f"Received: {self.name}, which has no weights yet."
            )
        with recorded_scores() as recorded:
            self(*args, **kwargs, training=False)
        return self.scores_in(recorded)

    def record_scores(self, weights):
        """Keeps the weights of a call if somebody asks for them."""
        if scores_are_recorded():
            _recorded_scores.get()[self] = weights

    def scores_in(self, recorded):
        """The scores of this layer among those recorded, a dictionary from layer to weights."""
        if self not in recorded:
            raise ValueError(
                "Attention scores come from a call with tensors, not symbolic inputs, of a layer "
                f"whose call passes them to `record_scores`. Received: none from {self.name}."
            )
        return recorded[self]
