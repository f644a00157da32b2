"""The weights of linear projections, as all layers here keep them."""

from keras import ops


def add_projection(layer, name, input_dim, output_dim, initializer, count=1, use_bias=True):
    """Adds the weights of `count` projections side by side to a layer.

    Kernels are kept as (output, input): the products of decoding, which have few rows, are
    then up to twice as fast with oneDNN, and slower without it (TF_ENABLE_ONEDNN_OPTS=0).

    Args:
        layer: the `keras.layers.Layer` that gets them.
        name: of the projection, to which "_kernel" and "_bias" are added.
        input_dim: width of the inputs.
        output_dim: width of the outputs of each projection.
        initializer: a Keras initializer, called for each kernel by itself.
        count: number of projections.
        use_bias: whether there is a bias, zero at first.

    Returns:
        The pair of kernel, (count * output_dim, input_dim), and bias, (count * output_dim,),
        or None; for `ops.project`.
    """

    def draw(shape, dtype=None):
        # Of the shape that initializers count their fan-in and fan-out by.
        kernels = [initializer.clone()((input_dim, output_dim), dtype) for _ in range(count)]
        return ops.transpose(ops.concatenate(kernels, axis=1))

    shape = (count * output_dim, input_dim)
    kernel = layer.add_weight(name=f"{name}_kernel", shape=shape, initializer=draw)
    bias = None
    if use_bias:
        bias = layer.add_weight(name=f"{name}_bias", shape=shape[:1], initializer="zeros")
    return kernel, bias
