"""The signatures of a translator that take token ids, for a search on the client's side."""

import tensorflow as tf

from keras_transformer.serving.packing import Packing
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    at_least_one_column,
    check_rows,
    signature,
)
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, UNKNOWN_ID


class TokenSignatures:
    """`encode` once, then `decode_step` for each token; or `logits` in one pass.

    The server keeps no state between calls: the encoded source and the cache travel with each
    request, packed into one tensor each.

    Args:
        model: with the methods that `models.TextModel` documents.
        source_tokenizer: of the source ids.
        target_tokenizer: of the target ids.
        settings: `SearchSettings`, of which the length limits count.
    """

    def __init__(self, model, source_tokenizer, target_tokenizer, settings):
        self.model = model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.settings = settings
        encoded, cache, logits = self._specs()
        self.encoded_packing, self.cache_packing = Packing(encoded), Packing(cache)
        self.vocabulary_size = logits.shape[-1]

    def encode(self, source_ids, source_length):
        """Encodes sources and makes the cache of the first step.

        Args:
            source_ids: (batch, source), tokens and the end token; truncated to
                `max_source_length`.
            source_length: (batch,) in tokens; columns beyond it are not read.

        Returns:
            encoded, (batch, source, features); source_length, (batch,); cache, (batch, 1,
            features) of zeros, because JSON has no array without columns; cache_length, (batch,)
            of zeros.
        """
        ids, lengths = self._clean(source_ids, source_length)
        encoded = self.encoded_packing.pack(self.model.encode(ids))
        batch_size = tf.shape(ids)[0]
        return {
            "encoded": encoded,
            "source_length": lengths,
            "cache": tf.zeros([batch_size, 1, self.cache_packing.features]),
            "cache_length": tf.zeros([batch_size], tf.int32),
        }

    def decode_step(self, token_ids, encoded, source_length, cache, cache_length):
        """Scores the token after the newest token of each row.

        For several beams per source, repeat its rows of `encoded`; to reorder beams, reorder the
        rows of `cache`.

        Args:
            token_ids: (batch,) the newest tokens; the start token in the first step.
            encoded: from `encode`.
            source_length: from `encode`.
            cache: (batch, columns, features), from `encode` or the previous step.
            cache_length: (batch,) columns of the cache in use, i.e. the number of tokens before
                the newest one. It may differ from row to row.

        Returns:
            logits, (batch, vocabulary); cache and cache_length, one column longer.
        """
        check_rows(token_ids, encoded, source_length, cache, cache_length)
        encoded, cache = at_least_one_column(encoded), at_least_one_column(cache)
        inside = tf.sequence_mask(source_length, tf.shape(encoded)[1])
        encoded = tf.where(inside[..., None], encoded, 0.0)  # also sets its packed mask to False
        columns = tf.shape(cache)[1]
        longest = tf.minimum(columns, self.settings.max_target_length - 1)
        lengths = tf.clip_by_value(cache_length, 0, longest)
        ids = _known(token_ids, self.target_tokenizer)

        def at_position(position):
            rows = tf.where(lengths == position)  # (rows, 1)
            logits, extended = self.model.step(
                self.encoded_packing.unpack(tf.gather_nd(encoded, rows)),
                tf.gather_nd(ids, rows)[:, None],
                tf.zeros_like(rows, tf.int32),
                position,
                self.cache_packing.unpack(tf.gather_nd(cache, rows)[:, :position]),
            )
            newest = self.cache_packing.pack(extended)[:, -1]
            return rows, tf.cast(logits[:, 0], tf.float32), newest

        logits, newest = self._over_positions(at_position, lengths)
        width = tf.maximum(columns, tf.reduce_max(tf.concat([lengths, [0]], 0)) + 1)
        kept = tf.where(tf.sequence_mask(lengths, columns)[..., None], cache, 0.0)
        kept = tf.pad(kept, [[0, 0], [0, width - columns], [0, 0]])
        is_newest = tf.one_hot(lengths, width, on_value=True, off_value=False)[..., None]
        extended = tf.where(is_newest, newest[:, None], kept)
        return {"logits": logits, "cache": extended, "cache_length": lengths + 1}

    def logits(self, source_ids, source_length, target_ids, target_length):
        """Scores the next token after each target position, in one pass.

        Source and target are truncated to the limits of the settings.

        Args:
            source_ids: (batch, source), tokens and the end token.
            source_length: (batch,) in tokens.
            target_ids: (batch, target), the start token and tokens.
            target_length: (batch,) in tokens.

        Returns:
            logits, (batch, target, vocabulary); arbitrary beyond target_length.
        """
        check_rows(source_ids, target_ids, target_length)
        source, _ = self._clean(source_ids, source_length)
        inside = tf.sequence_mask(target_length, tf.shape(target_ids)[1])
        target = tf.where(inside, _known(target_ids, self.target_tokenizer), PAD_ID)
        target = target[:, : self.settings.max_target_length]
        length = tf.shape(target)[1]
        logits = self.model.logits(source, at_least_one_column(target))[:, :length]
        return {"logits": tf.cast(logits, tf.float32)}

    def endpoints(self):
        """{signature: tf.function}, part of `ServedModule.endpoints`."""
        encoded = tf.TensorSpec([None, None, self.encoded_packing.features], tf.float32)
        cache = tf.TensorSpec([None, None, self.cache_packing.features], tf.float32)
        return {
            "encode": signature(self.encode, source_ids=IDS, source_length=NUMBER),
            "decode_step": signature(
                self.decode_step,
                token_ids=NUMBER,
                encoded=encoded,
                source_length=NUMBER,
                cache=cache,
                cache_length=NUMBER,
            ),
            "logits": signature(
                self.logits,
                source_ids=IDS,
                source_length=NUMBER,
                target_ids=IDS,
                target_length=NUMBER,
            ),
        }

    def row_shapes(self):
        """{signature: {output: shape}}, part of `ServedModule.row_shapes`."""
        encoded, cache = self.encoded_packing.features, self.cache_packing.features
        vocabulary = self.vocabulary_size
        return {
            "encode": {
                "encoded": (None, encoded), "source_length": (),
                "cache": (1, cache), "cache_length": (),
            },
            "decode_step": {"logits": (vocabulary,), "cache": (None, cache), "cache_length": ()},
            "logits": {"logits": (None, vocabulary)},
        }  # fmt: skip

    def _specs(self):
        """The encoded source, cache and logits as specs; sizes that vary are unknown."""

        def start(source_ids):
            encoded = self.model.encode(source_ids)
            cache = self.model.start_cache(encoded, 1)
            zeros = tf.zeros([tf.shape(source_ids)[0], 1], tf.int32)  # one beam
            logits, _ = self.model.step(encoded, zeros, zeros, tf.constant(0), cache)
            return encoded, cache, logits

        spec = tf.TensorSpec([None, None], tf.int32)
        return tf.function(start, autograph=False).get_concrete_function(spec).structured_outputs

    def _clean(self, ids, lengths):
        """Valid source ids, truncated before an end token if too long, and their lengths."""
        check_rows(ids, lengths)
        longest = self.settings.max_source_length
        inside = tf.sequence_mask(lengths, tf.shape(ids)[1])
        ids = tf.where(inside, _known(ids, self.source_tokenizer), PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, 1]])[:, :longest]  # padded: `ids` may have no column
        is_truncated = (lengths > longest)[:, None] & (tf.range(tf.shape(ids)[1]) == longest - 1)
        lengths = tf.clip_by_value(lengths, 0, tf.minimum(tf.shape(inside)[1], longest))
        return tf.where(is_truncated, END_ID, ids), lengths

    def _over_positions(self, at_position, lengths):
        """Runs one step per distinct position of the rows; usually there is only one."""
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


def _known(ids, tokenizer):
    return tf.where((ids >= 0) & (ids < tokenizer.vocabulary_size), ids, UNKNOWN_ID)
