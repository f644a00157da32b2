"""The interface for decoding and serving: functions of tensors, independent of the model.

`functions` of each module in `models/` returns them for its own models. Write your own to decode
or serve another kind of model.
"""

import dataclasses
from collections.abc import Callable, Sequence

from keras import ops

from keras_transformer.ops.masks import beam_mask


@dataclasses.dataclass(frozen=True)
class TranslatorFunctions:
    """The functions of a translation model.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        encode: source_ids (batch, source) -> the encoded source, a nested structure, batch first.
        start_cache: encoded, num_beams -> cache, a nested structure, batch first; axes of
            size 0 grow with each step.
        step: encoded, token_ids (batch, beams), parents (batch, beams), position, cache ->
            logits (batch, beams, vocabulary) and the extended cache; see `decoding`.
        logits: source_ids, target_ids -> logits (batch, target, vocabulary).
        attention_scores: source_ids, target_ids -> a dictionary of lists of weights
            (batch, heads, target, source), one per layer; None if the model has none.
        has_static_cache: whether `start_cache` accepts a further argument `length`, the maximum
            number of steps, and then returns a cache whose shapes no step changes, which XLA
            needs to compile the decoding.
    """

    weights: Sequence
    encode: Callable
    start_cache: Callable
    step: Callable
    logits: Callable
    attention_scores: Callable | None = None
    has_static_cache: bool = False


@dataclasses.dataclass(frozen=True)
class GeneratorFunctions:
    """The functions of a language model.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        start_cache: batch_size, num_beams -> cache, a nested structure, batch first; axes of
            size 0 grow with each step.
        step: token_ids (batch, beams), parents (batch, beams), position, cache -> logits
            (batch, beams, vocabulary) and the extended cache; see `decoding`.
        logits: token_ids (batch, length) -> logits (batch, length, vocabulary).
        attention_scores: token_ids -> a dictionary of lists of weights
            (batch, heads, length, length), one per layer; None if the model has none.
        has_static_cache: as for `TranslatorFunctions`.
        may_end: whether the model ends texts with the end id, 3; otherwise texts have the
            requested length.
    """

    weights: Sequence
    start_cache: Callable
    step: Callable
    logits: Callable
    attention_scores: Callable | None = None
    has_static_cache: bool = False
    may_end: bool = False


@dataclasses.dataclass(frozen=True)
class ClassifierFunctions:
    """The functions of a classifier.

    Args:
        weights: the Keras variables or tf.Variables that the functions read.
        logits: token_ids (batch, length), padded with 0 -> logits (batch, labels).
        attention_scores: token_ids -> the pair of the ids that the model reads, (batch, length),
            and a dictionary of lists of weights (batch, heads, length, length), one per
            layer; None if the model has none.
    """

    weights: Sequence
    logits: Callable
    attention_scores: Callable | None = None


def empty_mask(batch_size, length, num_beams):
    """The part of a cache that says which positions each beam may look at, {name: boolean}.

    Its name distinguishes a mask of full size, with room for `length` steps, from one that grows.
    """
    if length is None:
        return {"mask": ops.zeros((batch_size, num_beams, 0), "bool")}
    return {"static_mask": ops.zeros((batch_size, num_beams, length * num_beams), "bool")}


def mask_of_step(cache, parents, position):
    """What the layers need to take one step with a cache that has an `empty_mask`.

    Args:
        cache: from the previous step.
        parents: the beam of the previous step that each beam extends, (batch, beams).
        position: number of earlier tokens, an integer scalar.

    Returns:
        The name of the mask in the cache; the mask with the newest positions; and the position
        if the cache has its full size, otherwise None.
    """
    if "mask" in cache:
        return "mask", beam_mask(cache["mask"], parents), None
    start = position * parents.shape[1]
    return "static_mask", beam_mask(cache["static_mask"], parents, start), position


def layer_names(model):
    """The names of a model's layers; none for anything that is not a Keras model."""
    return [layer.name for layer in getattr(model, "layers", ())]


def check_layers(model, names, builders):
    """Raises ValueError unless a model has all layers that `builders` create.

    Args:
        model: a Keras model.
        names: names of the layers.
        builders: the functions that build such models, for the message.
    """
    if missing := [name for name in names if name not in layer_names(model)]:
        raise ValueError(
            f"The model must come from {builders}; for another model, pass its functions. "
            f"Received: {model!r} without a layer {', '.join(missing)}."
        )
