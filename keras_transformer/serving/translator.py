"""Translates texts with a trained model, from Python or as a SavedModel."""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer, read_text, read_texts
from keras_transformer.decoding import NO_HYPOTHESIS_SCORE
from keras_transformer.decoding.compiling import bucket, compiled, fill, first_rows, row_bucket
from keras_transformer.decoding.scoring import HuggingFaceScoring
from keras_transformer.figures.attention import Attention, token_labels
from keras_transformer.models.encoder_decoder import TranslationModel, check_translation
from keras_transformer.serving.languages import check_language, in_languages
from keras_transformer.serving.reading import bytes_of, cut, read_part
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.served_model import (
    IDS,
    NUMBER,
    TEXT,
    ServedModel,
    Signature,
    check_positions,
    check_rows,
    check_vocabulary,
    side_by_side,
    warn_truncated,
)
from keras_transformer.serving.settings import SEARCH, SearchSettings, read_search
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

# The limit of a translation is twice its source plus EXTRA tokens, so each bucket of sources has
# one bucket of limits.
EXTRA, SMALLEST = 8, 16


class Hypothesis(NamedTuple):
    """One of the best translations of a text.

    Attributes:
        text: the translation.
        score: its log-probability in nats, divided by the `divisors` of the search's scoring: see
            `decoding.GNMTScoring` and `decoding.HuggingFaceScoring`.
        num_tokens: its length in tokens, end token included.
    """

    text: str
    score: float
    num_tokens: int


class Translator(ServedModel):
    """Translates texts with beam search.

    Its signatures are `serving_default`, `translate_nbest`, `tokenize` and `detokenize`.

    Args:
        model: of `kt.translation`, as built or reloaded; or another with the methods that
            `models.TextModel` documents.
        tokenizer: splits sources into tokens; for a multilingual model, one with a `language`.
        target_tokenizer: joins translations; defaults to `tokenizer`. With a `language`, every
            translation begins with its token.
        settings: settings of the search; defaults to `SearchSettings()`.
        cache: the cache of keys and values in decoding: "growing"; "static", for a search that XLA
            compiles once for each bucket of sizes; or "auto", static if TensorFlow sees a GPU.
            Exports always use a growing one.

    Attributes:
        target_tokenizer: joins translations.
        settings: settings of the search.

    Raises:
        ValueError: if the model is of another kind, has fewer ids than a tokenizer (a model of
            your own: when it is first called) or fewer positions than the settings allow tokens, or
            has no static cache; or if a multilingual tokenizer has no language.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ein Hund läuft"], 280)
        >>> model = kt.translation(tokenizer.vocabulary_size, size="tiny", num_layers=1)
        >>> settings = SearchSettings(kt.decoding.BeamSearch(num_beams=2))
        >>> translator = Translator(model, tokenizer, settings=settings)
        >>> len(translator(["a dog", "runs"]))
        2
    """

    def __init__(self, model, tokenizer, target_tokenizer=None, settings=None, cache="auto"):
        for each in (tokenizer, target_tokenizer or tokenizer):
            check_language(each)
        check_translation(model)
        self.settings = settings or SearchSettings()
        if target_tokenizer is None and getattr(tokenizer, "prefix", ""):
            target_tokenizer = tokenizer.with_prefix("")
        super().__init__(model, tokenizer, target_tokenizer, cache)
        if isinstance(model, TranslationModel):
            check_vocabulary(model.source_embedding.vocabulary_size, tokenizer)
            self._check_scores(model.output_projection.vocabulary_size)
            for name, positions in (
                ("max_source_length", model.source_positions),
                ("max_target_length", model.positions),
            ):
                length = getattr(self.settings, name)
                check_positions(name, length, positions, f"SearchSettings({name}={{0}})")
        self._compiled_search = compiled(self._beam_search)

    @classmethod
    def load(
        cls, run, num_beams=None, length_penalty=None, dtype=None, cache="auto",
        source_language=None, target_language=None, token_rules=None, weights="averaged",
        source_prefix=None,
    ):  # fmt: skip
        """Loads a finished run of `keras-transformer translation`.

        Args:
            run: path of the run folder.
            num_beams: beams of the search; defaults to those of the run.
            length_penalty: exponent of the length penalty; defaults to that of the run.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.
            cache: as for `Translator`.
            source_language: for a multilingual model, the language to translate from, e.g. "en";
                defaults to the run's.
            target_language: likewise the language to translate to.
            token_rules: rules that replace the run's, a dictionary with the names of
                `decoding.TokenRules`, e.g. {"no_repeat_ngram_size": 3}.
            weights: "averaged" or "best", as for `RunFolder.model`.
            source_prefix: text before each source, such as "summarize: "; defaults to the run's.

        Returns:
            A `Translator`.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, a file is
                damaged, or an argument is out of range.
        """
        folder = RunFolder(run)
        model = folder.model(dtype, weights)
        check_translation(model)
        config = folder.settings(SEARCH)
        settings = read_search(config, num_beams, length_penalty, token_rules)
        tokenizers = in_languages(
            folder.tokenizer(),
            folder.target_tokenizer(),
            config,
            source_language,
            target_language,
            source_prefix,
        )
        return cls(model, *tokenizers, settings, cache)

    def __call__(self, texts):
        """Translates texts; the translation of an empty text is empty.

        Warns if texts are longer than `settings.max_source_length` and lose their end.

        Args:
            texts: a list of strings.

        Returns:
            A list with the best translation of each text.

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        answer = self.answer(texts)
        warn_truncated(answer["truncated"], self.settings.max_source_length)
        return [text.decode() for text in answer["translation"]]

    def n_best(self, texts, prefixes=None, max_length=0):
        """Finds up to `settings.search.num_best` translations of each text.

        Args:
            texts: a list of strings.
            prefixes: a list with the beginning of each translation; None leaves them free.
            max_length: limit of a translation in tokens, end token included; 0 for the model's
                own limit.

        Returns:
            A list with one list of `Hypothesis` per text, best first; of an empty text, one of "",
                with a score and a length of 0.

        Raises:
            ValueError: if `texts` or `prefixes` is not a list of strings, their lengths differ,
                or `max_length` is negative.
        """
        texts = list(read_texts(texts))
        prefixes = [""] * len(texts) if prefixes is None else list(read_texts(prefixes, "prefixes"))
        check_integer("max_length", max_length, 0)
        if len(prefixes) != len(texts):
            raise ValueError(
                "prefixes must hold a string for each text. Received: "
                f"{len(prefixes)} prefixes for {len(texts)} texts."
            )
        answer = self.answer(
            texts,
            "translate_nbest",
            target_prefix=prefixes,
            max_length=[max_length] * len(texts),
        )
        warn_truncated(answer["truncated"], self.settings.max_source_length)
        return self.hypotheses(answer)

    @staticmethod
    def hypotheses(answer):
        """A list with one list of `Hypothesis` per text of an answer of `translate_nbest`."""
        rows = zip(answer["translation"], answer["score"], answer["length"], strict=True)
        return [
            [
                Hypothesis(text.decode(), float(score), int(length))
                for text, score, length in zip(*row, strict=True)
                if score > NO_HYPOTHESIS_SCORE / 2
            ]
            for row in rows
        ]

    def score(self, sources, targets):
        """The log-probability of given translations. Texts are never truncated.

        Args:
            sources: a list of strings.
            targets: a list with a translation of each source.

        Returns:
            Log-probabilities of the translations with their end tokens, in nats, float32
            (texts,).

        Raises:
            ValueError: if an argument is not a list of strings, or their lengths differ, or a text
                has more tokens than the model has positions.
        """
        sources = list(read_texts(sources, "sources"))
        targets = list(read_texts(targets, "targets"))
        if len(sources) != len(targets):
            raise ValueError(
                "There must be a target for each source. Received: "
                f"{len(sources)} sources, {len(targets)} targets."
            )
        self._check_fit(sources, targets)
        order = sorted(range(len(sources)), key=lambda row: -len(sources[row]) - len(targets[row]))

        def scored(rows):
            pairs = ([side[row] for row in rows] for side in (sources, targets))
            return self._log_probs(*(tf.constant(side, tf.string) for side in pairs)).numpy()

        scores = np.zeros(len(sources), "float32")
        if order:
            scores[order] = np.concatenate(list(side_by_side(scored, order, threads=1)))
        return scores

    def attention(self, source, target=None):
        """The attention between the tokens of a text and its translation.

        Args:
            source: a string.
            target: its translation; defaults to the model's own.

        Returns:
            `figures.Attention` of the kinds "encoder", "decoder" and "cross".

        Raises:
            ValueError: if an argument is not a string or has more tokens than the model has
                positions, or the model has no `attention_scores`.
        """
        source = read_text(source, "source")
        if target is not None:
            target = read_text(target, "target")
        self._check_fit([source], [] if target is None else [target])
        target = self([source])[0] if target is None else target
        source_ids = [*self.tokenizer.tokenize([source]).to_list()[0], END_ID]
        ids = self.target_tokenizer.tokenize([target]).to_list()[0]
        target_ids = [START_ID, *ids]
        scores = self._attention_scores(np.array([source_ids]), np.array([target_ids]))
        sources = token_labels(self.tokenizer, source_ids)
        targets = token_labels(self.target_tokenizer, target_ids)
        # Each row is labelled with the token it predicts, not with the one it reads.
        predicted = token_labels(self.target_tokenizer, [*ids, END_ID])
        return Attention.of_first_example(
            scores,
            row_tokens={"encoder": sources, "decoder": predicted, "cross": predicted},
            column_tokens={"encoder": sources, "decoder": targets, "cross": sources},
            title=source,
        )

    def warm_up_requests(self, texts):
        one = {"text": texts[:1], "target_prefix": np.array([b""], object)}
        one["max_length"] = np.zeros(1, np.int32)
        return [*super().warm_up_requests(texts), ("translate_nbest", one)]

    def _signatures(self):
        best = (self.settings.search.num_best,)
        return {
            "serving_default": Signature(
                self._translate,
                {"text": TEXT},
                {"translation": (), "score": (), "length": (), "truncated": ()},
            ),
            "translate_nbest": Signature(
                self._translate_nbest,
                {"text": TEXT, "target_prefix": TEXT, "max_length": NUMBER},
                {"translation": best, "score": best, "length": best, "truncated": ()},
            ),
            "tokenize": Signature(
                self._tokenize,
                {"text": TEXT},
                {"token_ids": (None,), "length": (), "truncated": ()},
            ),
            "detokenize": Signature(
                self._detokenize, {"token_ids": IDS, "length": NUMBER}, {"text": ()}
            ),
        }

    def _translate(self, text):
        """The best translation of each text, "" for an empty one, of score and length 0.

        Bytes that are not UTF-8 count as U+FFFD. `score` and `length` are those of a `Hypothesis`.
        """
        source_ids, truncated, is_empty = self._source(text)
        limits, prefix = self._limits(source_ids), None
        if self._language_tokens:
            empty = tf.fill([tf.shape(source_ids)[0]], "")
            prefix = self.target_tokenizer.tokenize(empty).to_tensor(PAD_ID)
        best = self._search(source_ids, is_empty, limits, 1, prefix)
        return {
            "translation": self.target_tokenizer.detokenize(best.token_ids[:, 0]),
            "score": best.scores[:, 0],
            "length": best.lengths[:, 0],
            "truncated": truncated,
        }

    def _translate_nbest(self, text, target_prefix, max_length):
        """The best translations of each text, (batch, num_best), best first.

        Args:
            text: (batch,) strings.
            target_prefix: (batch,) the beginning of each translation; "" leaves it free.
            max_length: (batch,) limit in tokens, end token included; 0 for the model's own limit.
                The prefix and an end token always fit, but an empty text gives "".

        Returns:
            As `_translate`; `truncated` is also True if the prefix lost its end. A missing
            translation is "" with a score of about -1e9.
        """
        check_rows(text, target_prefix, max_length)
        source_ids, is_source_truncated, is_empty = self._source(text)
        longest = self.settings.max_target_length
        prefix, is_prefix_cut = read_part(self.target_tokenizer, target_prefix, longest - 1)
        if getattr(self.target_tokenizer, "start_piece", None) is not None:
            # As in `serving_default`, a translation begins with it only if the rules say so.
            is_free = tf.cast(prefix.row_lengths(), tf.int32)[:, None] == 1
            ids = tf.where(is_free, PAD_ID, prefix.to_tensor(PAD_ID))
            prefix = tf.RaggedTensor.from_tensor(ids, padding=PAD_ID)
        is_prefix_truncated = is_prefix_cut | (prefix.row_lengths() > longest - 1)
        prefix = prefix[:, : longest - 1]
        shortest = tf.cast(prefix.row_lengths(), tf.int32) + 1
        limits = self._limits(source_ids) + shortest - 1 - self._language_tokens
        limits = tf.where(max_length > 0, max_length, tf.minimum(limits, longest))
        limits = tf.clip_by_value(limits, shortest, longest)
        count = self.settings.search.num_best
        best = self._search(source_ids, is_empty, limits, count, prefix.to_tensor(PAD_ID))
        rows, _, length = tf.unstack(tf.shape(best.token_ids))
        # Every size is explicit: TensorFlow cannot infer a -1 if there are no rows.
        ids = tf.reshape(best.token_ids, [rows * count, length])
        return {
            "translation": tf.reshape(self.target_tokenizer.detokenize(ids), [rows, count]),
            "score": best.scores,
            "length": best.lengths,
            "truncated": is_source_truncated | is_prefix_truncated,
        }

    def _tokenize(self, text):
        """The tokens of sources with their end token, (batch, source), padded with 0."""
        ids, truncated, _ = self._source(text)
        return {"token_ids": ids, "length": _lengths(ids), "truncated": truncated}

    def _check_fit(self, sources, targets):
        """Raises ValueError for a text of more tokens than the model has positions."""
        for side, texts, tokenizer, name in (
            ("source", sources, self.tokenizer, "source_positions"),
            ("target", targets, self.target_tokenizer, "positions"),
        ):
            positions = getattr(self.model, name, None)
            limit = getattr(positions, "max_sequence_length", None)
            if limit is None or not texts:
                continue
            lengths = tokenizer.tokenize(texts).row_lengths().numpy() + 1  # with a start or end
            if (lengths > limit).any():
                row = int((lengths > limit).argmax())
                raise ValueError(
                    f"Texts must have at most {limit - 1} tokens, one fewer than the model has "
                    f"positions. Received: {lengths[row] - 1} tokens of {side} {row}."
                )

    def _log_probs(self, sources, targets):
        ids = self.tokenizer.tokenize(sources)
        ends = tf.fill([ids.nrows(), 1], END_ID)
        source_ids = tf.concat([ids, ends], axis=1).to_tensor(PAD_ID)
        ids = self.target_tokenizer.tokenize(targets)
        labels = tf.concat([ids, ends], axis=1)
        inside = tf.sequence_mask(labels.row_lengths())
        labels = labels.to_tensor(PAD_ID)
        inputs = tf.concat([ends * 0 + START_ID, ids], axis=1).to_tensor(PAD_ID)
        logits = tf.cast(self.model.logits(source_ids, inputs), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return -tf.reduce_sum(tf.where(inside, nats, 0.0), axis=1)

    def _source(self, text):
        """Source ids with the end token, whether each text was truncated, whether it is empty."""
        room = self.settings.max_source_length - 1
        ids, is_cut = read_part(self.tokenizer, text, room)
        lengths = ids.row_lengths()
        if getattr(self.tokenizer, "prefix", ""):
            is_empty = self.tokenizer.are_empty(cut(text, bytes_of(self.tokenizer, room), 0)[0])
        else:
            added = (getattr(self.tokenizer, name, None) for name in ("language", "start_piece"))
            is_empty = lengths == sum(token is not None for token in added)
        ends = tf.fill([ids.nrows(), 1], END_ID)
        ids = tf.concat([ids[:, :room], ends], axis=1).to_tensor(PAD_ID)
        return ids, is_cut | (lengths > room), is_empty

    @property
    def _language_tokens(self):
        """How many tokens come before the first new one, and count: 1 with a target language."""
        return int(getattr(self.target_tokenizer, "language", None) is not None)

    def _limits(self, source_ids):
        """The length limit of each translation: about twice its source, or Hugging Face's."""
        longest = self.settings.max_target_length
        if isinstance(self.settings.search.scoring, HuggingFaceScoring):
            return longest
        rules = self.settings.search.token_rules
        least = rules.min_new_tokens and self._language_tokens + rules.min_new_tokens + 1  # the end
        limits = tf.maximum(2 * _lengths(source_ids) + EXTRA, max(rules.min_length, least))
        return tf.minimum(limits, longest)

    def _search(self, source_ids, is_empty, limits, num_best, prefix=None):
        """The best hypotheses; of an empty text one, with no token and a score of 0."""
        limits = tf.where(is_empty, 0, limits)
        best = self._found(source_ids, limits, num_best, prefix)
        is_first = tf.range(num_best) == 0
        scores = tf.where(is_empty[:, None] & is_first, 0.0, best.scores)
        return best._replace(scores=scores)

    def _found(self, source_ids, limits, num_best, prefix):
        """What a search finds; with a static cache, in one program for each bucket of sizes."""
        if not self._is_static:
            return self._beam_search(source_ids, limits, num_best, prefix)
        rows, columns = tf.unstack(tf.shape(source_ids))
        longest = tf.reduce_max(tf.concat([limits, [0]], axis=0))
        capacity = tf.minimum(
            bucket(longest - EXTRA, SMALLEST) + EXTRA, self.settings.max_target_length
        )
        num_rows = row_bucket(rows)
        length = tf.minimum(bucket(columns), self.settings.max_source_length)
        if prefix is not None:
            prefix = fill(prefix, num_rows, tf.minimum(bucket(tf.shape(prefix)[1]), capacity))
        source_ids, limits = fill(source_ids, num_rows, length), fill(limits, num_rows)
        best = self._compiled_search(source_ids, limits, num_best, prefix, tf.range(capacity))
        return first_rows(best, rows)

    def _beam_search(self, source_ids, limits, num_best, prefix, columns=None):
        """Searches; `columns` are those of a static cache, whose number XLA reads off the shape."""
        search = dataclasses.replace(self.settings.search, num_best=num_best)
        encoded = self.model.encode(source_ids)
        prefill = getattr(self.model, "prefill", None)
        capacity = [] if columns is None else [tf.size(columns)]

        # What is known of a row is in the cache, so that rows can leave the batch.
        def step(token_ids, parents, position, cache):
            encoded, cache = cache
            logits, cache = self.model.step(encoded, token_ids, parents, position, cache)
            self._check_scores(logits.shape[-1])
            return logits, (encoded, cache)

        def read(token_ids, next_ids, count, cache):
            encoded, cache = cache
            log_probs, cache = prefill(encoded, token_ids, next_ids, count, cache)
            return log_probs, (encoded, cache)

        return search(
            step,
            (encoded, self.model.start_cache(encoded, search.num_beams, *capacity)),
            limits=limits,
            start_id=START_ID,
            end_id=END_ID,
            prefix=prefix,
            capacity=capacity[0] if capacity else None,
            prefill=prefill and read,
            rows_leave=not capacity,
        )


def _lengths(ids):
    return tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)
