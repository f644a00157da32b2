"""What a model is decoded and served by: functions of tensors, whatever the model is.

`functions` of each module here returns them for its own models. Write them by hand to decode or
serve a model of another kind.
"""

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class TranslatorFunctions:
    """A model that translates.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        encode: source_ids (batch, source) -> the encoded source, a nested structure, batch first.
        start_cache: encoded, num_beams -> cache, a nested structure, batch first, whose
            axes of size 0 grow with each step.
        step: encoded, token_ids (batch, beams), parents (batch, beams), position, cache ->
            logits (batch, beams, vocabulary) and the longer cache; see `decoding`.
        logits: source_ids, target_ids -> logits (batch, target, vocabulary).
        attention_scores: source_ids, target_ids -> a dictionary of lists of weights
            (batch, heads, target, source), one a layer; None if the model has none to show.
    """

    weights: Sequence
    encode: Callable
    start_cache: Callable
    step: Callable
    logits: Callable
    attention_scores: Callable | None = None


@dataclasses.dataclass(frozen=True)
class GeneratorFunctions:
    """A language model.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        start_cache: batch_size, num_beams -> cache, a nested structure, batch first, whose
            axes of size 0 grow with each step.
        step: token_ids (batch, beams), parents (batch, beams), position, cache -> logits
            (batch, beams, vocabulary) and the longer cache; see `decoding`.
        logits: token_ids (batch, length) -> logits (batch, length, vocabulary).
        attention_scores: token_ids -> a dictionary of lists of weights
            (batch, heads, length, length), one a layer; None if the model has none to show.
    """

    weights: Sequence
    start_cache: Callable
    step: Callable
    logits: Callable
    attention_scores: Callable | None = None


@dataclasses.dataclass(frozen=True)
class ClassifierFunctions:
    """A classifier.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        logits: token_ids (batch, length), filled up with 0 -> logits (batch, labels).
        attention_scores: token_ids -> the pair of the ids that the model reads, (batch, length),
            and a dictionary of lists of weights (batch, heads, length, length), one a layer;
            None if the model has none to show.
    """

    weights: Sequence
    logits: Callable
    attention_scores: Callable | None = None


def check_layers(model, names, builders):
    """Raises ValueError unless a model has layers of these names, as `builders` make them."""
    layers = [layer.name for layer in getattr(model, "layers", ())]
    if missing := [name for name in names if name not in layers]:
        raise ValueError(
            f"The model must come from {builders}; for another, give its functions. Received: "
            f"{model!r} without a layer {', '.join(missing)}."
        )
