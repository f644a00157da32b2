"""Reads tokenizers of other libraries from their files, as ours.

Our models pad with id 0, start with id 2 and end with id 3, so ids come in a different order: pad,
unknown, start and end first, then the others in the same order as before.
"""

import contextlib

import numpy as np

from keras_transformer.convert.folder import Folder, Settings, pieces_in_order
from keras_transformer.convert.sentencepiece import in_our_order, read_model
from keras_transformer.convert.tables import ConversionError
from keras_transformer.convert.tokenizer_json import (
    byte_pairs,
    check_added,
    read_tokenizer_json,
    splits_like_later_models,
    start_of_texts,
)
from keras_transformer.files import in_one_line
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer, merges_of
from keras_transformer.tokenizers.control_ids import PAD_ID
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.tokenizers.sentencepiece_format import PieceType
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES
from keras_transformer.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

WORD_PIECES, MERGES, ADDED = "vocab.txt", "merges.txt", "added_tokens.json"
T5_FILE, LLAMA_FILE, FAIRSEQ_FILE = "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"
CONFIG, BYTES = "config.json", "ByT5Tokenizer"
TOKENIZER_JSON, VOCABULARY, SETTINGS = "tokenizer.json", "vocab.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# Classes whose ids follow the file's layout; other classes number the same pieces differently.
CLASSES = {
    T5_FILE: ("T5", "MT5"),
    LLAMA_FILE: ("Llama", "CodeLlama"),
    FAIRSEQ_FILE: ("XLMRoberta", "MBart", "MBart50", "Nllb", "M2M100"),
    WORD_PIECES: ("Bert", "DistilBert"),
    MERGES: ("GPT2", "Roberta", "Bart"),
}
SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
# Settings that name special tokens, files and versions, or count tokens and pad them, which serving
# does by its own settings.
IGNORED = (
    "added_tokens_decoder additional_special_tokens backend bos_token chat_template cls_token "
    "eos_token errors extra_special_tokens init_inputs is_local legacy local_files_only mask_token "
    "max_len max_length merges_file model_input_names model_max_length name_or_path pad_token "
    "pad_token_type_id pad_to_multiple_of padding padding_side processor_class sep_token "
    "special_tokens_map_file stride tokenizer_class tokenizer_file transformers_version "
    "trim_offsets truncation truncation_side truncation_strategy unk_id unk_token use_fast "
    "vocab_file "
    "use_default_system_prompt".split()
)
# Those with an effect, at the values at which our tokenizers do the same.
EXPECTED = {
    "add_bos_token": False,
    "add_eos_token": False,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "sp_model_kwargs": {},
    "spaces_between_special_tokens": True,
    "split_special_tokens": False,
}
# Of mBART-25, in the order of their ids; those of mBART-50 follow.
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
MBART50_LANGUAGES = [
    *MBART_LANGUAGES,
    *(
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
        "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split(),
]
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
            `vocab.json` and `merges.txt` of GPT-2; or with none, if it says that it is ByT5's.

    Returns:
        The tokenizer, one of `tokenizers`, and their id for each of ours, an integer array:
        `array[theirs]` are the rows of a table in our order. It is -1 where they have none. A
        model without a start token starts with the padding token, whose id then appears twice.

    Raises:
        ConversionError: a ValueError, if there is no such file, or it needs something that our
            tokenizers do not support.
    """
    try:
        return _read(Folder(path))
    except ConversionError:
        raise
    except Exception as error:  # of a forged file: RuntimeError of tensorflow-text, and more
        message = f"{path} has a tokenizer that is not supported: {in_one_line(error)}"
        raise ConversionError(message) from None


@contextlib.contextmanager
def name_in_errors(file):
    """Turns errors of our tokenizers into a ConversionError that names the file."""
    try:
        yield
    except ConversionError:
        raise
    except Exception as error:  # of a forged file: RuntimeError of tensorflow-text, and more
        message = f"{file} cannot be one of our tokenizers: {in_one_line(error)}"
        raise ConversionError(message) from None


def check_merges(file, vocabulary, merges):
    """Raises ConversionError if a merges.txt makes fewer than half of the pieces, but for few."""
    pieces = {piece for piece in vocabulary if len(piece) > 1}
    made = {pair.replace(" ", "") for pair in merges} & pieces
    if 2 * len(made) + 20 < len(pieces):
        raise ConversionError(
            f"{file} must have the merges that make the pieces of the vocabulary. Received: "
            f"{len(merges)} merges, which make {len(made)} of {len(pieces)}."
        )


def files_of(folder):
    """The files that a `Folder` has of its tokenizer, for messages."""
    names = (*CLASSES, TOKENIZER_JSON, VOCABULARY, SETTINGS)
    missing = "" if folder.has(SETTINGS) else f", without {SETTINGS},"
    return f"{folder.path}: {' and '.join(filter(folder.has, names))}{missing}"


def tokenizer_settings(folder):
    """The `Settings` of tokenizer_config.json, with those of special_tokens_map.json.

    Args:
        folder: a `Folder`.

    Raises:
        ConversionError: if a file is no JSON object, or the folder adds tokens to its vocabulary
            that are not special: those are found in texts before anything else, ours are not.
    """
    both = (folder.json(name) if folder.has(name) else {} for name in (SPECIAL_TOKENS, SETTINGS))
    tokens, values = both
    settings = Settings(tokens | values, folder.path / SETTINGS)
    settings.ignore(IGNORED)
    settings.expect(**EXPECTED)
    special = [token for key, token in settings.values.items() if key.endswith("_token")]
    special += [token for key in SPECIAL_LISTS for token in settings.items(key)]
    special = {_content(token) for token in special if isinstance(token, (str, dict))}
    added = settings.items("added_tokens_decoder")
    contents = [token.get("content") if isinstance(token, dict) else None for token in added]
    if not all(isinstance(content, str) for content in contents):
        settings.refuse("added_tokens_decoder", "objects with a content", added)
    known = special.union(contents)
    if folder.has(ADDED):
        added += [{"content": name} for name in folder.json(ADDED) if name not in known]
    if not _finds_added(folder):
        special.update(CONTROL_PIECES)  # which some folders call not special
        check_added([token for token in added if token["content"] not in special], folder.path)
    return settings


def _finds_added(folder):
    """Whether the tokenizer of a folder finds added tokens in texts, as ours then does, too."""
    return folder.has(TOKENIZER_JSON) and splits_like_later_models(folder.json(TOKENIZER_JSON))


def start_of(folder, tokenizer, their_id_of):
    """Their id of the token that begins every text of a language model, or None.

    Args:
        folder: a `Folder`.
        tokenizer: of `load_tokenizer_of`.
        their_id_of: of the same.
    """
    if folder.has(TOKENIZER_JSON):
        file = folder.path / TOKENIZER_JSON
        with name_in_errors(file):
            name = start_of_texts(folder.json(TOKENIZER_JSON), file)
    else:  # of Llama's SentencePiece model
        settings = tokenizer_settings(folder)
        settings.one_of("add_eos_token", False, None)
        name = _content(settings.raw("bos_token") or "<s>")
        name = name if settings.flag("add_bos_token", True) else None
    if name is None:
        return None
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    ids = dict(zip(pieces, map(int, their_id_of), strict=True))
    if isinstance(tokenizer, SentencePieceTokenizer):  # whose control pieces have our names
        settings = tokenizer_settings(folder)
        first = _content(settings.raw("bos_token") or "<s>")
        ids[first] = ids.pop("<s>")
        pads = _content(settings.raw("pad_token") or "<pad>")
        if ids[first] == their_id_of[PAD_ID] and first != pads:  # of a model without such a piece
            del ids[first]
    if ids.get(name, -1) < 0:
        raise ConversionError(
            f"{folder.path} must begin texts with a token of its vocabulary. Received: {name!r}."
        )
    return ids[name]


def _read(folder):
    settings, path = tokenizer_settings(folder), folder.path
    vocabulary = folder.json(VOCABULARY) if folder.has(VOCABULARY) else {}
    present = [name for name in CLASSES if folder.has(name)]
    file = next((name for name in present if _is_of_its_class(name, settings)), None)
    if file == LLAMA_FILE or folder.has(TOKENIZER_JSON):
        # As `start_of` says; how special tokens are joined, which texts leave out.
        settings.ignore(["add_bos_token", "spaces_between_special_tokens"])
    name = settings.raw("tokenizer_class")
    if name is None and folder.has(CONFIG):  # as of released ByT5
        name = folder.json(CONFIG).get("tokenizer_class")
    if name == BYTES:
        settings.ignore(["extra_ids"])
        result = SymbolTokenizer(errors="ignore"), np.array([0, 2, 0, 1, *range(3, 259)])
    elif file in (T5_FILE, LLAMA_FILE, FAIRSEQ_FILE):
        with name_in_errors(path / file):
            result = _of_pieces(path / file, settings, vocabulary)
    elif folder.has(TOKENIZER_JSON):
        with name_in_errors(path / TOKENIZER_JSON):
            result = read_tokenizer_json(folder.file(TOKENIZER_JSON))
        if isinstance(result[0], WordPieceTokenizer):
            _check_words(settings, result[0].lowercase)
        elif isinstance(result[0], BytePairTokenizer):  # the setting overrides tokenizer.json's
            settings.one_of("add_prefix_space", False, None)
    elif file == WORD_PIECES:
        # Without the settings capitals decide.
        lowercase = settings.flag("do_lower_case", True) if folder.has(SETTINGS) else None
        with name_in_errors(path / file):
            tokenizer = WordPieceTokenizer.load(path / file, lowercase)
        _check_words(settings, tokenizer.lowercase)
        result = tokenizer, np.arange(tokenizer.vocabulary_size)
    elif file == MERGES and vocabulary:
        settings.one_of("add_prefix_space", False, None)
        with name_in_errors(path / file):
            merges = merges_of(path / file)
        check_merges(path / file, vocabulary, merges)
        with name_in_errors(path / VOCABULARY):
            result = byte_pairs(path / VOCABULARY, vocabulary, merges)
    elif present and file is None:
        raise ConversionError(
            f"{path / present[0]} is supported for {', '.join(CLASSES[present[0]])}. "
            f"Received: a tokenizer_class of {settings.text('tokenizer_class')} in {SETTINGS}."
        )
    else:
        raise ConversionError(
            f"{path} must hold {T5_FILE}, {LLAMA_FILE}, {FAIRSEQ_FILE}, {TOKENIZER_JSON}, "
            f"{WORD_PIECES}, or {VOCABULARY} and {MERGES}."
        )
    settings.ignore(("src_lang", "tgt_lang", "num_madeup_words", "legacy_behaviour"))
    settings.warn_of_unread()
    return result


def _check_words(settings, lowercase):
    """Raises ConversionError if words are split or changed in another way than BERT's."""
    settings.check({
        "do_lower_case": (lowercase, None),
        "strip_accents": (None, lowercase),
        "tokenize_chinese_chars": (True, None),
        "do_basic_tokenize": (True, None),
        "never_split": (None, []),
    })  # fmt: skip
    settings.ignore(("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces"))


def _is_of_its_class(file, settings):
    name = settings.text("tokenizer_class", "")
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    return name in ("", "PreTrained", *CLASSES[file])


def _of_pieces(file, settings, vocabulary):
    """A SentencePiece model, whose pieces have the ids that the class of the tokenizer gives them.

    Args:
        file: path of the SentencePiece model.
        settings: the `Settings` of the tokenizer.
        vocabulary: what vocab.json of M2M100 holds, which gives its pieces their ids.
    """
    model = read_model(file)
    unknown = next((p.piece for p in model.pieces if p.type == PieceType.UNKNOWN), None)
    if unknown is None:
        raise ConversionError(f"{file} must have an unknown piece. Received: none.")
    names, class_name = [p.piece for p in model.pieces], settings.text("tokenizer_class", "")
    if file.name == LLAMA_FILE:
        spec = model.normalizer_spec
        begins = spec.add_dummy_prefix or not spec.HasField("add_dummy_prefix")
        settings.one_of("add_prefix_space", None, begins)
    elif file.name == T5_FILE:
        extra = settings.count("extra_ids", 100, least=0)
        names += [f"<extra_id_{index}>" for index in reversed(range(extra))]
    elif file.name == FAIRSEQ_FILE and (vocabulary or "M2M100" in class_name):
        if not vocabulary:
            raise ConversionError("A tokenizer of M2M100 must have vocab.json. Received: none.")
        languages = M2M100_LANGUAGES[settings.one_of("language_codes", *M2M100_LANGUAGES)]
        pieces = pieces_in_order(file.with_name(VOCABULARY), vocabulary)
        names = [*pieces, *(f"__{name}__" for name in languages)]
    elif file.name == FAIRSEQ_FILE:
        names = ["<s>", "<pad>", "</s>", "<unk>", *names[3:]]
        names += _after_pieces(settings, names, class_name)
    usual = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    control = [_content(settings.raw(name) or piece) for name, piece in usual.items()]
    return in_our_order(model, names, unknown, control)


def _after_pieces(settings, names, class_name):
    """What follows the pieces of XLM-R, mBART and NLLB: their languages, a mask, what was added.

    Args:
        settings: the `Settings` of the tokenizer.
        names: the pieces before, in the order of their ids.
        class_name: that of the tokenizer.
    """
    added = settings.raw("added_tokens_decoder") or {}
    by_id = {int(index): _content(token) for index, token in added.items()}
    if after := {index: by_id[index] for index in sorted(by_id) if index >= len(names)}:
        if [*after] != list(range(len(names), len(names) + len(after))):
            ids = f"every id from {len(names)}, where the pieces end, on"
            settings.refuse("added_tokens_decoder", ids, after)
        return after.values()
    usual = MBART50_LANGUAGES if "MBart50" in class_name else MBART_LANGUAGES
    usual = usual if "MBart" in class_name else []
    listed = [*map(_content, settings.items(SPECIAL_LISTS[0]) or settings.items(SPECIAL_LISTS[1]))]
    languages = [name for name in listed or usual if name not in (*names[:4], "<mask>")]
    if usual and (others := [name for name in languages if name not in usual]):
        expected = "languages of mBART if there is no added_tokens_decoder"
        settings.refuse(SPECIAL_LISTS[0], expected, others)
    return [*languages, "<mask>"]


def _content(token):
    return token.get("content") if isinstance(token, dict) else token
