"""Reads the folders of CTranslate2, without CTranslate2: model.bin, vocabularies, config.json."""

import itertools
import logging
import math
import pathlib
import re

import keras
import numpy as np

from keras_transformer.convert import bart, m2m100
from keras_transformer.convert.blocks import row_names
from keras_transformer.convert.ctranslate2 import OUR_SETTINGS, rows
from keras_transformer.convert.ctranslate2_file import ModelFile
from keras_transformer.convert.folder import (
    MAX_JSON_BYTES,
    TORCH_FILE,
    Converted,
    Folder,
    Settings,
    check_words,
)
from keras_transformer.convert.generation import run_sampling, run_settings
from keras_transformer.convert.llama import tokenizer_of
from keras_transformer.convert.sentencepiece import LANGUAGE as MARIAN_LANGUAGE
from keras_transformer.convert.sentencepiece import read_model, rearranged, with_languages
from keras_transformer.convert.t5 import scaled
from keras_transformer.convert.tables import (
    ArrayError,
    ConversionError,
    VocabularyPermutation,
    assign,
    check_shape,
    finite_float32,
    first_of,
    our_order,
)
from keras_transformer.convert.tokenizers import TOKENIZER_JSON, name_in_errors
from keras_transformer.decoding import TokenRules
from keras_transformer.files import in_one_line, read_json
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.decoder_only import language_model
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.ops.positions import sinusoidal_positions
from keras_transformer.serving.settings import (
    SamplingSettings,
    SearchSettings,
    read_sampling,
    read_token_rules,
    usual_max_tokens,
)
from keras_transformer.tokenizers.control_ids import START_ID
from keras_transformer.tokenizers.load import load_tokenizer
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES
from keras_transformer.tokenizers.whitespace import WhitespaceTokenizer

FILE, CONFIG = "model.bin", "config.json"
# Oldest and newest revision of each specification; its heads where a file does not say how many.
TRANSLATION = {
    "TransformerSpec": (2, 7, 8),
    "TransformerBase": (2, 7, 8),
    "TransformerBig": (2, 7, 16),
}
LANGUAGE_MODEL = {"TransformerDecoderSpec": (1, 8, 8)}
ACTIVATIONS = {0: "relu", 1: gelu_tanh, 2: "silu", 3: "gelu"}
# Before revision 5 both sides had them together.
TOGETHER = "num_heads pre_norm activation embeddings_merge alignment_layer alignment_heads".split()
# They change no answer: of attention that is returned, and of the sum of several sources.
IGNORED = (
    "encoder/embeddings_merge decoder/alignment_layer decoder/alignment_heads "
    "decoder/alibi_use_positive_positions decoder/scale_alibi".split()
)
OFF = (
    "encoder/multi_query_attention encoder/sliding_window decoder/sliding_window decoder/alibi "
    "decoder/start_from_zero_embedding decoder/final_logit_softcapping".split()
)
PADS = ("<pad>", "<blank>", "[PAD]")
LANGUAGE = re.compile(f"{m2m100.LANGUAGE.pattern}|{bart.LANGUAGE.pattern}")
# In pieces of SentencePiece, OpenNMT's tokenizer, subword-nmt, byte pairs, BERT and fastBPE.
SIGNS_OF_PIECES = re.compile("[\u2581\uffed\u0120]|@@|^##|</w>$")
SINES = re.compile("^(en|de)coder/position_encodings/encodings$")
USUAL_SINES = {"interleaved": True, "first_position": 0, "max_wavelength": 10000}
TOLERANCE, TOLERANCE_OF_HALF = 1e-3, 8e-3  # of sines
# What its translators do where nobody tells them otherwise.
SEARCH = {"num_beams": 2, "length_penalty": 1.0, "scoring": "huggingface_early_stopping"}
RULES = TokenRules(min_length=2, forces_end=False)
MAX_SOURCE_LENGTH, MAX_TARGET_LENGTH, CONTEXT = 1024, 256, 1024
DROPOUT = 0.1  # of training; the file does not say


def is_folder(path):
    """Whether a folder is one of CTranslate2's, not Hugging Face's with such a file beside."""
    path = pathlib.Path(path)
    if not (path / FILE).is_file():
        return False
    is_theirs = any(path.glob("*.safetensors")) or (path / TORCH_FILE).is_file()
    return not (is_theirs and "model_type" in Folder(path).json(CONFIG))


def read(path):
    """Reads a folder of CTranslate2: a translation or language model, and its tokenizers.

    Args:
        path: path of the folder. Beside the files of CTranslate2 it holds `tokenizer.model`, which
            `write` has put there, or SentencePiece models; without any, tokens are separated by
            spaces.

    Returns:
        `Converted`.

    Raises:
        ConversionError: if a file is missing or damaged, or the model is not supported.
    """
    folder = Folder(path)
    file = ModelFile(folder.file(FILE))
    known = TRANSLATION | LANGUAGE_MODEL
    oldest, newest, num_heads = known.get(file.specification, (2, 7, 0))
    if file.specification not in known or not oldest <= file.revision <= newest:
        raise ConversionError(
            f"{file.path} must hold a {', '.join(known)} of revision {oldest} to "
            f"{newest}. Received: a {file.specification!r:.80} of revision {file.revision}."
        )
    reader = _LanguageModel if file.specification in LANGUAGE_MODEL else _Translation
    try:
        return reader(folder, file, num_heads).converted()
    except ConversionError as error:
        place = file.path if isinstance(error, ArrayError) else path
        message = str(error) if str(path) in str(error) else f"{place}: {error}"
        raise ConversionError(message) from None
    except ValueError as error:  # of our layers
        raise ConversionError(f"{path} cannot be one of our models: {in_one_line(error)}") from None


class _Reader:
    """What translation and language models have in common.

    Args:
        folder: a `Folder`.
        file: its `ModelFile`.
        num_heads: of attention, where the file does not say.

    Attributes:
        scalars: the `Settings` of model.bin.
        config: those of config.json.
        weights: the `Weights`.
    """

    sides = ("decoder",)

    def __init__(self, folder, file, num_heads):
        self.folder, self.file, self.vocabulary_files = folder, file, {}
        self.num_heads = num_heads
        self.weights = file.weights.renamed(_newer_name)
        values = {_newer_name(name): value for name, value in file.scalars.items()}
        for name in TOGETHER:
            value = values.pop(name, None)
            for side in self.sides:
                if value is not None:
                    values.setdefault(f"{side}/{name}", value)
        self.scalars = Settings(values, file.path)
        self.scalars.ignore(IGNORED)
        for name in OFF:
            self.scalars.one_of(name, 0)
        self.config = Settings(self._config(values), folder.path / CONFIG)
        # How weights may be split, and tokens that the tokenizers of `write` have, too.
        self.config.ignore("multi_query_attention bos_token decoder_start_token eos_token".split())
        for name in ("quantization_type", "quantization_bits", "quantization_group_size"):
            self.config.one_of(name, None, 0)

    def _config(self, values):
        """The content of config.json, or what older files have instead of it."""
        if self.file.version >= 6:
            return self.folder.json(CONFIG)
        content = self.folder.json(CONFIG) if self.folder.has(CONFIG) else {}
        usual = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        content |= {name: values.pop(name, token) for name, token in usual.items()}
        for side in ("source_bos", "source_eos"):
            content[f"add_{side}"] = bool(values.pop(f"with_{side}", 0))
        start = "bos_token" if values.pop("with_target_bos", 1) else "eos_token"
        is_free = values.pop("user_decoder_start_tokens", 0)
        content["decoder_start_token"] = None if is_free else content[start]
        return content

    def table(self, side):
        return "encoder/embeddings_0/weight" if side == "encoder" else "decoder/embeddings/weight"

    def words(self, side, *names):
        """The tokens of a side from the first vocabulary that is there, a name for each row."""
        files = [f"{name}.{ending}" for name in names for ending in ("json", "txt")]
        name = next(filter(self.folder.has, files), None)
        if name is None:
            raise ConversionError(f"{self.folder.path} must hold {' or '.join(files)}.")
        path = self.folder.path / name
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
            words = read_json(path) if path.suffix == ".json" else _lines_of(path)
        except (ValueError, OSError) as error:
            raise ConversionError(f"{path} must hold a vocabulary. Received: {error}") from None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ConversionError(f"{path} must hold a list of tokens. Received: {words!r:.80}.")
        self.vocabulary_files[side] = path
        table, unknown = self.table(side), self.config.text("unk_token")
        size = self.weights.rows(first_of((table,), self.weights, "CTranslate2"))
        if unknown not in words and len(words) != size:
            words = [*words, unknown]
        if len(words) != size:
            raise ConversionError(
                f"{path} must hold {size} words, one for each row of {table} and {unknown!r:.80} "
                f"among them. Received: {len(words)}."
            )
        return words

    def blocks(self, side):
        """The dimensions of a side, and what else its blocks are, as arguments of our models."""
        weights, scalars = self.weights, self.scalars
        first = f"{side}/layer_0/"
        widen = f"{first}ffn/linear_0/weight"
        needed = self.table(side), f"{first}self_attention/linear_1/weight", widen
        if missing := [name for name in needed if len(self._shape(name)) != 2]:
            raise ConversionError(
                f"{self.file.path} must hold {missing[0]} with two axes. "
                f"Received: {self._shape(missing[0]) or None}."
            )
        hidden_dim = self._shape(self.table(side))[1]
        num_heads = scalars.count(f"{side}/num_heads", self.num_heads)
        width = self._shape(needed[1])[1] // num_heads
        for attention in ("self_attention", "attention"):
            name = f"{attention}/head_dim"
            if (stored := self.of_layers(side, name, width)) != width:
                self.scalars.refuse(f"{first}{name}", f"{width}, as wide as the heads are", stored)
        shared = self.of_layers(side, "self_attention/num_heads_kv", num_heads)
        # What attention divides by where the file does not say, even if heads are narrower.
        self.usual_width = max(1, hidden_dim // num_heads)
        dimensions = {
            "num_layers": self.num_layers(side),
            "hidden_dim": hidden_dim,
            "intermediate_dim": weights.rows(widen),
            "num_heads": num_heads,
        }
        biases = [name for name in weights if name.startswith(first) and name.endswith("/bias")]
        is_rms = f"{first}ffn/layer_norm/beta" not in weights
        activation = scalars.one_of(f"{side}/activation", *ACTIVATIONS)
        options = {
            "key_dim": width,
            "use_bias": bool(biases),
            "activation": ACTIVATIONS[activation],
            "normalize_first": bool(scalars.one_of(f"{side}/pre_norm", 1, 0)),
            "gated": f"{first}ffn/linear_0_noact/weight" in weights,
            "normalization": "rms" if is_rms else "layer",
            "norm_epsilon": self.config.number("layer_norm_epsilon", 1e-6 if is_rms else 1e-5),
            "scale_embedding": self._scales(side, hidden_dim),
        }
        bias = f"{first}self_attention/relative_attention_bias"
        if bias in weights:
            distance = self.of_layers(side, "self_attention/relative_attention_max_distance", None)
            buckets = weights.rows(bias)
            options["position_bias"] = {
                "type": "t5", "num_buckets": buckets, "max_distance": distance,
            }  # fmt: skip
        return dimensions, options, shared

    def _shape(self, name):
        return self.weights.shape(name) if name in self.weights else ()

    def num_layers(self, side):
        start = re.compile(rf"{side}/layer_(\d+)/")
        return len({match[1] for match in map(start.match, self.weights) if match})

    def of_layers(self, side, name, default):
        """A whole number that all layers of a side have."""
        names = [f"{side}/layer_{i}/{name}" for i in range(self.num_layers(side))]
        for other in names[1:]:
            if self.scalars.raw(other) != self.scalars.raw(names[0]):
                self.scalars.refuse(other, f"equal to {names[0]}", self.scalars.raw(other))
        return self.scalars.count(names[0], default)

    def _scales(self, side, hidden_dim):
        """Whether token vectors are multiplied by the root of their width."""
        name = f"{side}/scale_embeddings"
        value, root = self.scalars.raw(name), math.sqrt(hidden_dim)
        if value is None or (type(value) is int and value in (0, 1)):  # a flag
            return value != 0
        value = self.scalars.number(name, None)
        if not math.isclose(value, 1) and not math.isclose(value, root, rel_tol=1e-3):
            self.scalars.refuse(name, f"1 or the root of the width, {root:.6g}", value)
        return not math.isclose(value, 1)

    def positions(self, side, hidden_dim):
        """Arguments of `SinusoidalEncoding`, or the number of learned positions."""
        name = f"{side}/position_encodings/encodings"
        if hidden_dim < 4 or hidden_dim % 2:
            raise ConversionError(
                f"{self.table(side)} must be at least 4 wide and even. Received: {hidden_dim}."
            )
        longest = 10000 ** (hidden_dim / (hidden_dim - 2))  # the last rate is 1 / 10000
        if name not in self.weights:
            return {"interleaved": False, "first_position": 1, "max_wavelength": longest}
        shape = self._shape(name)
        check_shape(name, (*shape[:1], hidden_dim), shape)
        stored = self.weights[name]
        table, is_whole = finite_float32(name, stored), stored.dtype.name == "float32"
        for interleaved, first, wavelength in itertools.product(
            (True, False), (0, 1, 2), (10000, longest)
        ):
            sines = sinusoidal_positions(len(table), hidden_dim, first, wavelength, interleaved)
            difference = np.abs(keras.ops.convert_to_numpy(sines) - table).max()
            if difference < (TOLERANCE if is_whole else TOLERANCE_OF_HALF):
                return {
                    "interleaved": interleaved, "first_position": first,
                    "max_wavelength": wavelength,
                }  # fmt: skip
        return len(table)

    def check_shapes(self, side, dimensions, options, words):
        """Compares the sizes of a side with its arrays, before a model is built."""
        hidden_dim, inside = dimensions["hidden_dim"], dimensions["intermediate_dim"]
        heads = dimensions["num_heads"] * options["key_dim"]
        shapes = {self.table(side): (len(words), hidden_dim)}
        for index in range(dimensions["num_layers"]):
            layer = f"{side}/layer_{index}"
            shapes[f"{layer}/ffn/linear_0/weight"] = inside, hidden_dim
            shapes[f"{layer}/self_attention/linear_1/weight"] = hidden_dim, heads
        self.weights.check(shapes, "CTranslate2")

    def equal(self, name, other):
        """Whether two arrays are one."""
        weights = self.weights
        first, second = (first_of((n,), weights, "CTranslate2") for n in (name, other))
        same_shape = weights.shape(first) == weights.shape(second)
        return same_shape and np.array_equal(weights[name], weights[other])

    def fill(self, model, width, *orders):
        """Assigns all arrays to a model; one that it has no place for is refused.

        Args:
            model: the model.
            width: of a head of its attention.
            *orders: the `VocabularyPermutation` of the target, and of the source.
        """
        table = [self._scaled(row, width) for row in rows(model, *orders)]
        known = {name for row in table for name in (*row.names, *row.twins)}
        weights = self.weights
        if not any(map(SINES.search, known)):
            weights = weights.without(SINES)
        unread = [name for name in weights if name not in known]
        unread += [f"{name}={value!r:.80}" for name, value in self.scalars.unread().items()]
        if unread:
            raise ConversionError(f"{self.file.path}: {unread[0]} is not supported.")
        assign(table, weights, "CTranslate2")

    def _scaled(self, row, width):
        """A row whose biases may be missing, with the scale of queries or outputs."""
        scope, _, kind = row.names[0].rpartition("/")
        part = scope.rpartition("/")[0]
        if kind == "bias":
            row = row._replace(missing=0.0)
        factor, count = 1.0, None
        if scope.endswith("attention/linear_0"):
            usual = self.scalars.count(f"{part}/head_dim", self.usual_width)
            factor = self.scalars.number(f"{part}/queries_scale", 1 / math.sqrt(usual))
            factor *= math.sqrt(width)
        elif scope == "decoder/layer_norm":
            factor = self.scalars.number("decoder/scale_outputs", 1.0)
        if math.isclose(factor, 1, rel_tol=1e-6):
            return row
        if part.endswith("/self_attention"):
            count = width * self.scalars.count("decoder/num_heads", self.num_heads)
            if f"{part}/q_norm/gamma" in self.weights:
                raise ConversionError(
                    f"{self.file.path}: {part}/queries_scale must be that of attention where "
                    f"queries are normalised. Received: {factor:.6g} times as much."
                )
        return scaled(row, factor, count)


class _Translation(_Reader):
    sides = ("encoder", "decoder")

    def converted(self):
        config, weights = self.config, self.weights
        config.one_of("add_source_bos", False)
        words = [
            self.words(side, "shared_vocabulary", f"{name}_vocabulary")
            for side, name in zip(self.sides, ("source", "target"), strict=True)
        ]
        (source, options, shared), (target, others, _) = map(self.blocks, self.sides)
        source["positions"], target["positions"] = None, None
        if "position_bias" not in options:
            for side, one in zip(self.sides, (source, target), strict=True):
                one["positions"] = self.positions(side, one["hidden_dim"])
        for name, value in ({**source, **options}).items():
            other = {**target, **others}.get(name)
            if other != value and name != "num_layers":
                raise ConversionError(
                    f"{self.file.path}: encoder and decoder must have equal {name}. "
                    f"Received: {value!r:.80} and {other!r:.80}."
                )
        if shared != source["num_heads"]:
            raise ConversionError(
                f"{self.file.path}: encoder/layer_0/self_attention/num_heads_kv must be "
                f"{source['num_heads']}, as num_heads. Received: {shared}."
            )
        for side, one, names in zip(self.sides, (source, target), words, strict=True):
            self.check_shapes(side, one, options, names)
        positions = source.pop("positions")
        is_learned = isinstance(positions, int)
        orders, tokenizers, is_ours = self._tokenizers(words)
        ends_sources = self._ends_sources(tokenizers[0])
        table, bias = self.table("decoder"), "decoder/projection/bias"
        is_shared = words[0] == words[1] and self.equal(self.table("encoder"), table)
        dimensions = source | {"num_decoder_layers": target["num_layers"], "dropout": DROPOUT}
        model = translation(
            len(orders[0]),
            None if is_shared else len(orders[1]),
            tie_output=self.equal("decoder/projection/weight", table),
            output_bias=bias in weights or orders[1].repeats_start,
            positions=None if is_learned else positions,
            source_end=ends_sources,
            max_sequence_length=positions if is_learned else None,
            embedding_norm="decoder/layernorm_embedding/gamma" in weights,
            **options,
            **dimensions,
        )
        self.fill(model, options["key_dim"], orders[1], orders[0])
        if model.output_bias is not None:
            numbers = keras.ops.convert_to_numpy(model.output_bias.bias)
            if not np.delete(numbers, START_ID).any():  # it only excludes the start token
                model.output_bias.trainable = False
        search = self._search(positions if is_learned else None, is_ours, ends_sources)
        config.warn_of_unread()
        run = run_settings(search, dimensions)
        if is_ours and config.has(OUR_SETTINGS):
            names = ("source_language", "target_language", "source_prefix")
            run |= {name: config.part(OUR_SETTINGS).text(name, "") for name in names}
        return Converted("translation", model, *tokenizers, settings=search, config=run)

    def _tokenizers(self, words):
        """The orders and tokenizers of both sides, and whether `write` has put these there."""
        path = self.folder.path
        has_target = self.folder.has("target_tokenizer.model")
        name = "target_tokenizer.model" if has_target else "tokenizer.model"
        pairs = zip(("tokenizer.model", name), words, strict=True)
        ours = [_ours(self.folder, one, tokens) for one, tokens in pairs]
        names = "unk_token", "decoder_start_token", "eos_token"
        tokens = [self.config.raw(name) for name in names]
        own = [words[1][1:4]]
        if self.config.has(OUR_SETTINGS):
            own.append(["<unk>", words[1][2], "</s>"])  # what `write` leaves as it is
        if all(ours) and tokens in own:
            orders = [VocabularyPermutation(range(len(side))) for side in words]
            return orders, ours if has_target else ours[:1], True
        orders = [self._order(side, names) for side, names in zip(self.sides, words, strict=True)]
        pairs = zip(words, orders, strict=True)
        names = [[tokens[i] for i in order.their_id_of] for tokens, order in pairs]
        if files := self._sentencepiece_files():
            return orders, list(map(self._sentencepiece, files, names)), False
        for side, tokens in zip(("source", "target"), words, strict=True):
            if piece := next(filter(SIGNS_OF_PIECES.search, tokens), None):
                raise ConversionError(
                    f"{path} must hold the SentencePiece model that cuts the {side} texts into "
                    f"pieces such as {piece!r}: {side}.model, {side}.spm, or one *.model for both "
                    "sides. Received: none, and pieces of other tokenizers are not supported."
                )
        found = []
        for side, tokens, lines in zip(self.sides, names, words, strict=True):
            check_words(self.vocabulary_files[side], lines)
            with name_in_errors(self.vocabulary_files[side]):
                found.append(WhitespaceTokenizer(_without_control(tokens)))
        return orders, found, False

    def _ends_sources(self, tokenizer):
        """Whether sources end with the end token.

        CTranslate2 adds it, or the tokenizers of Hugging Face's models do, which begin translations
        with the padding or the end. Of tokens separated by spaces CTranslate2's word holds.
        """
        if isinstance(tokenizer, WhitespaceTokenizer):
            return self.config.flag("add_source_eos", False)
        start = self.config.raw("decoder_start_token")
        begins_otherwise = start in (*PADS, self.config.raw("eos_token"))
        return self.config.flag("add_source_eos", False) or begins_otherwise

    def _order(self, side, words):
        """The `VocabularyPermutation` of a side."""
        tokens = {name: self.config.text(f"{name}_token") for name in ("unk", "eos")}
        if self.config.raw("decoder_start_token") is None:
            self.config.refuse("decoder_start_token", "a token of the vocabulary", None)
        tokens["start"] = self.config.text("decoder_start_token")
        places = {name: words.index(t) if t in words else None for name, t in tokens.items()}
        needed = places if side == "decoder" else ("unk",)
        if missing := [tokens[name] for name in needed if places[name] is None]:
            raise ConversionError(
                f"{self.vocabulary_files[side]} must have {missing[0]!r:.80}, which {CONFIG} "
                f"names. Received: {len(words)} other tokens."
            )
        unknown, end, start = (
            places["unk"] if place is None else place for place in places.values()
        )
        pad = next((words.index(name) for name in PADS if name in words), start)
        if side == "decoder" and pad == start == end:
            raise ConversionError(
                f"{self.folder.path} must have one of {', '.join(PADS)} in its vocabulary, or "
                "start translations with another token than they end with."
            )
        return VocabularyPermutation(our_order(len(words), pad, unknown, start, end))

    def _sentencepiece_files(self):
        """The names of the SentencePiece models of source and target; none if there are none."""
        sides = [(f"{side}.model", f"{side}.spm") for side in ("source", "target")]
        found = [next(filter(self.folder.has, names), None) for names in sides]
        if any(found) and not all(found):
            raise ConversionError(
                f"{self.folder.path} must hold a SentencePiece model of each side. Received: only "
                f"{found[0] or found[1]}."
            )
        others = [path.name for path in self.folder.path.glob("*.model")]
        return found if all(found) else others * 2 if len(others) == 1 else []

    def _sentencepiece(self, file, words):
        """The `SentencePieceTokenizer` of a file, with the ids of these words."""
        path = self.folder.file(file)
        model = read_model(path)
        pieces = [piece.piece for piece in model.pieces]
        known = {*pieces, *CONTROL_PIECES, *PADS}
        lacking = [word for word in words[4:] if word not in known]
        _check_tokenizer(path, len(words) - 4 - len(lacking), pieces, words[4:])
        has_languages = any(map(MARIAN_LANGUAGE.fullmatch, words))
        with name_in_errors(path):
            tokenizer = with_languages(rearranged(model, words, has_languages), LANGUAGE)
        entered = re.compile(f"{LANGUAGE.pattern}|{MARIAN_LANGUAGE.pattern}|.")
        if lacking := [word for word in lacking if not entered.fullmatch(word)]:
            logging.getLogger(__name__).warning(
                "%s lacks %d words of the vocabulary, which no text can hold: %s%s.",
                path, len(lacking), ", ".join(lacking[:3]), " …" * (len(lacking) > 3),
            )  # fmt: skip
        return tokenizer

    def _search(self, num_positions, is_ours, ends_sources):
        """The `SearchSettings`: those that `write` has stored, or what CTranslate2 does."""
        if is_ours and self.config.has(OUR_SETTINGS):
            part = self.config.part(OUR_SETTINGS)
            return SearchSettings(
                num_beams=part.count("num_beams"),
                length_penalty=part.number("length_penalty", None),
                max_source_length=part.count("max_length"),
                max_target_length=part.count("max_target_length"),
                scoring=part.text("scoring"),
                token_rules=read_token_rules(part.text("token_rules")),
            )
        longest = MAX_SOURCE_LENGTH + (not ends_sources)
        lengths = longest, MAX_TARGET_LENGTH
        lengths = [min(length, num_positions or length) for length in lengths]
        names = ("max_source_length", "max_target_length")
        return SearchSettings(**SEARCH, **dict(zip(names, lengths, strict=True)), token_rules=RULES)


class _LanguageModel(_Reader):
    def converted(self):
        config, weights = self.config, self.weights
        words = self.words("decoder", "vocabulary")
        dimensions, options, shared = self.blocks("decoder")
        tokenizer, start = _ours(self.folder, "tokenizer.model", words), None
        is_ours = tokenizer is not None and self._names_its_tokens(tokenizer, words)
        if not is_ours:
            tokenizer, start = self._released_tokenizer(words)
        self.check_shapes("decoder", dimensions, options, words)
        positions = None
        if rotary := self._rotary():
            attention = {"rotary": rotary, "num_key_value_heads": shared}
            attention |= self._biases()
            if "decoder/layer_0/self_attention/q_norm/gamma" in weights:
                attention["query_key_norm"] = options["norm_epsilon"]
            options |= {"attention_arguments": attention, "use_bias": False}
        elif "position_bias" not in options:
            positions = self.positions("decoder", dimensions["hidden_dim"])
        is_learned = isinstance(positions, int)
        if not is_learned and positions not in (None, USUAL_SINES):
            raise ConversionError(
                f"{self.file.path}: decoder/position_encodings/encodings must be learned, or the "
                f"sines and cosines {USUAL_SINES}. Received: {positions}."
            )
        model = language_model(
            len(words),
            positions if is_learned else None,
            tie_output=self.equal("decoder/projection/weight", self.table("decoder")),
            dropout=DROPOUT,
            **options,
            **dimensions,
        )
        self.fill(model, options["key_dim"])
        context = positions if is_learned else CONTEXT
        if is_ours and config.has(OUR_SETTINGS):
            ours = config.part(OUR_SETTINGS)
            context = ours.count("context", least=2)
            sampling = read_sampling(ours.text("sampling"), context)
        else:
            first = None if start is None else tokenizer.first_id + start
            # CTranslate2 takes the most likely token where nobody tells it otherwise.
            lengths = context, usual_max_tokens(context)
            sampling = SamplingSettings(*lengths, top_k=1, start_id=first)
        config.warn_of_unread()
        run = {"model": "transformer", "size": "small", "tokens": "pieces", "context": context}
        run |= {"blocks": "llama" if rotary else "transformer", "sampling": run_sampling(sampling)}
        run |= dimensions | {"dropout": DROPOUT}
        return Converted("language_model", model, tokenizer, settings=sampling, config=run)

    def _names_its_tokens(self, tokenizer, words):
        """Whether config.json names the unknown and the end token as `write` does."""
        end = getattr(tokenizer, "end_of_text_id", None)
        own = [words[1], words[3 if end is None else end]]
        return [self.config.raw(name) for name in ("unk_token", "eos_token")] == own

    def _released_tokenizer(self, words):
        """A released tokenizer with these tokens, and their id that begins texts or None."""
        end = self.config.text("eos_token")
        if end not in words:
            self.config.refuse("eos_token", "a token of the vocabulary", end)
        tokenizer, start = tokenizer_of(self.folder, len(words), [words.index(end)])
        pieces = tokenizer.pieces(range(tokenizer.first_id, tokenizer.vocabulary_size))
        count = sum(map(str.__eq__, pieces, words))
        _check_tokenizer(self.folder.path, count, pieces, words)
        is_gpt2 = self.folder.has("merges.txt") and not self.folder.has(TOKENIZER_JSON)
        return tokenizer, None if is_gpt2 else start

    def _biases(self):
        """Which projections of attention have biases."""
        scope = "decoder/layer_0/self_attention"
        names = {"use_bias": "linear_0", "use_output_bias": "linear_1"}
        return {ours: f"{scope}/{name}/bias" in self.weights for ours, name in names.items()}

    def _rotary(self):
        """The arguments of `RotaryEmbedding`, or None."""
        scalars = self.scalars
        if not scalars.has("decoder/layer_0/self_attention/rotary_dim"):
            return None
        found = []
        for index in range(self.num_layers("decoder")):
            scope = f"decoder/layer_{index}/self_attention"
            dim = scalars.count(f"{scope}/rotary_dim", least=0)
            kind = scalars.one_of(f"{scope}/rotary_scaling_type", None, 0)
            factor = scalars.number(f"{scope}/rotary_scaling_factor", 1.0)
            found.append({
                "max_wavelength": scalars.number(f"{scope}/rotary_base", 10000.0),
                "interleaved": bool(scalars.one_of(f"{scope}/rotary_interleave", 1, 0)),
                "rotary_dim": dim or None,
                "scaling": None if kind is None else {"type": "linear", "factor": factor},
            })  # fmt: skip
        if any(one != found[0] for one in found):
            raise ConversionError(
                f"{self.file.path}: all layers must have equal rotary positions. Received: others."
            )
        return found[0]


def _newer_name(name):
    """The name that a variable of an older file has today."""
    name = re.sub("^encoder/embeddings/", "encoder/embeddings_0/", name)
    return re.sub("/embeddings(_0)?/multiply_by_sqrt_depth$", "/scale_embeddings", name)


def _lines_of(path):
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    return lines


def _ours(folder, name, words):
    """The tokenizer of a file if it has these tokens, otherwise None."""
    if not folder.has(name):
        return None
    try:
        tokenizer = load_tokenizer(folder.file(name))
    except ValueError:  # a SentencePiece model of another library
        return None
    return tokenizer if row_names(tokenizer, len(words)) == words else None


def _check_tokenizer(path, count, pieces, words):
    """Raises ConversionError if a tokenizer has fewer than half of the words of a vocabulary."""
    if 2 * count < len(words):
        raise ConversionError(
            f"{path} must hold the tokenizer of its vocabulary. Received: one with other tokens, "
            f"{pieces[:5]!r:.200} first instead of {words[:5]!r:.200}."
        )


def _without_control(names):
    """The tokens behind the four control tokens, none of which has the name of one of ours."""
    return [f"<unused_{n[1:-1]}>" if n in CONTROL_PIECES else n for n in names[4:]]
