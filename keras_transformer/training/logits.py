"""Which of Keras's losses and metrics take probabilities, so that logits give wrong numbers."""

import types

import keras

# These have no argument for logits.
ONLY_PROBABILITIES = (
    keras.losses.KLDivergence, keras.losses.Poisson, keras.losses.kl_divergence,
    keras.losses.poisson, keras.metrics.KLDivergence, keras.metrics.Poisson,
    keras.metrics.SensitivityAtSpecificity, keras.metrics.SpecificityAtSensitivity,
    keras.metrics.PrecisionAtRecall, keras.metrics.RecallAtPrecision,
)  # fmt: skip
# Without a threshold they compare with none.
OF_THE_HIGHEST = (keras.metrics.F1Score, keras.metrics.FBetaScore)


def check_take_logits(model, loss, metrics, weighted_metrics):
    """Raises ValueError if losses or metrics of Keras would take a model's logits otherwise.

    Those that somebody else wrote are not judged, nor is any for a model that does not know what it
    returns. The others are arguments of `compile`.
    """
    if not getattr(model, "gives_logits", False):
        return
    for name, given, get in (
        ("loss", loss, keras.losses.get),
        ("metrics", metrics, keras.metrics.get),
        ("weighted_metrics", weighted_metrics, keras.metrics.get),
    ):
        for each in keras.tree.flatten(given):
            if advice := _advice(each, get, model.output_shape[-1]):
                shown = each if isinstance(each, str) else getattr(each, "name", None)
                raise ValueError(
                    f"The model returns logits, which {name} would take for probabilities. "
                    f"{advice}. Received: {name}={shown or each.__name__!r}."
                )


def _advice(each, get, num_logits):
    """What to give in place of a loss or metric that takes probabilities; "" for all others."""
    if each in ("accuracy", "acc"):  # Keras looks at the labels and the outputs
        return "Give BinaryAccuracy(threshold=0.0)" if num_logits == 1 else ""
    if each in ("crossentropy", "ce"):
        return "Give SparseCategoricalCrossentropy(from_logits=True), or that of your labels"
    each = get(each) if isinstance(each, str) else each
    is_function = isinstance(each, types.FunctionType)
    kind = each if is_function else type(each)
    if not kind.__module__.startswith("keras."):
        return ""
    if kind in ONLY_PROBABILITIES:
        return "It has no argument for logits: give a cross-entropy with from_logits=True"
    if is_function:  # Keras's have a class of the same defaults
        name = "".join(word.capitalize() for word in each.__name__.split("_"))
        kind = getattr(keras.losses, name, None) or getattr(keras.metrics, name, None)
        if kind is None:
            return ""
        each = kind()
    name, arguments = kind.__name__, each.get_config()
    if arguments.get("from_logits") is False:
        return f"Give {name}(from_logits=True)"
    for threshold in ("threshold", "thresholds"):
        is_highest = kind in OF_THE_HIGHEST or arguments.get("top_k") is not None
        unset = (0.5,) if is_highest else (0.5, None)
        if threshold in arguments and arguments[threshold] in unset:
            return f"Give {name}({threshold}=0.0)"
    return ""
