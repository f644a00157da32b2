"""What is exported of a translation model: a module from text to translations."""

import functools

import tensorflow as tf

from keras_transformer.decoding.search import beam_search
from keras_transformer.models.functions import TranslatorFunctions
from keras_transformer.serving.packing import Packing
from keras_transformer.serving.settings import SearchSettings
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    TEXT,
    ServedModule,
    at_least_one_column,
    check_rows,
    signature,
)
from keras_transformer.serving.translator_trial import nbest_inputs, try_translator
from keras_transformer.tokenizers.sentencepiece import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    SentencePieceTokenizer,
)


class TranslatorModule(ServedModule):
    """Text in, translation out, and the steps between, as the signatures of a SavedModel.

    Inputs and outputs have the batch as their first axis, floating outputs are float32.
    Token ids come with their lengths, in tokens: what lies beyond a length is never read,
    because TensorFlow Serving fills rows up with arbitrary values when it merges requests.
    Ids outside of the vocabulary count as unknown.

    Args:
        functions: the model.
        source_tokenizer: cuts what is translated.
        target_tokenizer: joins translations; None if it is the same.
        settings: of the search; `SearchSettings()` if None.
    """

    def __init__(
        self,
        functions: TranslatorFunctions,
        source_tokenizer: SentencePieceTokenizer,
        target_tokenizer: SentencePieceTokenizer | None = None,
        settings: SearchSettings | None = None,
    ):
        super().__init__(functions.weights, "translator")
        self.functions = functions  # a dataclass: not tracked, so no layer is saved
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.settings = settings or SearchSettings()
        encoded, cache, logits = self._layout()
        self.encoded_packing, self.cache_packing = Packing(encoded), Packing(cache)
        self.vocabulary_size = logits.shape[-1]
        if self.vocabulary_size < self.target_tokenizer.vocabulary_size:
            raise ValueError(
                "The model must score every piece of the target tokenizer. Received: a model of "
                f"{self.vocabulary_size} ids, a tokenizer of "
                f"{self.target_tokenizer.vocabulary_size}."
            )
        self.endpoints = self._endpoints()

    def translate(self, text):
        """The best translation of each text.

        Args:
            text: (batch,) strings. No text gives no text; bytes that are not UTF-8 are
                read as U+FFFD.

        Returns:
            translation, (batch,) strings; score, (batch,), its log-probability in nats over
            ((5 + length) / 6) ** length_penalty; length, (batch,), in tokens with the end;
            truncated, (batch,), whether the text was too long and its rest not read.
        """
        source_ids, truncated, is_empty = self._source(text)
        found = self._search(source_ids, self._limits(source_ids, is_empty), num_best=1)
        return {
            "translation": self.target_tokenizer.detokenize(found.token_ids[:, 0]),
            "score": found.scores[:, 0],
            "length": found.lengths[:, 0],
            "truncated": truncated,
        }

    def translate_nbest(self, text, target_prefix, max_length):
        """The best few translations of each text that begin in a given way.

        Args:
            text: (batch,) strings.
            target_prefix: (batch,) strings with which the translations begin; "" for none.
            max_length: (batch,) longest translation in tokens with its end; 0 for the model's
                own limit. The prefix and an end are always allowed.

        Returns:
            translation, score and length as from `translate`, but (batch, num_best), best
            first; truncated, (batch,), whether text or prefix were cut. Where there are fewer
            translations, the rest are "" with a score of about -1e9.
        """
        check_rows(text, target_prefix, max_length)
        source_ids, source_cut, is_empty = self._source(text)
        prefix = self.target_tokenizer.tokenize(target_prefix)
        longest = self.settings.max_target_length
        prefix_cut = prefix.row_lengths() > longest - 1
        prefix = prefix[:, : longest - 1]
        shortest = tf.cast(prefix.row_lengths(), tf.int32) + 1
        limits = self._limits(source_ids, is_empty)
        limits = tf.where(max_length > 0, max_length, tf.minimum(limits + shortest - 1, longest))
        limits = tf.clip_by_value(limits, shortest, longest)
        count = self.settings.num_best
        found = self._search(source_ids, limits, count, prefix.to_tensor(PAD_ID))
        rows, _, length = tf.unstack(tf.shape(found.token_ids))
        # Each size is given: what -1 stands for cannot be counted where there are no rows.
        ids = tf.reshape(found.token_ids, [rows * count, length])
        return {
            "translation": tf.reshape(self.target_tokenizer.detokenize(ids), [rows, count]),
            "score": found.scores,
            "length": found.lengths,
            "truncated": source_cut | prefix_cut,
        }

    def tokenize(self, text):
        """The tokens of each text and the end, as `encode` and `logits` take them.

        Returns:
            token_ids, (batch, source), filled up with 0; length, (batch,); truncated, (batch,).
        """
        ids, truncated, _ = self._source(text)
        return {"token_ids": ids, "length": _lengths(ids), "truncated": truncated}

    def detokenize(self, token_ids, length):
        """Joins (batch, length) target ids to text, (batch,); control ids are left out."""
        check_rows(token_ids, length)
        inside = tf.sequence_mask(length, tf.shape(token_ids)[1])
        ids = tf.where(inside, token_ids, PAD_ID)
        return {"text": self.target_tokenizer.detokenize(ids)}

    def encode(self, source_ids, source_length):
        """What `decode_step` needs of the source, and the cache before the first step.

        Args:
            source_ids: (batch, source), tokens and the end; cut to `max_source_length`.
            source_length: (batch,).

        Returns:
            encoded, (batch, source, features); source_length, (batch,); cache, (batch, 1,
            features) of zeros, since JSON has no array without columns; cache_length,
            (batch,), 0.
        """
        ids, lengths = self._clean(source_ids, source_length)
        encoded = self.encoded_packing.pack(self.functions.encode(ids))
        batch_size = tf.shape(ids)[0]
        return {
            "encoded": encoded,
            "source_length": lengths,
            "cache": tf.zeros([batch_size, 1, self.cache_packing.features]),
            "cache_length": tf.zeros([batch_size], tf.int32),
        }

    def decode_step(self, token_ids, encoded, source_length, cache, cache_length):
        """Scores what may follow one more token of each row; nothing is kept between calls.

        For beams of a source repeat its rows of `encoded`; to reorder beams reorder the rows
        of `cache`.

        Args:
            token_ids: (batch,) the newest token; the start id in the first step.
            encoded: from `encode`, and source_length.
            cache: from `encode` or the step before, (batch, columns, features), and
                cache_length, its filled columns: the tokens before this one. Rows may differ.

        Returns:
            logits, (batch, vocabulary); cache and cache_length, one column longer.
        """
        check_rows(token_ids, encoded, source_length, cache, cache_length)
        encoded, cache = at_least_one_column(encoded), at_least_one_column(cache)
        inside = tf.sequence_mask(source_length, tf.shape(encoded)[1])
        encoded = tf.where(inside[..., None], encoded, 0.0)  # also makes its mask False there
        columns = tf.shape(cache)[1]
        longest = tf.minimum(columns, self.settings.max_target_length - 1)
        lengths = tf.clip_by_value(cache_length, 0, longest)
        ids = _known(token_ids, self.target_tokenizer)

        def at_position(position):
            rows = tf.where(lengths == position)  # (rows, 1)
            logits, grown = self.functions.step(
                self.encoded_packing.unpack(tf.gather_nd(encoded, rows)),
                tf.gather_nd(ids, rows)[:, None],
                tf.zeros_like(rows, tf.int32),
                position,
                self.cache_packing.unpack(tf.gather_nd(cache, rows)[:, :position]),
            )
            return rows, tf.cast(logits[:, 0], tf.float32), self.cache_packing.pack(grown)[:, -1]

        logits, newest = self._over_positions(at_position, lengths)
        width = tf.maximum(columns, tf.reduce_max(tf.concat([lengths, [0]], 0)) + 1)
        kept = tf.where(tf.sequence_mask(lengths, columns)[..., None], cache, 0.0)
        kept = tf.pad(kept, [[0, 0], [0, width - columns], [0, 0]])
        is_newest = tf.one_hot(lengths, width, on_value=True, off_value=False)[..., None]
        longer = tf.where(is_newest, newest[:, None], kept)
        return {"logits": logits, "cache": longer, "cache_length": lengths + 1}

    def logits(self, source_ids, source_length, target_ids, target_length):
        """Scores the next token after each target position, in one pass.

        Args:
            source_ids: (batch, source), tokens and the end, and source_length, (batch,).
            target_ids: (batch, target), the start id and tokens, and target_length, (batch,).
                Both are cut to the longest lengths of the model.

        Returns:
            logits, (batch, target, vocabulary); of no meaning beyond target_length.
        """
        check_rows(source_ids, target_ids, target_length)
        source, _ = self._clean(source_ids, source_length)
        inside = tf.sequence_mask(target_length, tf.shape(target_ids)[1])
        target = tf.where(inside, _known(target_ids, self.target_tokenizer), PAD_ID)
        target = target[:, : self.settings.max_target_length]
        length = tf.shape(target)[1]
        logits = self.functions.logits(source, at_least_one_column(target))[:, :length]
        return {"logits": tf.cast(logits, tf.float32)}

    def default_inputs(self, texts):
        return {"text": texts}

    def warm_up_requests(self, texts):
        one = nbest_inputs(texts[:1], prefixes=[b""], lengths=[0])
        return [*super().warm_up_requests(texts), ("translate_nbest", one)]

    def row_shapes(self):
        best, vocabulary = (self.settings.num_best,), self.vocabulary_size
        encoded, cache = self.encoded_packing.features, self.cache_packing.features
        return {
            "serving_default": {"translation": (), "score": (), "length": (), "truncated": ()},
            "translate_nbest": {
                "translation": best, "score": best, "length": best, "truncated": (),
            },
            "tokenize": {"token_ids": (None,), "length": (), "truncated": ()},
            "detokenize": {"text": ()},
            "encode": {
                "encoded": (None, encoded), "source_length": (),
                "cache": (1, cache), "cache_length": (),
            },
            "decode_step": {"logits": (vocabulary,), "cache": (None, cache), "cache_length": ()},
            "logits": {"logits": (None, vocabulary)},
        }  # fmt: skip

    def try_out(self, ask, texts, hard_texts):
        try_translator(ask, texts, hard_texts)

    def _endpoints(self):
        encoded = tf.TensorSpec([None, None, self.encoded_packing.features], tf.float32)
        cache = tf.TensorSpec([None, None, self.cache_packing.features], tf.float32)
        return {
            "serving_default": signature(self.translate, TEXT),
            "translate_nbest": signature(self.translate_nbest, TEXT, TEXT, NUMBER),
            "tokenize": signature(self.tokenize, TEXT),
            "detokenize": signature(self.detokenize, IDS, NUMBER),
            "encode": signature(self.encode, IDS, NUMBER),
            "decode_step": signature(self.decode_step, NUMBER, encoded, NUMBER, cache, NUMBER),
            "logits": signature(self.logits, IDS, NUMBER, IDS, NUMBER),
        }

    def _layout(self):
        """Memory, cache and logits as specs, with unknown sizes where requests differ."""

        def start(source_ids):
            encoded = self.functions.encode(source_ids)
            cache = self.functions.start_cache(encoded, 1)
            zeros = tf.zeros([tf.shape(source_ids)[0], 1], tf.int32)  # one beam
            logits, _ = self.functions.step(encoded, zeros, zeros, tf.constant(0), cache)
            return encoded, cache, logits

        spec = tf.TensorSpec([None, None], tf.int32)
        return tf.function(start, autograph=False).get_concrete_function(spec).structured_outputs

    def _source(self, text):
        """Source ids with their end, whether the text was cut, and whether there was none."""
        ids, room = self.source_tokenizer.tokenize(text), self.settings.max_source_length - 1
        lengths = ids.row_lengths()
        ends = tf.fill([ids.nrows(), 1], END_ID)
        ids = tf.concat([ids[:, :room], ends], axis=1).to_tensor(PAD_ID)
        return ids, lengths > room, lengths == 0

    def _clean(self, ids, lengths):
        """Source ids that any model can read, ended also where they had to be cut; lengths."""
        check_rows(ids, lengths)
        longest = self.settings.max_source_length
        inside = tf.sequence_mask(lengths, tf.shape(ids)[1])
        ids = tf.where(inside, _known(ids, self.source_tokenizer), PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, 1]])[:, :longest]  # padded: `ids` may have no column
        is_cut = (lengths > longest)[:, None] & (tf.range(tf.shape(ids)[1]) == longest - 1)
        lengths = tf.clip_by_value(lengths, 0, tf.minimum(tf.shape(inside)[1], longest))
        return tf.where(is_cut, END_ID, ids), lengths

    def _limits(self, source_ids, is_empty):
        """The longest translation of each row: of no text, none; of others, about twice as long."""
        limits = tf.minimum(2 * _lengths(source_ids) + 8, self.settings.max_target_length)
        return tf.where(is_empty, 1, limits)

    def _search(self, source_ids, limits, num_best, prefix=None):
        encoded = self.functions.encode(source_ids)
        return beam_search(
            functools.partial(self.functions.step, encoded),
            self.functions.start_cache(encoded, self.settings.num_beams),
            num_beams=self.settings.num_beams,
            limits=limits,
            start_id=START_ID,
            end_id=END_ID,
            length_penalty=self.settings.length_penalty,
            prefix=prefix,
            n_best=num_best,
        )

    def _over_positions(self, at_position, lengths):
        """Runs a step for each group of rows that stand at the same position; usually one."""
        positions, batch_size = tf.unique(lengths).y, tf.shape(lengths)[0]
        logits = tf.zeros([batch_size, self.vocabulary_size])
        newest = tf.zeros([batch_size, self.cache_packing.features])

        def body(index, logits, newest):
            rows, row_logits, row_newest = at_position(positions[index])
            logits = tf.tensor_scatter_nd_update(logits, rows, row_logits)
            return index + 1, logits, tf.tensor_scatter_nd_update(newest, rows, row_newest)

        _, logits, newest = tf.while_loop(
            lambda index, *_: index < tf.size(positions), body, (0, logits, newest)
        )
        return logits, newest


def _lengths(ids):
    return tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def _known(ids, tokenizer):
    return tf.where((ids >= 0) & (ids < tokenizer.vocabulary_size), ids, UNKNOWN_ID)
