"""The base class of all models here, and what a search asks of a model."""

from keras import ops

from keras_transformer.layers.checks import check_arguments
from keras_transformer.ops.cache import append_to_cache
from keras_transformer.ops.masks import beam_mask, causal_mask, combine_masks
from keras_transformer.ops.segments import segment_mask
from keras_transformer.training.model import FunctionalModel


class Part(property):
    """The layer of a `TextModel` that has a name, as an attribute; None if there is none.

    Args:
        *names: names of the layer in the model; the first one that is there counts.
    """

    def __init__(self, *names):
        def find(model):
            layers = {layer.name: layer for layer in model.layers}
            return next((layers[name] for name in names if name in layers), None)

        super().__init__(find)


class TextModel(FunctionalModel):
    """A functional Keras model of this library, whose parts are attributes.

    It composes, trains and saves like every functional model: its config is that of its layers, so
    it is rebuilt as it is, with LoRA, frozen layers or another dtype. The parts that a class
    sets to None do not exist in its models.

    `Translator`, `Generator` and `Classifier` accept every object with the attributes and methods
    of these classes that they use, of a Keras model or not:

    | method | translation | language model | classifier |
    |---|---|---|---|
    | `encode(source_ids)` | the encoded source, a nest of tensors, batch first | | |
    | `start_cache(...)` | `encoded, num_beams, length` | `batch_size, num_beams, length` | |
    | `step(...)` | `encoded, token_ids, parents, position, cache` | without `encoded` | |
    | `prefill(...)` | `encoded, token_ids, next_ids, count, cache` | without `encoded` | |
    | `logits(...)` | `source_ids, target_ids` | `token_ids` | `token_ids` |
    | `attention_scores(...)` | like `logits` | like `logits` | like `logits` |

    Only `prefill` and `attention_scores` are optional. Such an object has `weights`, its Keras
    variables or tf.Variables, and may have `has_static_cache` and, as a language model, `pads_left`
    and `may_end`: whether it ends texts with the end token.

    Attributes:
        kind: name of the kind of model, a string.
        gives_logits: whether its output is logits, so that `compile` refuses losses and metrics of
            Keras that would take them for probabilities.
        has_static_cache: whether `start_cache` accepts a `length`, the most steps that will be
            taken, and then returns a cache whose shapes no step changes, which XLA needs to
            compile a search.
        pads_left: whether `start_cache` accepts `starts`, how many of the first tokens of each row
            are padding, so that one pass of `prefill` reads prompts of different lengths.
    """

    kind = None
    gives_logits = True
    has_static_cache = False
    pads_left = False


class TokenModel(TextModel):
    """A model whose only input is `token_ids`."""

    def logits(self, token_ids):
        """Scores each next token, or of a classifier every label, outside training.

        Args:
            token_ids: (batch, length); 0 is padding, except in a `LanguageModel`.

        Returns:
            Float32 logits, (batch, length, vocabulary) or (batch, labels).
        """
        return self(token_ids, training=False)


class DecoderModel(TextModel):
    """A model with a `Decoder`, which reads tokens step by step or several at once.

    A subclass has `_logits_of`, from vectors to logits.

    Attributes:
        positions: adds positions to the vectors of tokens; None if the attention sees them itself.
        embedding_norm: normalises the vectors after that; None if nothing does.
        decoder: `Decoder`.
    """

    has_static_cache = True
    positions = Part("positions")
    embedding_norm = Part("embedding_norm")
    decoder = Part("decoder")

    def with_positions(self, embedded, segments=None):
        """Vectors of tokens, (batch, length, dim), after positions and norm, if there are any."""
        add = self.positions and (lambda vectors: self.positions(vectors, segments=segments))
        return placed(embedded, add, self.embedding_norm)

    def _empty_cache(self, batch_size, length, num_beams, starts=None):
        keys_values = self.decoder.empty_cache(batch_size, length, num_beams)
        padding = {} if starts is None else {"starts": starts}
        return {"keys_values": keys_values, **empty_mask(batch_size, length, num_beams), **padding}

    def _decode_step(self, embedded, source, source_mask, parents, position, cache):
        """Logits and the extended cache, of embedded tokens (batch, beams, dim)."""
        place = position - cache.get("starts", 0)
        step = self.positions and (lambda vectors: self.positions.step(vectors, place))
        vectors = placed(embedded, step, self.embedding_norm)
        name, mask, position = mask_of_step(cache, parents, position)
        vectors, keys_values = self.decoder.step(
            vectors, source, source_mask, cache["keys_values"], mask, position
        )
        return self._logits_of(vectors), {**cache, "keys_values": keys_values, name: mask}

    def _prefill(self, embedded, source, source_mask, next_ids, count, cache):
        """Log-probabilities or None, and the cache, of embedded tokens (batch, length, dim)."""
        segments = mask = None
        if "starts" in cache:  # the padding before a row is a text of its own
            length = ops.shape(embedded)[1]
            is_text = ops.arange(length, dtype="int32") >= cache["starts"][:, None]
            segments = ops.cast(is_text, "int32")  # (batch, length)
            mask = combine_masks(causal_mask(length), segment_mask(segments, segments))
        vectors = self.with_positions(embedded, segments)
        vectors, keys_values = self.decoder.step(vectors, source, source_mask, None, mask)
        log_probs = None
        if next_ids is not None:
            log_probs = log_probs_of_next(self._logits_of, vectors, next_ids)
        return log_probs, prefilled_cache(cache, keys_values, count)


def placed(embedded, positions, norm):
    """Vectors of tokens after positions are added and the sums normalised; each may be None."""
    vectors = embedded if positions is None else positions(embedded)
    return vectors if norm is None else norm(vectors)


def check_kind(model, model_class, methods, builders):
    """Raises ValueError unless a model is of a class, or has the methods that are needed of it.

    Args:
        model: anything.
        model_class: a subclass of `TextModel`.
        methods: names of what another model must have.
        builders: the functions that build such models, for the message.
    """
    if isinstance(model, model_class):
        return
    missing = [name for name in methods if not hasattr(model, name)]
    if isinstance(model, TextModel):
        received = f"a model of the kind {model.kind}"
    elif missing:
        received = f"{model!r} without {', '.join(missing)}"
    else:
        return
    raise ValueError(
        f"The model must come from {builders}, or have the methods {', '.join(methods)} as "
        f"`models.TextModel` documents them. Received: {received}."
    )


# What blocks are made of, as arguments of `EncoderBlock`.
BLOCKS = {
    "transformer": {},
    # Touvron et al. 2023, section 2.2 (https://arxiv.org/abs/2302.13971).
    "llama": {
        "normalization": "rms",
        "gated": True,
        "activation": "silu",
        "use_bias": False,
        "attention_arguments": {"rotary": {}},
    },
}


def size_named(sizes, size, dimensions, blocks="transformer"):
    """The dimensions of a published size, with those that replace them.

    Own `attention_arguments` are added to those of the blocks. Networks that are `gated` in the end
    are two thirds as wide inside as the size says, rounded up to a multiple of 8, unless the
    `dimensions` tell their width: they have three matrices instead of two.

    Raises:
        ValueError: if there is no such size, or no such `blocks`, or if a `position_bias` would be
            added to rotary positions that only the blocks ask for.
    """
    if size not in sizes:
        raise ValueError(f"size must be one of {', '.join(sizes)}. Received: size={size!r}.")
    if blocks not in BLOCKS:
        raise ValueError(f"blocks must be one of {', '.join(BLOCKS)}. Received: blocks={blocks!r}.")
    chosen = {**sizes[size], **BLOCKS[blocks]}
    if dimensions.get("gated", chosen.get("gated")) and "intermediate_dim" in chosen:
        chosen["intermediate_dim"] = -(-2 * chosen["intermediate_dim"] // (3 * 8)) * 8
    own = dimensions.get("attention_arguments")
    check_arguments("attention_arguments", own)
    rotates = "rotary" in chosen.get("attention_arguments", {}) and "rotary" not in (own or {})
    if rotates and dimensions.get("position_bias") is not None:
        raise ValueError(
            f"blocks={blocks!r} has rotary positions, to which a position_bias would be added. To "
            'replace them, give attention_arguments={"rotary": None}; for both, {"rotary": {}}. '
            f"Received: position_bias={dimensions['position_bias']}."
        )
    if "attention_arguments" in dimensions and "attention_arguments" in chosen:
        own = {**chosen["attention_arguments"], **(own or {})}  # they add to those of the blocks
        dimensions = {**dimensions, "attention_arguments": own}
    return {**chosen, **dimensions}


def has_own_positions(block):
    """Whether the attention of blocks with these arguments sees positions by itself."""
    rotary = (block.get("attention_arguments") or {}).get("rotary")
    return rotary is not None or block.get("position_bias") is not None


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


def prefilled_cache(cache, keys_values, count):
    """The cache after the first beam of each row has read some tokens, which all beams see.

    Args:
        cache: before the first step, with `keys_values` of a `Decoder` and an `empty_mask`.
        keys_values: of the tokens, as `Decoder.step` returns them.
        count: how many of the tokens are read, an integer scalar; all of them if the cache grows.
    """
    name = "mask" if "mask" in cache else "static_mask"
    batch_size, num_beams, columns = ops.shape(cache[name])
    start, columns = (None, count * num_beams) if name == "mask" else (0, columns)

    def written(past, newest):
        num_heads, length, dim = ops.shape(newest)[1:]
        # Every position has a column for each beam; those of the other beams stay empty.
        newest = ops.pad(newest[:, :, :, None], [[0, 0]] * 3 + [[0, num_beams - 1], [0, 0]])
        newest = ops.reshape(newest, (batch_size, num_heads, length * num_beams, dim))
        return append_to_cache(past, newest, start)

    keys_values = [
        tuple(map(written, past, newest))
        for past, newest in zip(cache["keys_values"], keys_values, strict=True)
    ]
    column = ops.arange(columns, dtype="int32")
    is_read = ops.logical_and(column % num_beams == 0, column < count * num_beams)
    if "starts" in cache:
        is_text = column // num_beams >= cache["starts"][:, None, None]
        is_read = ops.logical_and(is_read, is_text)  # (batch, 1, columns)
    mask = ops.broadcast_to(is_read, (batch_size, num_beams, columns))
    return {**cache, "keys_values": keys_values, name: mask}


def log_probs_of_next(logits_of, vectors, next_ids):
    """The log-probability of each next token; a few rows at a time, for all logits may be too many.

    Args:
        logits_of: from vectors, (batch, length, dim), to float32 logits.
        vectors: (batch, length, dim).
        next_ids: (batch, length).

    Returns:
        Float32 (batch, length), in nats.
    """

    def of_row(row):
        log_probs = ops.log_softmax(logits_of(row[0][None])[0], axis=-1)
        return ops.take_along_axis(log_probs, row[1][:, None], axis=-1)[:, 0]

    return ops.map(of_row, (vectors, next_ids))
