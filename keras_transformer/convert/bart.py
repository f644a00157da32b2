"""BART, and mBART-50, which translates between 50 languages, in Hugging Face's format.

Both are Marian's blocks on learned positions and normalised embeddings; BART normalises after its
sub-layers, mBART before them. A text of BART begins with <s>, which the tokenizer puts there; one
of mBART-50 with its language.
"""

import re

import keras
import numpy as np

from keras_transformer.convert import m2m100, marian
from keras_transformer.convert.blocks import check_dense, check_equal
from keras_transformer.convert.folder import Converted, ModelFolder, Settings, write_json
from keras_transformer.convert.generation import (
    GENERATION,
    in_language,
    search_settings,
    written_search,
)
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    VocabularyPermutation,
    arrays_of,
    assign,
    rows_of,
)
from keras_transformer.convert.tokenizers import (
    FAIRSEQ_FILE,
    MBART50_LANGUAGES,
    MERGES,
    SETTINGS,
    VOCABULARY,
    files_of,
    load_tokenizer_of,
)
from keras_transformer.layers.positions import PositionEmbedding
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving.settings import kept_search
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.tokenizers.sentencepiece_format import Model, PieceType

POSITIONS = "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
OFFSET = 2  # rows of their tables before that of the first position
NORMS = {
    "source_embedding_norm": "model.encoder.layernorm_embedding",
    "embedding_norm": "model.decoder.layernorm_embedding",
}
LANGUAGE = re.compile("[a-z]{2}_[A-Z]{2}")  # en_XX
FIRST = "<s>"  # of every text of BART
MASK = "<mask>"  # their last piece, for which released summarisers have no row
START = "<start>"  # our start token, which is no piece: theirs is the end token
FAMILIES = {"bart": "Bart", "mbart": "MBart"}
WITHOUT_HEAD = re.compile(r"^(?=(encoder|decoder|shared)\.)")  # names in a folder of BartModel


def rows(model, order):
    """The table of BART and mBART.

    Args:
        model: of `translation`.
        order: the `VocabularyPermutation` of its ids.
    """
    yield from marian.rows(model, order, order)
    for layer, name in zip((model.source_positions, model.positions), POSITIONS, strict=True):
        yield Row(
            layer.embeddings,
            (name,),
            to_ours=lambda array: array[OFFSET:],
            to_theirs=lambda array: np.pad(array, ((OFFSET, 0), (0, 0))),
        )
    yield from rows_of(model, NORMS)


def read(folder: ModelFolder):
    """Reads a folder of BART or mBART-50: weights, vocabulary and the settings of its search."""
    config = folder.settings
    name = FAMILIES[config.raw("model_type")]
    folder.head({f"{name}ForConditionalGeneration": None, f"{name}Model": None})
    config.one_of("tie_word_embeddings", True)
    is_mbart = name == "MBart"
    dimensions = marian.dimensions_of(folder, is_mbart, "gelu")
    config.expect(
        normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=OFFSET
    )
    config.ignore(("classif_dropout", "classifier_dropout"))  # of a head for labels
    weights = folder.arrays().renamed(lambda name: WITHOUT_HEAD.sub("model.", name))
    marian.check_weights(folder, weights, name, True, dimensions)
    positions = config.count("max_position_embeddings", 1024, least=3)
    shape = positions + OFFSET, dimensions["hidden_dim"]
    weights.check(dict.fromkeys(POSITIONS, shape), name)
    tokenizer, order = (_with_languages if is_mbart else _byte_pairs)(folder)
    model = translation(
        len(order),
        output_bias=True,
        scale_embedding=config.flag("scale_embedding", False),
        max_sequence_length=positions,
        embedding_norm=True,
        norm_epsilon=marian.EPSILON,
        **marian.dropouts_of(config),
        **dimensions,
    )
    # Theirs is a constant, and excludes the start token, which duplicates the end token.
    model.output_bias.trainable = False
    assign(rows(model, order), weights, name)
    if not is_mbart:
        _force_first(folder)
    search, run = search_settings(folder, order, positions), {}
    if is_mbart:
        search, run = in_language(folder, search, tokenizer)
        run = m2m100.languages_of(folder) | run
    if search.max_target_length > positions:
        raise ConversionError(
            f"{folder.path}: the generation settings must allow at most {positions} new tokens, "
            f"the positions of the model. Received: {search.max_target_length}."
        )
    run |= dimensions | kept_search(search)
    return Converted("translation", model, tokenizer, settings=search, config=run)


def _byte_pairs(folder):
    """The tokenizer of BART, and the `VocabularyPermutation` of its ids."""
    tokenizer, their_id_of = load_tokenizer_of(folder.path)
    if not isinstance(tokenizer, BytePairTokenizer) or tokenizer.first_id:
        raise ConversionError(
            f"{files_of(folder)} must hold byte pairs with <s>, <pad>, </s> and <unk>. "
            f"Received: a {type(tokenizer).__name__} without them."
        )
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    pieces[START_ID] = START
    if pieces[-1] == MASK and their_id_of[-1] == folder.settings.count("vocab_size"):
        pieces, their_id_of = pieces[:-1], their_id_of[:-1]
    order = _order(folder, their_id_of)
    return with_first(pieces, tokenizer.merges), order


def with_first(pieces, merges):
    """Byte pairs of some pieces, in the order of their ids, and of `FIRST`, which is the last."""
    vocabulary = {piece: index for index, piece in enumerate([*pieces, FIRST])}
    return BytePairTokenizer(vocabulary, merges, added={}, start_piece=FIRST)


def _force_first(folder):
    """Reads an earlier setting, which makes every summary begin with <s>.

    As in `transformers`, it counts only where config.json has the settings of the search, and
    before its forced_bos_token_id.
    """
    config = folder.settings
    is_forced = config.flag("force_bos_token_to_be_generated", False)
    if is_forced and not folder.has(GENERATION):
        config.values["forced_bos_token_id"] = config.count("bos_token_id", 0, least=0)


def _with_languages(folder):
    """The tokenizer of mBART-50, and the `VocabularyPermutation` of its ids."""
    values = folder.json(SETTINGS) if folder.has(SETTINGS) else {}
    settings = Settings(values, folder.path / SETTINGS)
    if not settings.has("tokenizer_class"):
        settings = folder.settings
    folder.settings.ignore(["tokenizer_class"])
    # A text of mBART-25 ends with its language, and so begins the search.
    settings.one_of("tokenizer_class", "MBart50Tokenizer", "MBart50TokenizerFast")
    tokenizer, their_id_of = load_tokenizer_of(folder.path)
    order = _order(folder, their_id_of)
    return m2m100.with_languages_of(folder, tokenizer, LANGUAGE), order


def _order(folder, their_id_of):
    """The order of the tokenizer's ids, in which the start is the end, then <s> and the rest."""
    order = m2m100.order_of(folder, their_id_of)
    start, end = order.their_id_of[[START_ID, END_ID]].tolist()
    if start != end and start in their_id_of:
        allowed = f"{end}, the id of the end, or one without a piece"
        folder.settings.refuse("decoder_start_token_id", allowed, start)
    return order


def written_order(text_model):
    """The `VocabularyPermutation` of a folder of BART or mBART-50 of ours.

    Their ids begin with <s>, <pad>, </s> and <unk>. If our start is no copy of the end, as in a
    folder that was read, it comes last.
    """
    model, tokenizer = text_model.model, text_model.tokenizer
    size = model.target_embedding.vocabulary_size
    first = getattr(tokenizer, "start_id", tokenizer.vocabulary_size)
    order = [first, PAD_ID, END_ID, UNKNOWN_ID]
    order += [index for index in range(END_ID + 1, size) if index != first]
    repeats = _repeats_end(model)
    order += [] if repeats else [START_ID]
    their_id_of = np.zeros(size, int)
    their_id_of[order] = np.arange(len(order))
    if repeats:
        their_id_of[START_ID] = their_id_of[END_ID]
    return VocabularyPermutation(their_id_of)


def _repeats_end(model):
    """Whether the start token is that of a folder that was read: the end token, never chosen."""
    table = keras.ops.convert_to_numpy(model.target_embedding.embeddings[: END_ID + 1])
    bias = model.output_bias and keras.ops.convert_to_numpy(model.output_bias.bias[: END_ID + 1])
    is_never = bias is not None and bias[START_ID] == marian.NEVER
    return bool(is_never and np.array_equal(table[START_ID], table[END_ID]))


def hugging_face_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of BART or mBART-50."""
    model, tokenizer, settings = text_model.model, text_model.tokenizer, text_model.settings
    name = "MBart" if model.encoder.normalize_first else "Bart"
    _check_written(text_model, name)
    order = written_order(text_model)
    pad, start, end = order.their_id_of[[PAD_ID, START_ID, END_ID]].tolist()
    ids = {"bos_token_id": 0, "pad_token_id": pad, "eos_token_id": end}
    ids["decoder_start_token_id"] = start
    search = written_search(settings, lambda index: int(order.their_id_of[index]))
    config = {"tokenizer_class": "BartTokenizer"}
    if name == "MBart":
        target = text_model.target_tokenizer
        language = target.languages[target.language]
        search["forced_bos_token_id"] = int(order.their_id_of[language])
        config = {"tokenizer_class": "MBart50Tokenizer", "src_lang": tokenizer.language}
        config["tgt_lang"] = target.language
        _save_pieces(tokenizer, draft / FAIRSEQ_FILE)
    else:
        pieces = tokenizer.pieces(order.text_id_of[: tokenizer.vocabulary_size - 1])
        cutter = BytePairTokenizer({p: index for index, p in enumerate(pieces)}, tokenizer.merges)
        cutter.save_files(draft / VOCABULARY, draft / MERGES)
    write_json(draft / GENERATION, ids | search)
    positions = model.positions.max_sequence_length
    write_json(draft / SETTINGS, config | {"model_max_length": positions})
    arrays = arrays_of(rows(model, order))
    if "final_logits_bias" not in arrays:
        arrays["final_logits_bias"] = np.zeros((1, len(order.our_id_of)), "float32")
    return {
        "model_type": name.lower(),
        "architectures": [f"{name}ForConditionalGeneration"],
        **marian.written_settings(model),
        "vocab_size": len(order.our_id_of),
        "max_position_embeddings": positions,
        **ids,
    }, arrays


def _check_written(text_model, name):
    """Raises ConversionError if neither BART nor mBART-50 is such a model."""
    model, tokenizer = text_model.model, text_model.tokenizer
    check_dense(model.encoder)
    kind = {"Bart": "BART (post-norm)", "MBart": "mBART-50 (pre-norm)"}[name]
    first = getattr(tokenizer, "start_piece", None)
    languages = [*getattr(tokenizer, "languages", {})]
    check_equal(f"Hugging Face's {kind}", {
        "learned positions": (isinstance(model.positions, PositionEmbedding), True),
        "embedding_norm": (model.embedding_norm is not None, True),
        "one vocabulary": (model.source_embedding is model.target_embedding, True),
        "tie_output": (model.output_projection is model.target_embedding, True),
        "an encoder that sees the end token": (model.source_without_end is None, True),
        "norm_epsilon": (model.encoder.norm_epsilon, marian.EPSILON),
        "a tokenizer with its languages":
            (name == "Bart" or languages == MBART50_LANGUAGES, True),
        "byte pairs that begin with": (first, FIRST if name == "Bart" else None),
    })  # fmt: skip


def _save_pieces(tokenizer, path):
    """Writes the SentencePiece model, whose ids begin with <unk>, <s> and </s>."""
    model = Model.FromString(tokenizer.model)
    pieces = list(model.pieces)[END_ID + 1 : tokenizer.languages[MBART50_LANGUAGES[0]]]
    del model.pieces[:]
    kinds = PieceType.UNKNOWN, PieceType.CONTROL, PieceType.CONTROL
    for piece, kind in zip(("<unk>", FIRST, "</s>"), kinds, strict=True):
        model.pieces.add(piece=piece, type=kind)
    model.pieces.extend(pieces)
    model.trainer_spec.vocab_size = len(model.pieces)
    path.write_bytes(model.SerializeToString())
