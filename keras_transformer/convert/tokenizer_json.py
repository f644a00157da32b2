"""Reads `tokenizer.json` of Hugging Face's `tokenizers` as one of our tokenizers."""

import base64
import json

import numpy as np

from keras_transformer.convert.folder import Settings, json_object, pieces_in_order
from keras_transformer.convert.sentencepiece import in_our_order
from keras_transformer.convert.tables import ConversionError, our_order
from keras_transformer.files import in_one_line
from keras_transformer.tokenizers.byte_pairs import NORMALISED, BytePairTokenizer, check_pairs
from keras_transformer.tokenizers.control_ids import UNKNOWN_ID
from keras_transformer.tokenizers.sentencepiece_format import Model, ModelType, PieceType
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES
from keras_transformer.tokenizers.word_pieces import PAD, UNKNOWN, WordPieceTokenizer

SPACE = "\u2581"  # as it stands in pieces
_PARTS = "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder"
_BYTE_LEVEL = {"add_prefix_space": False, "use_regex": True}
_BERT = {"clean_text": True, "handle_chinese_chars": True}
_PAIRS = {"ignore_merges": False, "dropout": None}
_READ = ("vocab", "merges", "byte_fallback", "unk_token", "fuse_unk")  # of byte pairs
# The expressions of Llama 3 and Qwen2 that split texts, by our names.
SPLITS = {
    name: rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for name, digits in (("llama3", "{1,3}"), ("qwen2", ""))
}
_NO_MARKS = dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), "")
# What a Replace may do, with spaces: a text, or a regular expression.
_REPLACED = (
    ({"String": " "}, SPACE),
    ({"Regex": " {2,}"}, SPACE),
    ({"Regex": " {2,}"}, " "),
)
_WORD_PIECE = {
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "unk_token": UNKNOWN,
}


def read_tokenizer_json(path):
    """Reads byte-level byte pairs, Unigram, WordPiece, or byte pairs of Llama 2 and NLLB.

    Args:
        path: path of the file.

    Returns:
        The tokenizer and their id for each of ours, as from `load_tokenizer_of`.

    Raises:
        ConversionError: if the file needs something else.
    """
    settings = Settings(json_object(path), path)
    content, model = settings.values, settings.part("model")
    kind = model.text("type", _unnamed_type(model.values))
    settings.ignore(_PARTS.split())
    settings.warn_of_unread()
    if not splits_like_later_models(content):
        check_added(content.get("added_tokens") or [], path)
    readers = {"BPE": _byte_pairs, "Unigram": _unigram, "WordPiece": _word_pieces}
    if kind not in readers:
        raise ConversionError(
            f"{path}: the model must be {', '.join(readers)}. Received: type={kind!r}."
        )
    return readers[kind](content, _added(content), path)


def _unnamed_type(model):
    """The type of a model that its file does not name, as released ones of GPT-2 and BERT."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def check_added(tokens, path):
    """Raises ConversionError if an added token, {"content": text}, is not special.

    Their tokenizers find it in a text before they split the text. Ours find none: a special token
    in a text is plain text, as the guide says.
    """
    if plain := [token["content"] for token in tokens if token.get("special") is not True]:
        raise ConversionError(
            f"{path} must not add tokens to its vocabulary unless they are special: ours finds "
            f"none in a text. Received: {', '.join(map(repr, plain[:5]))}."
        )


def splits_like_later_models(content):
    """Whether a tokenizer.json splits texts by an expression, as Llama 3 and Qwen2 do."""
    return '"Split"' in json.dumps(content.get("pre_tokenizer"))


def byte_pairs(path, vocabulary, merges, **options):
    """A `BytePairTokenizer` and their id for each of ours.

    Ids are reordered if the vocabulary has pad, unknown, start and end; otherwise these four are
    put in front of it.

    Args:
        path: path of the file, for errors.
        vocabulary: {piece: id}.
        merges: pairs of pieces, each a text with a space.
        **options: further arguments of `BytePairTokenizer`.
    """
    if not set(CONTROL_PIECES) <= vocabulary.keys():
        tokenizer = BytePairTokenizer(vocabulary, merges, len(CONTROL_PIECES), **options)
        return tokenizer, np.array([-1] * len(CONTROL_PIECES) + [*range(len(vocabulary))])
    names = pieces_in_order(path, vocabulary)
    theirs = our_order(len(names), *(vocabulary[name] for name in CONTROL_PIECES))
    vocabulary = {names[index]: number for number, index in enumerate(theirs)}
    return BytePairTokenizer(vocabulary, merges, **options), theirs


def _byte_pairs(content, added, path):
    if content["model"].get("byte_fallback") or "Metaspace" in str(content.get("pre_tokenizer")):
        return _sentencepiece_byte_pairs(content, added, path)
    if splits_like_later_models(content):
        return _later_byte_pairs(content, path)
    _steps(content, "normalizer", [], path)
    steps = _steps(content, "pre_tokenizer", ["ByteLevel"], path, needed="ByteLevel")
    _require(steps["ByteLevel"], _BYTE_LEVEL, path, "trim_offsets")
    _require(content["model"], _PAIRS | _NO_MARKS, path, *_READ)
    return byte_pairs(path, *_vocabulary_and_merges(content))


def _later_byte_pairs(content, path):
    """Byte pairs of Llama 3 or Qwen2."""
    steps = _steps(content, "pre_tokenizer", ["Split", "ByteLevel"], path, needed="ByteLevel")
    _require(steps["Split"], {"behavior": "Isolated", "invert": False}, path, "pattern")
    _require(steps["ByteLevel"], _BYTE_LEVEL | {"use_regex": False}, path, "trim_offsets")
    pattern = steps["Split"].get("pattern")
    words = next((name for name in SPLITS if pattern == {"Regex": SPLITS[name]}), None)
    if words is None:
        raise ConversionError(
            f"{path} must split texts by the expression of Llama 3 or Qwen2. "
            f"Received: {pattern!r:.80}."
        )
    normalizes = "NFC" in _steps(content, "normalizer", ["NFC"], path)
    if normalizes != (words in NORMALISED):
        raise ConversionError(
            f"{path} must normalise texts to NFC if it splits them as Qwen2, and not as Llama 3. "
            f"Received: {'NFC' if normalizes else 'no normalizer'} with the words of {words}."
        )
    whole_words = content["model"].get("ignore_merges") or False
    _require(content["model"], _PAIRS | _NO_MARKS | {"ignore_merges": whole_words}, path, *_READ)
    added = content.get("added_tokens") or []
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    for token in added:
        # What is found in normalised texts is found there only.
        found = flags | ({"normalized": False} if normalizes else {})
        _require(token, found, path, "id", "content", "special", "normalized")
    return byte_pairs(
        path, *_vocabulary_and_merges(content), words=words, whole_words=whole_words,
        added={token["content"]: token.get("special") is True for token in added},
    )  # fmt: skip


def byte_pairs_json(tokenizer, pieces, start):
    """What a tokenizer.json holds of byte pairs.

    Args:
        tokenizer: a `BytePairTokenizer`.
        pieces: in the order of their ids.
        start: the piece that begins every text, or None.
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    control = set(tokenizer.pieces(tokenizer.control_ids)) & ids.keys()
    special = {name: name in control for name in pieces if name in control | {*tokenizer.added}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "ByteLevel", **level, "use_regex": True}
    if tokenizer.words != "gpt2":
        pattern = {"Regex": SPLITS[tokenizer.words]}
        words = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [words, level | {"use_regex": False}]}
    template = None
    if start is not None:
        first = {"SpecialToken": {"id": start, "type_id": 0}}
        parts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        template = {
            "type": "TemplateProcessing", "single": [first, parts[0]],
            "pair": [first, parts[0], first, parts[1]],
            "special_tokens": {start: {"id": start, "ids": [ids[start]], "tokens": [start]}},
        }  # fmt: skip
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": ids[name], "content": name, **flags, "special": is_control}
            for name, is_control in special.items()
        ],
        "normalizer": {"type": "NFC"} if tokenizer.words in NORMALISED else None,
        "pre_tokenizer": split, "post_processor": template,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": tokenizer.whole_words, "vocab": ids,
            "merges": [pair.split(" ") for pair in tokenizer.merges],
        },
    }  # fmt: skip


def start_of_texts(content, path):
    """The special token that a tokenizer.json puts before every text, or None.

    Raises:
        ConversionError: if it adds others.
    """
    step = content.get("post_processor") or {}
    steps = step.get("processors", []) if step.get("type") == "Sequence" else [step]
    templates = [one["single"] for one in steps if one.get("type") == "TemplateProcessing"]
    names = [part.get("SpecialToken", {}).get("id") for one in templates for part in one]
    if names in ([], [None]):
        return None
    if len(names) != 2 or names[1] is not None:
        raise ConversionError(
            f"{path} must add at most one token to texts, before them. Received: "
            f"{' '.join('TEXT' if name is None else name for name in names)}."
        )
    return names[0]


def _vocabulary_and_merges(content):
    model = content["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    check_pairs(merges)
    return model["vocab"] | _added(content), merges


def _added(content):
    return {token["content"]: token["id"] for token in content.get("added_tokens") or []}


def _sentencepiece_byte_pairs(content, added, path):
    """Byte pairs as a SentencePiece model, in which a merged piece is scored by its rank."""
    # SentencePiece makes one unknown piece of several in a row.
    fused = {} if content["model"].get("byte_fallback") else {"fuse_unk": True}
    _require(content["model"], _PAIRS | _NO_MARKS | fused, path, *_READ)
    vocabulary, merges = _vocabulary_and_merges(content)
    ranks = {}
    for rank, (left, right) in enumerate(pair.split(" ") for pair in merges):
        ranks.setdefault(left + right, rank)
    names = pieces_in_order(path, vocabulary)
    scored = [(name, -float(ranks.get(name, len(merges)))) for name in names]
    unknown = content["model"].get("unk_token") or CONTROL_PIECES[UNKNOWN_ID]
    model = _model(content, ModelType.BPE, scored, unknown, added, path)
    return in_our_order(model, names, unknown)


def _unigram(content, added, path):
    _require(content["model"], {}, path, "vocab", "unk_id", "byte_fallback")
    scored = [tuple(pair) for pair in content["model"]["vocab"]]
    known = {name for name, _ in scored}
    scored += [(name, 0.0) for name in sorted(added, key=added.get) if name not in known]
    names = [name for name, _ in scored]
    pieces_in_order(path, {name: index for index, name in enumerate(names)} | added)
    unknown = names[content["model"]["unk_id"]]
    model = _model(content, ModelType.UNIGRAM, scored, unknown, added, path)
    return in_our_order(model, names, unknown)


def _model(content, kind, scored, unknown, added, path):
    """A SentencePiece model of (piece, score); added tokens are never found in a text."""
    before = _steps(content, "normalizer", ["Precompiled", "Strip", "Prepend", "Replace"], path)
    after = _steps(content, "pre_tokenizer", ["WhitespaceSplit", "Metaspace"], path)
    _require(before.get("Precompiled", {}), {}, path, "precompiled_charsmap")
    _require(before.get("Strip", {}), {"strip_right": True}, path, "strip_left")
    _require(before.get("Prepend", {}), {"prepend": SPACE}, path)
    metaspace = after.get("Metaspace", {"prepend_scheme": "never"})
    same = dict.fromkeys(("replacement", "str_rep"), SPACE)
    _require(metaspace, same, path, "prepend_scheme", "add_prefix_space", "split")
    spaces = before.get("Replace", {})
    _require(spaces, {}, path, "pattern", "content")
    if spaces and (spaces["pattern"], spaces["content"]) not in _REPLACED:
        raise ConversionError(f"{path}: only spaces may be replaced. Received: {spaces}.")
    charsmap = before.get("Precompiled", {}).get("precompiled_charsmap") or ""
    if "WhitespaceSplit" in after and not charsmap:
        raise ConversionError(
            f"{path} must have a Precompiled normalizer if it splits at white space, as released "
            "files have; transformers 5 loses mBART's. Received: a normalizer without it."
        )
    model = Model()
    fallback = bool(content["model"].get("byte_fallback"))
    for name, score in scored:
        if name == unknown:
            type_ = PieceType.UNKNOWN
        elif name in added:
            type_ = PieceType.CONTROL
        elif fallback and len(name) == 6 and name.startswith("<0x"):
            type_ = PieceType.BYTE
        else:
            type_ = PieceType.NORMAL
        model.pieces.add(piece=name, score=score, type=type_)
    model.trainer_spec.model_type = kind
    model.trainer_spec.byte_fallback = fallback
    older = "always" if metaspace.get("add_prefix_space", True) else "never"
    begins = metaspace.get("prepend_scheme") or older
    if begins not in ("always", "first", "never"):
        raise ConversionError(f"{path}: prepend_scheme is unknown. Received: {begins!r:.80}.")
    spec = model.normalizer_spec
    spec.name = "nmt_nfkc" if charsmap else "identity"
    spec.precompiled_charsmap = base64.b64decode(charsmap)
    spec.add_dummy_prefix = "Prepend" in before or begins != "never"
    # A regular expression: " {2,}" becomes one space, as in SentencePiece.
    spec.remove_extra_whitespaces = "WhitespaceSplit" in after or "Regex" in spaces.get(
        "pattern", {}
    )
    spec.escape_whitespaces = True
    return model


def _word_pieces(content, added, path):
    _steps(content, "pre_tokenizer", ["BertPreTokenizer"], path, needed="BertPreTokenizer")
    steps = _steps(content, "normalizer", ["BertNormalizer"], path, needed="BertNormalizer")
    normalizer = steps["BertNormalizer"]
    lowercase = normalizer["lowercase"]
    _require(normalizer, _BERT | {"strip_accents": lowercase}, path, "lowercase")
    _require(content["model"], _WORD_PIECE, path, "vocab")
    vocabulary = content["model"]["vocab"] | added
    names = pieces_in_order(path, vocabulary)
    theirs = our_order(len(names), *([vocabulary[PAD]] if PAD in vocabulary else []))
    return WordPieceTokenizer([names[index] for index in theirs], lowercase), theirs


def _steps(content, name, allowed, path, needed=None):
    """The steps of the normalizer or pre_tokenizer, {type: step}; refuses those not allowed."""
    step = content.get(name)
    parts = [step] if step else []
    if step and step["type"] == "Sequence":
        parts = step["normalizers" if name == "normalizer" else "pretokenizers"]
    steps = {part["type"]: part for part in parts}
    in_order = [name for name in allowed if name in steps]
    if [part["type"] for part in parts] != in_order or (needed and needed not in steps):
        raise ConversionError(
            f"{path}: the {name} must be {' or '.join(allowed) or 'missing'}, each once and in "
            "this order; nothing else is supported. Received: "
            f"{in_one_line(' and '.join(part['type'] for part in parts) or 'none')}."
        )
    return steps


def _require(values, allowed, path, *others):
    """Raises ConversionError if a model or a step has other settings than ours has.

    Args:
        values: the settings, a dictionary.
        allowed: {name: value} of those with one value; null counts as that value.
        path: path of the file, for errors.
        *others: names of those that are read, or have no effect here.
    """
    settings = Settings({name: value for name, value in values.items() if value is not None}, path)
    settings.check({name: (value,) for name, value in allowed.items()})
    settings.ignore(("type", *others))
    for name, value in settings.unread().items():
        raise ConversionError(f"{path}: {name} is not supported. Received: {value!r:.80}.")
