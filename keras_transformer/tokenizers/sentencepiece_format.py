"""The fields of a SentencePiece model file that are read or written here, on any protobuf.

The `sentencepiece` package has a module of all fields, but version 0.2.3's cannot be imported with
a protobuf older than 7.36, a requirement that the package does not declare to pip.

Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import enum

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "keras_transformer.sentencepiece"
_Field = descriptor_pb2.FieldDescriptorProto
_FIELDS = {  # message: name, number and type of each field
    "Piece": [
        ("piece", 1, _Field.TYPE_STRING),
        ("score", 2, _Field.TYPE_FLOAT),
        ("type", 3, _Field.TYPE_INT32),
    ],
    "Trainer": [
        ("model_type", 3, _Field.TYPE_INT32),
        ("vocab_size", 4, _Field.TYPE_INT32),
        ("max_sentence_length", 18, _Field.TYPE_INT32),
        ("byte_fallback", 35, _Field.TYPE_BOOL),
    ],
    "Normalizer": [
        ("name", 1, _Field.TYPE_STRING),
        ("precompiled_charsmap", 2, _Field.TYPE_BYTES),
        ("add_dummy_prefix", 3, _Field.TYPE_BOOL),
        ("remove_extra_whitespaces", 4, _Field.TYPE_BOOL),
        ("escape_whitespaces", 5, _Field.TYPE_BOOL),
    ],
    "Model": [
        ("pieces", 1, "Piece"),
        ("trainer_spec", 2, "Trainer"),
        ("normalizer_spec", 3, "Normalizer"),
    ],
}


class ModelType(enum.IntEnum):
    UNIGRAM = 1
    BPE = 2
    WORD = 3


class PieceType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _message_class(name):
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE)
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for field, number, kind in fields:
            settings = {"type": kind}
            if isinstance(kind, str):
                settings = {"type": _Field.TYPE_MESSAGE, "type_name": f".{_PACKAGE}.{kind}"}
            is_list = field == "pieces"
            label = _Field.LABEL_REPEATED if is_list else _Field.LABEL_OPTIONAL
            described.field.add(name=field, number=number, label=label, **settings)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Model = _message_class("Model")
