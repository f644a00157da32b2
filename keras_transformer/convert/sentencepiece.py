"""SentencePiece models of other libraries, with the ids of their neural models in our order."""

import pathlib
import re

import sentencepiece

from keras_transformer.convert.tables import ConversionError, our_order
from keras_transformer.files import in_one_line
from keras_transformer.tokenizers.control_ids import UNKNOWN_ID
from keras_transformer.tokenizers.sentencepiece import (
    LANGUAGE_MARKS,
    ONLY_IN_VOCABULARY,
    OWN_END,
    OWN_UNKNOWN,
    SentencePieceTokenizer,
)
from keras_transformer.tokenizers.sentencepiece_format import Model, PieceType
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES

LANGUAGE = re.compile(">>.+<<")  # of the target, at the beginning of a source


def read_model(path):
    """Reads a SentencePiece model as its fields.

    Raises:
        ConversionError: if the file is not a SentencePiece model.
    """
    try:
        content = pathlib.Path(path).read_bytes()
        model = Model.FromString(content)
        if model.pieces:
            sentencepiece.SentencePieceProcessor(model_proto=content)
    except Exception as error:  # protobuf has its own class
        raise ConversionError(
            f"{path} must be a SentencePiece model. Received: {in_one_line(error)}"
        ) from None
    if not model.pieces:
        raise ConversionError(f"{path} must be a SentencePiece model. Received: no piece.")
    return model


def rearranged(model, vocabulary, begins_with_language=False):
    """A `SentencePieceTokenizer` whose pieces have other ids than in a model.

    Args:
        model: the fields of the SentencePiece model; they are changed.
        vocabulary: the pieces in the order of the ids, the first four pad, unknown, start, end.
            Pieces of the model that it lacks become unknown. Pieces that the model lacks are only
            those of texts whose characters the model does not know, all together.
        begins_with_language: whether a text may begin with a piece such as ">>deu<<", as Marian's.
    """
    known = {piece.piece: (piece.score, piece.type) for piece in model.pieces}
    unused = (ONLY_IN_VOCABULARY, PieceType.UNUSED)
    pieces = []
    for index, name in enumerate(vocabulary):
        if index < len(CONTROL_PIECES):
            kind = PieceType.UNKNOWN if index == UNKNOWN_ID else PieceType.CONTROL
            pieces.append((CONTROL_PIECES[index], 0.0, kind))
        elif name in CONTROL_PIECES:  # which plays no part in theirs
            pieces.append((f"<unused {name[1:-1]}>", 0.0, PieceType.UNUSED))
        elif known.get(name, unused)[1] in (PieceType.UNKNOWN, PieceType.CONTROL):
            pieces.append((name, 0.0, PieceType.UNUSED))
        else:
            pieces.append((name, *known.get(name, unused)))
    taken = {name for name, _, _ in pieces}
    # Beyond the vocabulary: texts are still cut at these pieces, which then become unknown.
    for name, (score, kind) in known.items():
        if name not in taken and kind not in (PieceType.UNKNOWN, PieceType.CONTROL):
            pieces.append((name, score, kind))
    if begins_with_language:
        pieces.append((LANGUAGE_MARKS, *unused))
    del model.pieces[:]
    for name, score, kind in pieces:
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.vocab_size = len(vocabulary)
    return SentencePieceTokenizer(model.SerializeToString())


def save_for_lookup(tokenizer, path):
    """Writes a SentencePiece model without the pieces that only the vocabulary has.

    Args:
        tokenizer: a `SentencePieceTokenizer`.
        path: of the file.
    """
    model = Model.FromString(tokenizer.model)
    kept = [piece for piece in model.pieces if piece.score != ONLY_IN_VOCABULARY]
    del model.pieces[:]
    model.pieces.extend(kept)
    path.write_bytes(model.SerializeToString())


def with_languages(tokenizer, pattern):
    """A `SentencePieceTokenizer` whose pieces of a pattern are `languages`.

    Args:
        tokenizer: a `SentencePieceTokenizer`.
        pattern: a compiled regular expression that matches the whole piece.
    """
    model = Model.FromString(tokenizer.model)
    for piece in model.pieces:
        if piece.type == PieceType.UNUSED and pattern.fullmatch(piece.piece):
            piece.type = PieceType.CONTROL
    return SentencePieceTokenizer(model.SerializeToString())


def after_control_ids(tokenizer, their_id_of, size, end_id):
    """The same pieces in the order of their ids, after our four control ids.

    Args:
        tokenizer: a `SentencePieceTokenizer` of `in_our_order`.
        their_id_of: their id for each of its ids, -1 if there is none.
        size: how many ids they have; those without a piece are never found.
        end_id: their id that ends a text; None if none does.
    """
    model = Model.FromString(tokenizer.model)
    pieces = [(piece.piece, piece.score, piece.type) for piece in model.pieces]
    own = {index: (f"<unused{index}>", 0.0, PieceType.CONTROL) for index in range(size)}
    for index, theirs in enumerate(their_id_of):
        name, score, kind = pieces[index]
        if index < len(CONTROL_PIECES):
            name, kind = f"<own {name[1:-1]}>", PieceType.CONTROL  # OWN_UNKNOWN among them
        if theirs >= 0:
            own[int(theirs)] = name, score, kind
    if end_id is not None:  # which may be an added token, with no piece in the model
        own[end_id] = OWN_END, 0.0, PieceType.CONTROL
    known = pieces[: len(CONTROL_PIECES)] + list(own.values()) + pieces[len(their_id_of) :]
    del model.pieces[:]
    for name, score, kind in known:
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.vocab_size = len(CONTROL_PIECES) + size
    return SentencePieceTokenizer(model.SerializeToString())


def own_model(tokenizer, path):
    """Writes the pieces of `after_control_ids` as a SentencePiece model of their own.

    Args:
        tokenizer: a `SentencePieceTokenizer`.
        path: of the file.

    Returns:
        The pieces in the order of their ids.
    """
    model = Model.FromString(tokenizer.model)
    own = list(model.pieces)[tokenizer.first_id : tokenizer.vocabulary_size]
    while own[-1].piece == f"<unused{len(own) - 1}>":  # a row without a piece
        own.pop()
    names = {"<own pad>": "<pad>", OWN_UNKNOWN: "<unk>", "<own s>": "<s>", "<own /s>": "</s>"}
    has_end = any(piece.piece == "<own /s>" for piece in own)
    names[OWN_END] = "<|end|>" if has_end else "</s>"
    del model.pieces[:]
    for piece in own:
        kind = PieceType.UNKNOWN if piece.piece == OWN_UNKNOWN else piece.type
        model.pieces.add(piece=names.get(piece.piece, piece.piece), score=piece.score, type=kind)
    model.trainer_spec.vocab_size = len(own)
    path.write_bytes(model.SerializeToString())
    size = tokenizer.vocabulary_size - tokenizer.first_id
    unused = [f"<unused{index}>" for index in range(len(own), size)]
    return [*(piece.piece for piece in model.pieces), *unused]


def in_our_order(model, names, unknown, control=("<pad>", "<s>", "</s>")):
    """A model whose ids are the places of its pieces in `names`, with our control pieces first.

    Args:
        model: the fields of a SentencePiece model; they are changed.
        names: the pieces in the order of their ids.
        unknown: the name of the unknown piece.
        control: the names of pad, start and end. Without a start, sequences start with pad.

    Returns:
        A `SentencePieceTokenizer`, and their id for each of ours, -1 if there is none.
    """
    ids = {name: index for index, name in enumerate(names)}
    pad, start, end = (ids.get(name, -1) for name in control)
    theirs = our_order(len(names), pad, ids[unknown], pad if start < 0 else start, end)
    return rearranged(model, [names[index] for index in theirs]), theirs
