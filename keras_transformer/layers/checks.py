"""What a layer refuses: vectors and masks of other shapes, other inputs, and `quantize`."""

from keras_transformer.layers.internals import keras_mask_of
from keras_transformer.ops.masks import as_boolean


class InputChecksMixin:
    """For layers whose weights fit only the inputs that they were built for.

    Their outputs have the shape of the first of these.
    """

    _widths = None

    def compute_output_shape(self, input_shape, *other_shapes):
        return input_shape

    def _build_for(self, **shapes):
        """Keeps the widths of the inputs, by name; the shape of an input may be None."""
        check_vectors(**shapes)
        self._widths = {name: s[-1] for name, s in shapes.items() if s is not None}

    def _check_inputs(self, **inputs):
        """Raises ValueError for vectors of another shape, and for inputs it was built without."""
        check_vectors(**inputs)
        for name, vectors in inputs.items():
            if vectors is None or self._widths is None:
                continue
            if name not in self._widths:
                raise ValueError(
                    f"The layer was built without {name}, and has no weights for it. Give it in "
                    f"every call from the first on, or make another layer. Received: {name} of "
                    f"shape {tuple(vectors.shape)} for {self.name}."
                )
            if vectors.shape[-1] != self._widths[name]:
                raise ValueError(
                    f"{name} must be as wide as when the layer was built: {self._widths[name]} "
                    f"numbers per token. Received: {name} of shape {tuple(vectors.shape)} for "
                    f"{self.name}."
                )


class NotQuantizedMixin:
    """Refuses Keras's `quantize`, which supports Dense and Embedding layers only.

    For layers without sublayers, the only ones that `Model.quantize` calls.
    """

    def quantize(self, mode=None, type_check=True, config=None):
        raise ValueError(
            "Keras cannot quantize layers of keras_transformer, which hold most of the weights. "
            "Export the model for a runtime that computes in int8, with `keras-transformer convert "
            "--to ctranslate2`, or leave them out with `filters`. "
            f"Received: mode={mode!r} for {self.name}."
        )


def check_vectors(**inputs):
    """Raises ValueError unless each input, a tensor, its shape or None, has three axes."""
    for name, vectors in inputs.items():
        shape = tuple(getattr(vectors, "shape", vectors) or ())
        if vectors is not None and len(shape) != 3:
            raise ValueError(
                f"{name} must be vectors of the shape (batch, length, dim). Join axes, or add one, "
                f"with keras.ops.reshape. Received: {name} of shape {shape}."
            )


def check_ids(name, ids):
    """Raises ValueError unless token ids have two axes."""
    if len(ids.shape) != 2:
        raise ValueError(
            f"{name} must be integers of the shape (batch, length). Add an axis to a single row "
            f"with ids[None]. Received: {name} of shape {tuple(ids.shape)}."
        )


def check_per_token(name, values, *inputs):
    """Raises ValueError unless there is one value for each vector of all inputs, side by side.

    Args:
        name: of the values, such as `padding_mask`.
        values: (batch, length); None passes.
        *inputs: vectors, (batch, ..., dim); lengths that are not known yet may be any.
    """
    if values is None:
        return
    lengths = [vectors.shape[1] for vectors in inputs]
    length = None if None in lengths else sum(lengths)
    shape = tuple(values.shape)
    if len(shape) != 2 or (None not in (length, shape[1]) and shape[1] != length):
        expected = "length" if length is None else length
        raise ValueError(
            f"{name} must have the shape (batch, {expected}), one value for each token. "
            f"Received: {name} of shape {shape}."
        )


def mask_per_token(name, mask, *inputs):
    """A mask as a boolean tensor, or None, after the check of `check_per_token`."""
    if mask is None:
        return None
    mask = as_boolean(mask)
    check_per_token(name, mask, *inputs)
    return mask


def implicit_mask(inputs, padding_mask, name="padding_mask"):
    """The padding mask of a call, or else the one that Keras carries with the inputs."""
    if padding_mask is None:
        return keras_mask_of(inputs)
    return mask_per_token(name, padding_mask, inputs)


def explicit_mask(inputs, mask):
    """A mask that the caller gave, or None for the one that Keras passes on with the inputs."""
    return None if mask is keras_mask_of(inputs) else mask


def check_arguments(name, arguments):
    """Raises ValueError unless arguments are None or a dictionary of them by name."""
    if arguments is not None and not isinstance(arguments, dict):
        raise ValueError(
            f"{name} must be a dictionary of arguments by name, or None. "
            f"Received: {name}={arguments!r}."
        )
