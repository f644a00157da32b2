"""GPT-2 in Hugging Face's format."""

from keras_transformer.convert.blocks import (
    ACTIVATIONS,
    activation_of,
    check_dense,
    check_equal,
    check_output,
    read_dimensions,
    written_dimensions,
)
from keras_transformer.convert.folder import (
    Converted,
    ModelFolder,
    num_padding_rows,
    write_json,
)
from keras_transformer.convert.generation import (
    GENERATION,
    end_ids_of,
    sampling_settings,
    written_sampling,
)
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    Weights,
    arrays_of,
    assign,
    rows_of,
)
from keras_transformer.convert.tokenizers import (
    TOKENIZER_JSON,
    files_of,
    load_tokenizer_of,
    name_in_errors,
    start_of,
)
from keras_transformer.layers.positions import PositionEmbedding
from keras_transformer.models.gpt2_model import gpt2
from keras_transformer.serving.settings import kept_sampling
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer, usual_added
from keras_transformer.tokenizers.control_ids import END_ID

PREFIX = "transformer."
SETTINGS = {
    "vocabulary_size": "vocab_size",
    "max_sequence_length": "n_positions",
    "num_layers": "n_layer",
    "hidden_dim": "n_embd",
    "num_heads": "n_head",
    "intermediate_dim": "n_inner",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
}
FIRST_ID = 4  # of the tokenizer: `serving` puts the control ids before GPT-2's ids
NORMS = {"around_self_attention.norm": "ln_1", "around_feed_forward.norm": "ln_2"}
# Its kernels are (input, output), ours (output, input).
PROJECTIONS = {
    "self_attention.query_key_value": "attn.c_attn",
    "self_attention.output_projection": "attn.c_proj",
    "feed_forward.widen": "mlp.c_fc",
    "feed_forward.narrow": "mlp.c_proj",
}


def rows(model):
    """The table of GPT-2."""
    yield Row(model.embedding.embeddings, ("wte.weight",), twins=("lm_head.weight",))
    yield from rows_of(model, {"positions": "wpe", "decoder.norm": "ln_f"})
    for index, block in enumerate(model.decoder.blocks):
        yield from rows_of(block, NORMS | PROJECTIONS, f"h.{index}.", transpose=True)


def load_gpt2(model, arrays):
    """Loads released weights into a model of `gpt2`.

    Args:
        model: a model of `gpt2` of the same size as the weights.
        arrays: {name: array} with Hugging Face's names, e.g. from
            `safetensors.numpy.load_file("model.safetensors")`. Names may start with
            "transformer.". Attention masks are ignored, the tied head must be equal to the
            table, and a warning names other extra arrays.

    Returns:
        The same model.

    Raises:
        ConversionError: a ValueError, if an array is missing, is there twice, has the wrong shape,
            or is neither finite nor of floating-point numbers.

    Examples:
        >>> from keras_transformer.models.gpt2_model import gpt2
        >>> load_gpt2(gpt2(num_layers=1, hidden_dim=4, num_heads=2), {})
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ArrayError: The weights of GPT-2 must include \
wte.weight. Received: 0 arrays.
    """
    arrays = arrays if isinstance(arrays, Weights) else Weights.of(arrays)
    assign(rows(model), arrays.renamed(_without_prefix), "GPT-2")
    return model


def read(folder: ModelFolder):
    """Reads a folder of GPT-2: weights, byte pairs and the longest context."""
    config = folder.settings
    folder.head(dict.fromkeys(("GPT2LMHeadModel", "GPT2Model")))
    config.one_of("is_encoder_decoder", False)
    config.one_of("scale_attn_weights", True)
    config.one_of("scale_attn_by_inverse_layer_idx", False)
    config.one_of("tie_word_embeddings", True)
    activations = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu")
    activation = config.one_of("activation_function", *activations)
    size, context = config.count("vocab_size"), config.count("n_positions", least=2)
    dimensions = read_dimensions(config, SETTINGS, intermediate_dim=4 * config.count("n_embd"))
    config.expect(embd_pdrop=dimensions["dropout"])
    weights, hidden_dim = folder.arrays().renamed(_without_prefix), dimensions["hidden_dim"]
    last = f"h.{dimensions['num_layers'] - 1}.mlp.c_fc.weight"
    shapes = {
        last: (hidden_dim, dimensions["intermediate_dim"]),
        "wte.weight": (size, hidden_dim),
        "wpe.weight": (context, hidden_dim),
    }
    weights.check(shapes, "GPT-2")
    ends = end_ids_of(folder, size)
    tokenizer, theirs = load_tokenizer_of(folder.path)
    start = start_of(folder, tokenizer, theirs) if folder.has(TOKENIZER_JSON) else None
    tokenizer = byte_pairs_of(folder, tokenizer, theirs, size, ends)
    model = gpt2(
        vocabulary_size=size,
        max_sequence_length=context,
        activation=ACTIVATIONS[activation],
        norm_epsilon=config.number("layer_norm_epsilon", 1e-5),
        **dimensions,
    )
    assign(rows(model), weights, "GPT-2")
    if not ends and tokenizer.end_of_text_id is not None:
        ends = [tokenizer.end_of_text_id]
    sampling = sampling_settings(folder, size, context, *ends, start=start)
    return converted(model, tokenizer, sampling, dimensions)


def _without_prefix(name):
    return name.removeprefix(PREFIX)


def byte_pairs_of(folder, tokenizer, theirs, size, ends, kinds="byte pairs"):
    """The byte pairs of a folder, in the order of their ids, for a table of `size` rows.

    Args:
        folder: a `ModelFolder`.
        tokenizer, theirs: of `load_tokenizer_of`.
        size: the number of their ids.
        ends: their ids that end a text; the first one becomes the end.
        kinds: the tokenizers that the model may have, in words.
    """
    if not isinstance(tokenizer, BytePairTokenizer):
        raise ConversionError(
            f"{files_of(folder)} must hold {kinds}. Received: a {type(tokenizer).__name__}."
        )
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    vocabulary = {piece: int(i) for piece, i in zip(pieces, theirs, strict=True) if i >= 0}
    names = {index: piece for piece, index in vocabulary.items()}
    options = {name: getattr(tokenizer, name) for name in ("words", "added", "whole_words")}
    if ends:
        options["end_of_text"] = names.get(ends[0], f"<|unused{ends[0] - len(names)}|>")
    with name_in_errors(files_of(folder)):
        return padded_byte_pairs(files_of(folder), vocabulary, tokenizer.merges, size, **options)


def padded_byte_pairs(file, vocabulary, merges, size, **options):
    """A `BytePairTokenizer` with a piece for each row of a table of `size` rows."""
    count = len(vocabulary)
    padding = num_padding_rows(file, count, size)
    unused = {f"<|unused{i}|>": count + i for i in range(padding)}
    if unused:
        options["added"] = options.get("added", usual_added(vocabulary)) | dict.fromkeys(unused)
    return BytePairTokenizer(vocabulary | unused, merges, FIRST_ID, **options)


def converted(model, tokenizer, settings, dimensions):
    """A language model and the settings of a run with it."""
    run = {"model": "gpt2", "size": "124M", "tokens": "pieces", "context": settings.context}
    run["sampling"] = kept_sampling(settings)
    return Converted("language_model", model, tokenizer, settings=settings, config=run | dimensions)


def hugging_face_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a language model."""
    model = text_model.model
    decoder, table, positions = model.decoder, model.embedding, model.positions
    tokenizer = text_model.tokenizer
    check_dense(decoder)
    check_output(model, "Hugging Face's GPT-2")
    settings = text_model.settings
    check_equal("Hugging Face's GPT-2", {
        "start_id of the settings": (settings.start_id, None),
        "end_ids of the settings": (list(settings.sampling.end_ids), []),
        "learned positions": (isinstance(positions, PositionEmbedding), True),
        "normalize_first": (decoder.normalize_first, True),
        "scale_embedding": (bool(table.scale), False),
        "tokenizer (--tokens pieces)": (type(tokenizer), BytePairTokenizer),
        "words of the tokenizer": (getattr(tokenizer, "words", "gpt2"), "gpt2"),
    })  # fmt: skip
    tokenizer.save_files(draft / "vocab.json", draft / "merges.txt")
    num_control_ids = max(tokenizer.vocabulary_size - table.vocabulary_size, 0)
    end = tokenizer.end_of_text_id if num_control_ids else END_ID
    ids = {"bos_token_id": end, "eos_token_id": end}
    sampling = written_sampling(settings, num_control_ids, end)
    write_json(draft / GENERATION, ids | sampling)
    name = None if end is None else tokenizer.pieces([end + num_control_ids])[0]
    write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "model_max_length": positions.max_sequence_length,
        "unk_token": name, "bos_token": name, "eos_token": name,
    })  # fmt: skip
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        **written_dimensions(model, decoder, table, SETTINGS),
        "activation_function": activation_of(decoder),
        "embd_pdrop": decoder.dropout,
        "tie_word_embeddings": True,
        **ids,
    }, {f"{PREFIX}{name}": array for name, array in arrays_of(rows(model)).items()}
