"""Translates texts with a trained model, from Python."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.decoding import NO_HYPOTHESIS_SCORE
from keras_transformer.decoding.compiling import is_static
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models.encoder_decoder import TranslationModel, check_translation
from keras_transformer.serving.compiled import CompiledTranslatorModule
from keras_transformer.serving.languages import check_language, in_languages
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SearchSettings, read_token_rules, token_rules_of
from keras_transformer.serving.text_model import (
    ServedModel,
    batches,
    check_string,
    check_vocabulary,
    list_of_strings,
    warn_truncated,
)
from keras_transformer.serving.translator_module import TranslatorModule
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID


class Hypothesis(NamedTuple):
    """One of the best translations of a text.

    Attributes:
        text: the translation.
        score: its log-probability in nats, divided by the length penalty: by
            ((5 + num_tokens) / 6) ** length_penalty with the scoring "gnmt", otherwise by
            num_tokens ** length_penalty.
        num_tokens: its length in tokens, end token included.
    """

    text: str
    score: float
    num_tokens: int


class Translator(ServedModel):
    """Translates texts with beam search.

    Args:
        model: of `kt.translation`, as built or reloaded; or another with the methods that
            `models.TextModel` documents.
        tokenizer: splits sources into tokens; for a multilingual model, one with a `language`.
        target_tokenizer: joins translations; defaults to `tokenizer`. With a `language`, every
            translation begins with its token.
        settings: settings of the search; defaults to `SearchSettings()`.
        cache: the cache of keys and values in decoding: "growing"; "static", for a search that XLA
            compiles; or "auto", static if TensorFlow sees a GPU. Exports always use a growing one.

    Raises:
        ValueError: if the model is of another kind, has fewer ids than a tokenizer, or has no
            static cache; or if a multilingual tokenizer has no language.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ein Hund läuft"], 280)
        >>> model = kt.translation(tokenizer.vocabulary_size, size="tiny", num_layers=1)
        >>> translator = Translator(model, tokenizer, settings=SearchSettings(num_beams=2))
        >>> len(translator(["a dog", "runs"]))
        2
    """

    def __init__(self, model, tokenizer, target_tokenizer=None, settings=None, cache="auto"):
        for each in (tokenizer, target_tokenizer or tokenizer):
            check_language(each)
        check_translation(model)
        if isinstance(model, TranslationModel):
            check_vocabulary(model.source_embedding, tokenizer)
        given = (model, tokenizer, target_tokenizer, settings)
        compiled = None
        if is_static(cache, getattr(model, "has_static_cache", False)):
            compiled = CompiledTranslatorModule(*given)
        super().__init__(model, tokenizer, TranslatorModule(*given), compiled)

    @classmethod
    def load(
        cls, run, num_beams=None, length_penalty=None, dtype=None, cache="auto",
        source_language=None, target_language=None, token_rules=None, weights="averaged",
    ):  # fmt: skip
        """Loads a finished run of `python -m train.translation`.

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

        Returns:
            A `Translator`.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, a file is
                damaged, or an argument is out of range.
        """
        folder = RunFolder(run)
        config, model = folder.settings(), folder.model(dtype, weights)
        check_translation(model)
        num_beams = config["num_beams"] if num_beams is None else num_beams
        settings = SearchSettings(
            num_beams=num_beams,
            num_best=num_beams,
            length_penalty=config["length_penalty"] if length_penalty is None else length_penalty,
            max_source_length=config["max_length"],
            max_target_length=config["max_length"],
            scoring=config.get("scoring", "gnmt"),
            token_rules=token_rules_of(
                token_rules or {}, read_token_rules(config.get("token_rules"))
            ),
        )
        tokenizers = in_languages(
            folder.tokenizer(), folder.target_tokenizer(), config, source_language, target_language
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
        warn_truncated(answer["truncated"], self.module.settings.max_source_length)
        return [text.decode() for text in answer["translation"]]

    def n_best(self, texts, prefixes=None, max_length=0):
        """Finds up to `settings.num_best` translations of each text.

        Args:
            texts: a list of strings.
            prefixes: a list with the beginning of each translation; None leaves them free.
            max_length: limit of a translation in tokens, end token included; 0 for the model's
                own limit.

        Returns:
            A list with one list of `Hypothesis` per text, best first.

        Raises:
            ValueError: if `texts` or `prefixes` is not a list of strings, their lengths differ,
                or `max_length` is negative.
        """
        texts = list_of_strings(texts)
        prefixes = [""] * len(texts) if prefixes is None else list_of_strings(prefixes, "prefixes")
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
        warn_truncated(answer["truncated"], self.module.settings.max_source_length)
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
            ValueError: if an argument is not a list of strings, or their lengths differ.
        """
        sources = list_of_strings(sources, "sources")
        targets = list_of_strings(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(
                "There must be a target for each source. Received: "
                f"{len(sources)} sources, {len(targets)} targets."
            )
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]) + len(targets[row]))
        scores = np.zeros(len(sources), "float32")
        for rows in batches(order):
            pairs = [
                tf.constant([side[row] for row in rows], tf.string) for side in (sources, targets)
            ]
            scores[rows] = self._log_probs(*pairs).numpy() if rows else []
        return scores

    def attention(self, source, target=None):
        """The attention between the tokens of a text and its translation.

        Args:
            source: a string.
            target: its translation; defaults to the model's own.

        Returns:
            `figures.Attention` of the kinds "encoder", "decoder" and "cross".

        Raises:
            ValueError: if an argument is not a string, or the model has no
                `attention_scores`.
        """
        check_string(source, "source")
        target = self([source])[0] if target is None else target
        check_string(target, "target")
        target_tokenizer = self.module.target_tokenizer
        source_ids = [*self.tokenizer.tokenize([source]).to_list()[0], END_ID]
        ids = target_tokenizer.tokenize([target]).to_list()[0]
        target_ids = [START_ID, *ids]
        scores = self.attention_scores(np.array([source_ids]), np.array([target_ids]))
        sources = names_of(self.tokenizer, source_ids)
        targets = names_of(target_tokenizer, target_ids)
        # Each row is labelled with the token it predicts, not with the one it reads.
        predicted = names_of(target_tokenizer, [*ids, END_ID])
        return Attention.of_first_example(
            scores,
            row_tokens={"encoder": sources, "decoder": predicted, "cross": predicted},
            column_tokens={"encoder": sources, "decoder": targets, "cross": sources},
            title=source,
        )

    def _log_probs(self, sources, targets):
        ids = self.tokenizer.tokenize(sources)
        ends = tf.fill([ids.nrows(), 1], END_ID)
        source_ids = tf.concat([ids, ends], axis=1).to_tensor(PAD_ID)
        ids = self.module.target_tokenizer.tokenize(targets)
        labels = tf.concat([ids, ends], axis=1)
        inside = tf.sequence_mask(labels.row_lengths())
        labels = labels.to_tensor(PAD_ID)
        inputs = tf.concat([ends * 0 + START_ID, ids], axis=1).to_tensor(PAD_ID)
        logits = tf.cast(self.module.model.logits(source_ids, inputs), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return -tf.reduce_sum(tf.where(inside, nats, 0.0), axis=1)
