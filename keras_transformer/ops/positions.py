"""Sinusoidal and rotary positions, and distances."""

import math

from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.ops.projection import known_rows
from keras_transformer.ops.softmax import wide_dtype


def sinusoidal_positions(length, dim, start=0, max_wavelength=10000, interleaved=True):
    """Sines and cosines of the positions `start` to `start + length - 1`.

    Column 2i holds sin(p / max_wavelength^(2i/dim)), column 2i+1 the cosine.
    Source: Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762).

    Args:
        length: number of positions, an integer scalar; may be a tensor.
        dim: number of columns, even.
        start: first position, in tokens; may be a tensor.
        max_wavelength: longest wavelength, in tokens, divided by 2 pi.
        interleaved: whether each sine is next to its cosine, or all sines come before all cosines.

    Returns:
        float32 (length, dim), under every dtype policy: bfloat16 cannot tell
        position 257 from 258.

    Raises:
        ValueError: if `dim` is odd.

    Examples:
        >>> [round(float(value), 2) for value in sinusoidal_positions(2, 2)[1]]
        [0.84, 0.54]
    """
    check_even(dim)
    positions = ops.cast(start + ops.arange(length, dtype="int32"), "float32")
    columns = ops.arange(0, dim, 2, dtype="float32")
    rates = ops.exp(columns * (-math.log(max_wavelength) / dim))
    angles = positions[:, None] * rates  # (length, dim / 2)
    if not interleaved:
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(pairs, (-1, dim))


def check_even(dim):
    """Raises ValueError if `dim` is odd; layers call it before they compute anything."""
    if dim % 2:
        raise ValueError(
            "dim must be even so that every sine has its cosine. "
            f"Choose e.g. {dim + 1}. Received: dim={dim}."
        )


def rotary_rates(dim, max_wavelength=10000, scaling=None):
    """By how many radians a token further each pair of columns is rotated.

    Source: Su et al. 2021, section 3.2 (https://arxiv.org/abs/2104.09864).

    Args:
        dim: number of columns, even.
        max_wavelength: longest wavelength, in tokens, divided by 2 pi.
        scaling: how rates are lowered for longer sequences than in training, as of
            `RotaryEmbedding`; None for not at all.

    Returns:
        A list of dim / 2 numbers.

    Raises:
        ValueError: if `dim` is odd, or for a scaling that is not one of those listed.

    Examples:
        >>> rotary_rates(4)
        [1.0, 0.01]
    """
    check_even(dim)
    if scaling is None:
        return [max_wavelength ** (-column / dim) for column in range(0, dim, 2)]
    kind = check_scaling(scaling)
    factor = scaling["factor"]
    if kind == "ntk":
        if dim < 4:
            raise ValueError(f"The scaling 'ntk' needs at least 4 columns. Received: dim={dim}.")
        return rotary_rates(dim, max_wavelength * factor ** (dim / (dim - 2)))
    rates = rotary_rates(dim, max_wavelength)
    if kind == "linear":
        return [rate / factor for rate in rates]
    low, high = scaling["low_frequency"], scaling["high_frequency"]
    turns = (rate * scaling["original_length"] / (2 * math.pi) for rate in rates)
    kept = (min(max((turn - low) / (high - low), 0.0), 1.0) for turn in turns)
    return [rate * (share + (1 - share) / factor) for rate, share in zip(rates, kept, strict=True)]


SCALINGS = {
    "linear": ("factor",),
    "ntk": ("factor",),
    "llama3": ("factor", "low_frequency", "high_frequency", "original_length"),
}


def check_scaling(scaling):
    """The type of a scaling; raises ValueError unless it has the numbers that belong to it."""
    kind = scaling.get("type") if isinstance(scaling, dict) else None
    if (
        not isinstance(kind, str)
        or kind not in SCALINGS
        or set(scaling) != {"type", *SCALINGS[kind]}
    ):
        forms = (
            "{" + ", ".join([f"'type': '{kind}'", *(f"'{name}': ..." for name in names)]) + "}"
            for kind, names in SCALINGS.items()
        )
        raise ValueError(f"scaling must be None or {' or '.join(forms)}. Received: {scaling!r}.")
    for name in SCALINGS[kind]:
        check_number(f"{name} of scaling", scaling[name], above=0)
    if "high_frequency" in scaling and scaling["high_frequency"] <= scaling["low_frequency"]:
        raise ValueError(
            "high_frequency of scaling must be above low_frequency: rates in between are mixed. "
            f"Received: {scaling!r}."
        )
    return kind


def rotate(inputs, positions, rates, interleaved=False):
    """Rotates the first columns of vectors, in pairs, by the angles positions * rates.

    Computed in float32 under every dtype policy.

    Args:
        inputs: (..., length, dim).
        positions: integers, (length,) or (1,), in tokens.
        rates: of `rotary_rates`, (pairs,); the first 2 * pairs columns are rotated.
        interleaved: whether a pair is two neighbouring columns, or one of the first half of those
            columns and one of the second.

    Returns:
        Same shape and dtype as `inputs`.

    Examples:
        >>> turned = rotate(keras.ops.array([[1.0, 0.0]]), keras.ops.array([1]), [math.pi / 3])
        >>> turned.numpy().round(2)
        array([[0.5 , 0.87]], dtype=float32)
    """
    wide = wide_dtype(inputs)
    angles = ops.cast(positions, wide)[:, None] * ops.convert_to_tensor(rates, wide)
    cosines, sines = ops.cos(angles), ops.sin(angles)  # (length, pairs)
    pairs, dim = len(rates), inputs.shape[-1]
    rotated = ops.cast(inputs[..., : 2 * pairs], wide)
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :pairs], rotated[..., pairs:]
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    if interleaved:
        # (..., pairs, 2) -> (..., 2 * pairs)
        sizes = ops.shape(inputs)[1:-1]
        turned = [ops.reshape(ops.stack(turned, axis=-1), (known_rows(inputs), *sizes, 2 * pairs))]
    turned = [ops.cast(part, inputs.dtype) for part in turned]
    if dim > 2 * pairs:
        turned.append(inputs[..., 2 * pairs :])
    return ops.concatenate(turned, axis=-1) if len(turned) > 1 else turned[0]


def relative_shift(logits):
    """Moves logits from the column of their distance to the column of their source position.

    In (batch, heads, target, source) logits, column c holds those of the distance source - 1 - c.
    The last target stands at the last source, so each target finds its sources one column further
    left than the target before it. Reading the same numbers as rows of another length moves them. A
    source after its target has no distance; its logit is meaningless and must be masked.

    Source: Dai et al. 2019, appendix B (https://arxiv.org/abs/1901.02860).

    Examples:
        >>> logits = keras.ops.array([[[[2, 1, 0], [5, 4, 3]]]])
        >>> relative_shift(logits)[0, 0].numpy().tolist()
        [[1, 0, 0], [5, 4, 3]]
    """
    _, num_heads, target, source = ops.shape(logits)
    padded = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (1, 0)))
    batch = known_rows(logits)
    rows = ops.reshape(padded, (batch, num_heads, source + 1, target))
    return ops.reshape(rows[:, :, 1:], (batch, num_heads, target, source))


def spread_by_distance(bias, target):
    """The bias of each pair of positions, from that of each distance.

    Args:
        bias: (batch, heads, target + source): at column c that of the distance c - target, which is
            the position of the source less that of the target.
        target: number of targets, an integer scalar.

    Returns:
        (batch, heads, target, source).

    Examples:
        >>> spread_by_distance(keras.ops.array([[[-2, -1, 0, 1, 2]]]), 2)[0, 0].numpy().tolist()
        [[0, 1, 2], [-1, 0, 1]]
    """
    batch_size, num_heads, columns = ops.shape(bias)
    # Reading equal rows as shorter ones moves each by one column further than the row before it.
    row = ops.concatenate([bias[:, :, target:], bias[:, :, :target]], axis=2)
    rows = ops.broadcast_to(row[:, :, None], (batch_size, num_heads, target, columns))
    rows = ops.reshape(rows, (known_rows(bias), num_heads, target * columns))
    # On a CPU the gradient of `slice` takes a tenth of the time of that of an index.
    rows = ops.slice(rows, (0, 0, 0), (batch_size, num_heads, target * (columns - 1)))
    rows = ops.reshape(rows, (known_rows(bias), num_heads, target, columns - 1))
    return ops.slice(rows, (0, 0, 0, 0), (batch_size, num_heads, target, columns - target))
