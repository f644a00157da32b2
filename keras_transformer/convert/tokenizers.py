"""Reads tokenizers of other libraries from their files, as ours.

Our models pad with id 0, start with id 2 and end with id 3, so ids come in a different order: pad,
unknown, start and end first, then the others in the same order as before.
"""

import pathlib

import numpy as np

from keras_transformer.convert.sentencepiece import in_our_order, read_model
from keras_transformer.convert.tables import ConversionError
from keras_transformer.convert.tokenizer_json import byte_pairs, merges_of, read_tokenizer_json
from keras_transformer.files import in_one_line, read_json
from keras_transformer.tokenizers.sentencepiece_format import PieceType
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

T5_FILE, LLAMA_FILE, FAIRSEQ_FILE = "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"
TOKENIZER_JSON, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# Classes whose ids follow the file's layout; other classes number the same pieces differently.
CLASSES = {
    T5_FILE: ("T5", "MT5"),
    LLAMA_FILE: ("Llama", "CodeLlama", "Gemma"),
    FAIRSEQ_FILE: ("XLMRoberta", "MBart", "Nllb", "M2M100"),
}
# Of mBART-25, in the order of their ids.
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()

# Of M2M100 and of its successor at WMT 2021, by their `language_codes`.
M2M100_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th "
        "tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ).split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}


def load_tokenizer_of(path):
    """Loads the tokenizer of a released model.

    Args:
        path: path of a folder with one of these, the first that exists: `spiece.model` of T5,
            `tokenizer.model` of llama, `sentencepiece.bpe.model` of mBART, NLLB and
            XLM-R, with `vocab.json` of M2M100,
            `tokenizer.json` of byte-level byte pairs, Unigram or WordPiece, `vocab.txt` of BERT,
            `vocab.json` and `merges.txt` of GPT-2.

    Returns:
        The tokenizer, one of `tokenizers`, and their id for each of ours, an integer array:
        `array[theirs]` are the rows of a table in our order. It is -1 where they have none. A
        model without a start token starts with the padding token, whose id then appears twice.

    Raises:
        ConversionError: a ValueError, if there is no such file, or it needs something that our
            tokenizers do not support.
    """
    try:
        return _read(pathlib.Path(path))
    except ConversionError:
        raise
    except Exception as error:  # tensorflow-text raises RuntimeError
        message = f"{path} has a tokenizer that is not supported: {in_one_line(error)}"
        raise ConversionError(message) from None


def _read(path):
    settings = _json(path / SPECIAL_TOKENS) | _json(path / SETTINGS)
    arrangements = {T5_FILE: _t5_pieces, LLAMA_FILE: _as_they_are, FAIRSEQ_FILE: _fairseq_pieces}
    files = [name for name in arrangements if (path / name).is_file()]
    if "M2M100" in settings.get("tokenizer_class", "") or (path / "vocab.json").is_file():
        vocabulary = _json(path / "vocab.json")  # it gives M2M100's pieces their ids
        arrangements[FAIRSEQ_FILE] = lambda _, settings: _m2m100_pieces(vocabulary, settings)
    known = [name for name in files if _is_of_its_class(name, settings)]
    if known:
        return _of_pieces(path / known[0], settings, arrangements[known[0]])
    if (path / TOKENIZER_JSON).is_file():
        return read_tokenizer_json(path / TOKENIZER_JSON)
    if files:
        raise ConversionError(
            f"{path / files[0]} is supported for {', '.join(CLASSES[files[0]])}. "
            f"Received: a tokenizer_class of {settings['tokenizer_class']!s:.100}."
        )
    if (path / "vocab.txt").is_file():
        given = (path / SETTINGS).is_file()  # otherwise capitals decide
        lowercase = settings.get("do_lower_case", True) if given else None
        tokenizer = WordPieceTokenizer.load(path / "vocab.txt", lowercase)
        return tokenizer, np.arange(tokenizer.vocabulary_size)
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return byte_pairs(_json(path / "vocab.json"), merges_of(path / "merges.txt"))
    raise ConversionError(
        f"{path} must hold {T5_FILE}, {LLAMA_FILE}, {FAIRSEQ_FILE}, {TOKENIZER_JSON}, vocab.txt, "
        "or vocab.json and merges.txt."
    )


def _is_of_its_class(file, settings):
    name = settings.get("tokenizer_class")
    return name is None or name.removesuffix("Fast").removesuffix("Tokenizer") in CLASSES[file]


def _of_pieces(file, settings, arrange):
    """A SentencePiece model, its pieces by their ids given by `arrange(names, settings)`."""
    model = read_model(file)
    unknown = next((p.piece for p in model.pieces if p.type == PieceType.UNKNOWN), None)
    if unknown is None:
        raise ConversionError(f"{file} must have an unknown piece. Received: none.")
    names = arrange([piece.piece for piece in model.pieces], settings)
    given = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    control = [_content(settings.get(name) or usual) for name, usual in given.items()]
    return in_our_order(model, names, unknown, control)


def _as_they_are(names, settings):
    return names


def _t5_pieces(names, settings):
    extra = settings.get("extra_ids", 100)
    return [*names, *(f"<extra_id_{index}>" for index in reversed(range(extra)))]


def _fairseq_pieces(names, settings):
    """<s>, <pad>, </s>, <unk>, the pieces from the fourth on, languages, <mask>."""
    languages = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
    if not isinstance(languages, list) or not languages:
        languages = MBART_LANGUAGES if "MBart" in settings.get("tokenizer_class", "") else []
    languages = [_content(language) for language in languages]
    return ["<s>", "<pad>", "</s>", "<unk>", *names[3:], *languages, "<mask>"]


def _m2m100_pieces(vocabulary, settings):
    if not vocabulary:
        raise ConversionError("A tokenizer of M2M100 must have vocab.json. Received: none.")
    languages = M2M100_LANGUAGES[settings.get("language_codes", "m2m100")]
    return [*sorted(vocabulary, key=vocabulary.get), *(f"__{name}__" for name in languages)]


def _content(token):
    return token["content"] if isinstance(token, dict) else token


def _json(path):
    if not path.is_file():
        return {}
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise ConversionError(f"{path} must hold a JSON object. Received: {error}") from None
