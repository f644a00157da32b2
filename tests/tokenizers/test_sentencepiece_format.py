"""Our few fields of a SentencePiece model against those of the `sentencepiece` package."""

import pytest

from keras_transformer.tokenizers import sentencepiece_format as ours

try:
    from sentencepiece import sentencepiece_model_pb2 as theirs
except Exception as error:  # protobuf's VersionError, of protobuf before 7.36
    pytest.skip(f"needs another protobuf: {error}", allow_module_level=True)


def filled(model, piece_types, model_types):
    model.pieces.add(piece="ab", score=-3, type=piece_types.NORMAL)
    model.pieces.add(piece="<unk>", type=piece_types.UNKNOWN)
    model.pieces.add(piece="<s>", score=-0.0, type=piece_types.CONTROL)
    model.pieces.add(piece="é", score=0.1, type=piece_types.USER_DEFINED)
    model.trainer_spec.model_type = model_types.BPE
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = True
    model.normalizer_spec.escape_whitespaces = False
    return model.SerializeToString()


def test_a_model_has_the_bytes_of_the_sentencepiece_package():
    kinds, types = theirs.ModelProto.SentencePiece, theirs.TrainerSpec
    assert filled(ours.Model(), ours.PieceType, ours.ModelType) == filled(
        theirs.ModelProto(), kinds, types
    )


def test_fields_that_are_not_ours_are_kept():
    model = theirs.ModelProto()
    model.trainer_spec.model_type = theirs.TrainerSpec.WORD
    model.trainer_spec.vocab_size = 7
    read = ours.Model.FromString(model.SerializeToString())
    assert read.trainer_spec.model_type == ours.ModelType.WORD
    assert theirs.ModelProto.FromString(read.SerializeToString()) == model
