"""How the weights of models are divided among devices, for `keras.distribution` on JAX."""

import keras

# Kernels are kept as (output, input). The first projection of a pair is divided by its outputs,
# the second by its inputs, so that devices communicate once after each pair.
_FIRST = r".*/(query|query_key_value|key_value|widen|gate_widen)"
_SECOND = r".*/(output|narrow)_kernel"
_TOKEN_TABLE = r".*(?<!position_embedding)(?<!position_bias)/embeddings"


def layout_map(device_mesh, axis="model"):
    """Divides attention heads, feed-forward networks and vocabularies along one axis of a mesh.

    Use it for models too large for one device: every device keeps a part of each large kernel.
    It works on the JAX backend only; TensorFlow silently ignores layouts.

    Source: Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053).

    Args:
        device_mesh: a `keras.distribution.DeviceMesh`.
        axis: name of the axis. Its size must divide `intermediate_dim`, the width of all heads
            together, and the vocabulary size; JAX refuses other sizes.

    Returns:
        A `keras.distribution.LayoutMap` for `keras.distribution.ModelParallel`.

    Raises:
        ValueError: on a backend other than JAX, or if the mesh has no such axis.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Layouts need the JAX backend: set KERAS_BACKEND=jax. On TensorFlow use "
            "keras_transformer.training.choose_strategy. "
            f"Received: backend {keras.backend.backend()!r}."
        )
    if axis not in device_mesh.axis_names:
        raise ValueError(
            f"axis must be one of the mesh's, {', '.join(device_mesh.axis_names)}. "
            f"Received: axis={axis!r}."
        )
    layouts = keras.distribution.LayoutMap(device_mesh)
    layouts[_FIRST + "_kernel"] = (axis, None)
    layouts[_FIRST + "_bias"] = (axis,)
    layouts[_SECOND] = (None, axis)
    layouts[_TOKEN_TABLE] = (axis, None)
    return layouts
