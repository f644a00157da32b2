"""Translates texts with a trained model, from Python."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import NO_HYPOTHESIS_SCORE
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models import encoder_decoder
from keras_transformer.models.functions import TranslatorFunctions
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SearchSettings
from keras_transformer.serving.text_model import TextModel, check_texts, chunks, warn_of_cut
from keras_transformer.serving.translator_module import TranslatorModule
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID


class Hypothesis(NamedTuple):
    """One of the best translations of a text.

    Attributes:
        text: the translation.
        score: its log-probability in nats over ((5 + num_tokens) / 6) ** length_penalty.
        num_tokens: its length with the end.
    """

    text: str
    score: float
    num_tokens: int


class Translator(TextModel):
    """Translates texts with beam search.

    Args:
        model: of `kt.translation`, as built or reloaded; or `TranslatorFunctions`.
        tokenizer: cuts what is translated.
        target_tokenizer: joins translations; None if it is the same.
        settings: of the search; `SearchSettings()` if None.

    Raises:
        ValueError: if the model is of another kind, or has fewer ids than the tokenizer.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ein Hund läuft"], 280)
        >>> model = kt.translation(tokenizer.vocabulary_size, size="tiny", num_layers=1)
        >>> translator = Translator(model, tokenizer, settings=SearchSettings(2, 2))
        >>> len(translator(["a dog", "runs"]))
        2
    """

    def __init__(self, model, tokenizer, target_tokenizer=None, settings=None):
        is_functions = isinstance(model, TranslatorFunctions)
        functions = model if is_functions else encoder_decoder.functions(model)
        super().__init__(
            model, tokenizer, TranslatorModule(functions, tokenizer, target_tokenizer, settings)
        )

    @classmethod
    def load(cls, run, num_beams=None, length_penalty=None, dtype=None):
        """Loads the model of a finished run of `python -m train.translation`.

        Args:
            run: path of its folder.
            num_beams: beams of the search; None takes those of the run.
            length_penalty: exponent of the length penalty; None takes that of the run.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.

        Returns:
            A `Translator`.

        Raises:
            ValueError: if the folder holds no finished run of this kind, a file is damaged, or an
                argument is outside its limits.
        """
        folder = RunFolder(run)
        kept, model = folder.settings(), folder.model(dtype)
        encoder_decoder.functions(model)  # says so if it is a run of another kind
        num_beams = kept["num_beams"] if num_beams is None else num_beams
        settings = SearchSettings(
            num_beams=num_beams,
            num_best=num_beams,
            length_penalty=kept["length_penalty"] if length_penalty is None else length_penalty,
            max_source_length=kept["max_length"],
            max_target_length=kept["max_length"],
        )
        return cls(model, folder.tokenizer(), settings=settings)

    def __call__(self, texts):
        """Translates texts; an empty text gives an empty translation.

        Warns of texts longer than `settings.max_source_length`, which lose their end.

        Args:
            texts: a list of strings.

        Returns:
            A list with the best translation of each text.
        """
        answer = self.answer(texts)
        warn_of_cut(answer["truncated"], self.module.settings.max_source_length)
        return [text.decode() for text in answer["translation"]]

    def n_best(self, texts, prefixes=None, max_length=0):
        """Finds the best few translations of each text, `settings.num_best` at most.

        Args:
            texts: a list of strings.
            prefixes: a list of strings with which the translations begin; None for none.
            max_length: longest translation in tokens with its end; 0 for the model's own limit.

        Returns:
            A list with one list of `Hypothesis` a text, best first.
        """
        prefixes = [""] * len(texts) if prefixes is None else prefixes
        check_texts(prefixes, "prefixes")
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
        warn_of_cut(answer["truncated"], self.module.settings.max_source_length)
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
        """How likely given translations are; texts of any length are read whole.

        Args:
            sources: a list of strings.
            targets: a list with a translation of each.

        Returns:
            Log-probabilities of the translations and their ends, in nats, float32 (texts,).
        """
        check_texts(sources, "sources")
        check_texts(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(
                "There must be a target for each source. Received: "
                f"{len(sources)} sources, {len(targets)} targets."
            )
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]) + len(targets[row]))
        scores = np.zeros(len(sources), "float32")
        for rows in chunks(order):
            some = [
                tf.constant([side[row] for row in rows], tf.string) for side in (sources, targets)
            ]
            scores[rows] = self._log_probs(*some).numpy() if rows else []
        return scores

    def attention(self, source, target=None):
        """Where each token looks in a sentence and its translation.

        Args:
            source: a string.
            target: its translation; None for the model's own.

        Returns:
            `figures.Attention` of the kinds "encoder", "decoder" and "cross".
        """
        target = self([source])[0] if target is None else target
        reads, writes = self.tokenizer, self.module.target_tokenizer
        source_ids = [*reads.tokenize([source]).to_list()[0], END_ID]
        ids = writes.tokenize([target]).to_list()[0]
        scores = self.module.functions.attention_scores(
            np.array([source_ids]), np.array([[START_ID, *ids]])
        )
        sources, targets = names_of(reads, source_ids), names_of(writes, [START_ID, *ids])
        # Rows are named by the token that is being chosen there, not by the one before it.
        chosen = names_of(writes, [*ids, END_ID])
        return Attention.of_first_example(
            scores,
            row_tokens={"encoder": sources, "decoder": chosen, "cross": chosen},
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
        logits = tf.cast(self.module.functions.logits(source_ids, inputs), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return -tf.reduce_sum(tf.where(inside, nats, 0.0), axis=1)
