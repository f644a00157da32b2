"""SentencePiece models of others with the ids that their neural models use, in our order."""

import pathlib
import re

from keras_transformer.convert.tables import ConversionError
from keras_transformer.tokenizers.sentencepiece import (
    CONTROL_PIECES,
    UNKNOWN_ID,
    SentencePieceTokenizer,
)
from keras_transformer.tokenizers.sentencepiece_format import Model, PieceType

LANGUAGE = re.compile(">>.+<<")  # of the target, at the beginning of a source
_BELOW_ALL = 10.0  # how far below the lowest score a character lies that the model lacks


def sentencepiece_tokenizer(path, vocabulary):
    """Reads a SentencePiece model whose pieces have other ids than in the file.

    Args:
        path: of the file.
        vocabulary: the pieces in the order of the ids, the first four pad, unknown, start, end.
            Pieces of the file that it lacks become unknown; what the file lacks is never made,
            but for single characters and languages such as ">>deu<<".

    Returns:
        A `SentencePieceTokenizer`.

    Raises:
        ConversionError: if the file is not a SentencePiece model.
    """
    try:
        model = Model.FromString(pathlib.Path(path).read_bytes())
        known = {piece.piece: (piece.score, piece.type) for piece in model.pieces}
        lowest = min(piece.score for piece in model.pieces) - _BELOW_ALL
    except Exception as error:  # of protobuf, which has its own
        raise ConversionError(f"{path} must be a SentencePiece model. Received: {error}") from None
    normal = (0.0, PieceType.NORMAL)
    pieces = []
    for index, name in enumerate(vocabulary):
        if index < len(CONTROL_PIECES):
            kind = PieceType.UNKNOWN if index == UNKNOWN_ID else PieceType.CONTROL
            pieces.append((CONTROL_PIECES[index], 0.0, kind))
        elif LANGUAGE.fullmatch(name):
            pieces.append((f"\u2581{name}", 0.0, PieceType.USER_DEFINED))
        elif known.get(name, normal)[1] in (PieceType.UNKNOWN, PieceType.CONTROL):
            pieces.append((name, 0.0, PieceType.UNUSED))
        elif name in known:
            pieces.append((name, *known[name]))
        elif len(name) == 1:
            pieces.append((name, lowest, PieceType.NORMAL))
        else:
            pieces.append((name, lowest, PieceType.UNUSED))
    taken = {name for name, _, _ in pieces}
    # Beyond the vocabulary: texts are still cut there, and what they are cut into is unknown.
    for name, (score, kind) in known.items():
        if name not in taken and kind not in (PieceType.UNKNOWN, PieceType.CONTROL):
            pieces.append((name, score, kind))
    del model.pieces[:]
    for name, score, kind in pieces:
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.vocab_size = len(vocabulary)
    return SentencePieceTokenizer(model.SerializeToString())
