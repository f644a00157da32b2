"""The weights of linear projections in all layers, and what LoRA adds to them."""

import dataclasses
import itertools

from keras import initializers, ops

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.ops.compiled import has_own_gradients, projected
from keras_transformer.ops.projection import columns_of, project

TARGETS = (
    "query",
    "key",
    "value",
    "output",
    "gate",
    "widen",
    "narrow",
    "query_key_value",
    "key_value",
    "gate_widen",
)


@dataclasses.dataclass(frozen=True)
class LoRA:
    """Which projections are tuned by a product of two narrow matrices, and their rank.

    Args:
        rank: width between the two matrices, at least 1.
        alpha: their product is scaled by `alpha / rank`; positive.
        targets: names of projections, from `TARGETS`.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))
        check_integer("rank", self.rank)
        check_number("alpha", self.alpha, above=0)
        object.__setattr__(self, "alpha", float(self.alpha))
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets:
            raise ValueError(
                f"targets must be one or more of {', '.join(TARGETS)}. "
                f"Received: {', '.join(unknown) or 'none'}."
            )

    def config(self):
        return {"rank": self.rank, "alpha": self.alpha, "targets": list(self.targets)}


@dataclasses.dataclass(frozen=True)
class Adapter:
    """What LoRA adds to some rows of a kernel: `scale * up @ down`.

    Args:
        target: its name in `LoRA.targets`.
        start: index of the first row.
        down: (rank, input_dim).
        up: (rows, rank).
        scale: a number.
    """

    target: str
    start: int
    down: object
    up: object
    scale: float


class LoRAMixin:
    """A mixin for layers with projections that keeps `lora` in the config.

    If it is set, only the weights of LoRA are trained; `add_lora` creates such layers.
    """

    def __init__(self, *args, lora=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.lora = LoRA(**lora) if isinstance(lora, dict) else lora

    def add_weight(self, *args, trainable=True, name=None, **kwargs):
        name = name or "weight"
        is_trained = trainable and (self.lora is None or "_lora_" in name)
        weight = super().add_weight(*args, trainable=is_trained, name=name, **kwargs)
        weight.is_state = not trainable  # Keras lists it after the others, frozen or not
        return weight

    def get_config(self):
        lora = {} if self.lora is None else {"lora": self.lora.config()}
        return {**super().get_config(), **lora}


class Projection:
    """A linear projection, which is called with vectors.

    Args:
        kernel: (output_dim, input_dim).
        bias: (output_dim,), or None.
        adapters: a list of `Adapter`, which are added to the kernel.
        widths: of the projections that are side by side in it, a tuple; the whole if empty.
    """

    def __init__(self, kernel, bias=None, adapters=(), widths=()):
        self.kernel = kernel
        self.bias = bias
        self.adapters = adapters
        self.widths = widths

    def __call__(self, inputs):
        if not self.adapters and has_own_gradients(inputs, self.kernel):
            return projected(inputs, self.kernel, self.bias)
        outputs = project(inputs, self.kernel, self.bias)
        if self.adapters:
            down, up = self._down_up()
            outputs = outputs + project(project(inputs, down), up)
        return outputs

    def _read_kernel(self):
        """The kernel, in an export's graph made of the columns that are stored instead."""
        columns = columns_of(self.kernel)
        if columns is None:
            return self.kernel
        return ops.transpose(columns)[: self.kernel.shape[0]]

    def merged_kernel(self):
        """The kernel, including everything LoRA adds to it, (output_dim, input_dim)."""
        if not self.adapters:
            return self._read_kernel()
        down, up = self._down_up()
        return self._read_kernel() + ops.matmul(up, down)

    def rows(self, start, stop):
        """The projection to some of the outputs."""
        bias = None if self.bias is None else self.bias[start:stop]
        adapters = []
        if self.adapters:
            down, up = self._down_up()
            adapters = [Adapter("rows", 0, down, up[start:stop], 1.0)]
        return Projection(self._read_kernel()[start:stop], bias, adapters)

    def _down_up(self):
        """All adapters as one pair, (ranks, input_dim) and (output_dim, ranks)."""
        ups = []
        for adapter in self.adapters:
            after = self.kernel.shape[0] - adapter.start - adapter.up.shape[0]
            ups.append(ops.pad(adapter.up * adapter.scale, ((adapter.start, after), (0, 0))))
        downs = [ops.convert_to_tensor(adapter.down) for adapter in self.adapters]
        return ops.concatenate(downs), ops.concatenate(ups, axis=1)


def add_projection(layer, name, input_dim, output_dims, initializer, use_bias=True):
    """Adds the weights of a projection, or of several side by side, to a layer.

    Kernels are kept as (output, input). An export stores the transpose, which is faster to decode
    with on most processors: `ops.projection.with_columns`.

    Args:
        layer: the `keras.layers.Layer` that gets the weights.
        name: name of the projection, to which "_kernel" and "_bias" are appended. The name of
            several joins their names, as in "query_key_value".
        input_dim: width of the inputs.
        output_dims: width of the outputs, or a tuple with that of each projection.
        initializer: a Keras initializer, called separately for each kernel.
        use_bias: whether there is a bias, initially zero.

    Returns:
        A `Projection` of kernel, (all output_dims, input_dim), and bias, (all output_dims,), or
        None. If the layer has `lora`, both are frozen, and the projections that it targets have
        adapters.
    """
    output_dims = (output_dims,) if isinstance(output_dims, int) else tuple(output_dims)

    def draw(shape, dtype=None):
        # In the shape from which initializers compute fan-in and fan-out.
        kernels = [initializer.clone()((input_dim, width), dtype) for width in output_dims]
        return ops.transpose(ops.concatenate(kernels, axis=1))

    lora = getattr(layer, "lora", None)
    shape = (sum(output_dims), input_dim)
    kernel = layer.add_weight(
        name=f"{name}_kernel",
        shape=shape,
        initializer=draw,
        autocast=False,  # each product casts it
    )
    bias = None
    if use_bias:
        bias = layer.add_weight(
            name=f"{name}_bias",
            shape=shape[:1],
            initializer="zeros",
            autocast=False,  # added in float32 where that costs nothing
        )
    adapters = [] if lora is None else list(_adapters(layer, name, lora, input_dim, output_dims))
    # TensorFlow's checkpoints and SavedModels only hold attributes of the layer itself.
    for weight in (kernel, bias, *(w for adapter in adapters for w in (adapter.down, adapter.up))):
        if weight is not None:
            setattr(layer, weight.name, weight)
    return Projection(kernel, bias, adapters, output_dims)


def _adapters(layer, name, lora, input_dim, output_dims):
    """Adds the weights of LoRA to the parts of a projection, and to the whole, by name."""
    names = name.split("_")
    parts = []
    if len(names) == len(output_dims) > 1:
        starts = itertools.accumulate(output_dims, initial=0)
        parts = list(zip(names, starts, output_dims, strict=False))
    # As in the authors' code: uniform within 1 / sqrt(input_dim), and zero.
    limit = input_dim**-0.5
    uniform = initializers.RandomUniform(-limit, limit)
    for target, start, height in [*parts, (name, 0, sum(output_dims))]:
        if target in lora.targets:
            down = layer.add_weight(
                name=f"{target}_lora_down",
                shape=(lora.rank, input_dim),
                initializer=uniform.clone(),
            )
            up = layer.add_weight(
                name=f"{target}_lora_up", shape=(height, lora.rank), initializer="zeros"
            )
            yield Adapter(target, start, down, up, lora.alpha / lora.rank)
