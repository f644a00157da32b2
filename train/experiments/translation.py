"""Translation: parallel text, a shared vocabulary of pieces, an encoder-decoder, BLEU."""

import contextlib
import functools
import sys
import tempfile

import numpy as np
import sacrebleu
import tensorflow as tf

from keras_transformer import convert
from keras_transformer.data import (
    ParallelText,
    TokenBatches,
    corpora,
    read_files,
    read_tsv,
    tokenize,
)
from keras_transformer.models.encoder_decoder import SIZES, TranslationModel, translation
from keras_transformer.serving import SearchSettings, Translator, in_languages
from keras_transformer.serving.settings import read_token_rules
from keras_transformer.tokenizers import train_sentencepiece
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_transformer.training.callbacks import BestScore
from train.experiment import Experiment, log_dropped, plan_in_words, publish
from train.experiments.pretrained import check_packed, completed, for_training, pretrained_of
from train.lines import answer_lines, report_cut_texts
from train.pictures import save_pictures
from train.training_config import fill_in
from train.translation import USUAL_SEARCH

RULES = ("no_repeat_ngram_size", "min_length", "repetition_penalty")  # which have flags
WHAT_IS_PRETRAINED = (
    "a finished run of train.translation, or a folder of Marian, M2M100, NLLB or OpenNMT-tf"
)


class Translation(Experiment):
    """Learns `ParallelText`, and is measured by BLEU."""

    def __init__(self, config, texts=None, run=None):
        self.pretrained = pretrained_of(config, TranslationModel, WHAT_IS_PRETRAINED, run)
        super().__init__(self.completed(config, pretrained=self.pretrained), texts, run)
        if self.pretrained is not None:
            check_packed(self.config, self.pretrained)
            self.target_tokenizer = self.pretrained.target_tokenizer
            self._tokenizers(self.pretrained.tokenizer)  # raises for languages that it lacks

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        names = (*USUAL_SEARCH, "source_language", "target_language")
        config = completed(config, names, (), before, pretrained)
        fill_in(config, USUAL_SEARCH)
        read_token_rules(config.token_rules)  # raises for wrong ones
        return config

    def sizes(self):
        return SIZES

    def read_texts(self):
        config = self.config
        given = [bool(config.source or config.target), bool(config.tsv), bool(config.dataset)]
        if sum(given) != 1:
            raise ValueError(
                "Give one training text: --source and --target, or --tsv, or --dataset. "
                f"Received: {sum(given)} of them."
            )
        languages = config.source_language or config.target_language
        if languages and not config.dataset and not config.pretrained:
            raise ValueError(
                "--source-language and --target-language need a --dataset, or a --pretrained "
                "model of many languages."
            )
        _check_pair(config.source, config.target, "--source and --target")
        valid = config.valid_source, config.valid_target
        _check_pair(*valid, "--valid-source and --valid-target")
        if config.valid_tsv and any(valid):
            raise ValueError(
                "Give one validation text: --valid-source and --valid-target, or --valid-tsv. "
                f"Received: {config.valid_source!r} and {config.valid_tsv!r}."
            )
        train_text = self._read("train", config.source, config.target, config.tsv)
        valid_text = None
        if config.has_validation():
            valid_text = self._read("validation", *valid, config.valid_tsv)
        if config.distinct_sources:
            train_text = _first_translations(train_text)
        if config.max_pairs:
            train_text = ParallelText(*(side[: config.max_pairs] for side in train_text))
        return train_text, valid_text

    def _read(self, split, source, target, tsv):
        """The text of two files, of one, or else of a split of the data set."""
        if source:
            return read_files(source, target)
        if tsv:
            return read_tsv(tsv)
        config = self.config
        where = {
            "source": config.source_language or None,
            "target": config.target_language or None,
            "data_dir": config.data_dir or None,
        }
        return corpora.read_dataset(config.dataset, split, **where)

    def make_tokenizer(self):
        if self.pretrained is not None:
            return self.pretrained.tokenizer
        sentences = [*self.train_text.sources, *self.train_text.targets]
        return train_sentencepiece(sentences, self.config.vocabulary_size)

    def make_batches(self, tokenizer):
        sides = self._token_ids(self.train_text, tokenizer)
        # An empty text may have tokens that name its language.
        empty = self._token_ids(ParallelText([""], [""]), tokenizer)
        pairs = zip(sides, empty, strict=True)
        kept = np.all([ids.row_lengths() > text.row_lengths() for ids, text in pairs], axis=0)
        log_dropped(int((~kept).sum()), len(kept), "pairs with an empty side")
        return self._batches(*(tf.ragged.boolean_mask(ids, kept) for ids in sides))

    def load_batches(self, path, tokenizer):
        return TokenBatches.load(path, *self._limits(), self.config.batch_shapes())

    def validation(self, tokenizer):
        if self.valid_text is None:
            return None
        return self._batches(*self._token_ids(self.valid_text, tokenizer)).epoch()

    def build(self, tokenizer, batches):
        if self.pretrained is not None:
            return for_training(self.pretrained.model, self.config)
        packed = self.config.packed
        return translation(tokenizer.vocabulary_size, packed=packed, **self.config.dimensions())

    def objective(self, batches):
        loss = TokenCrossentropy(self.config.label_smoothing)
        return {"loss": loss, "metrics": [TokenAccuracy(), Perplexity()]}

    def describe(self, batches):
        return (
            f"{batches.num_pairs:,} pairs, {batches.num_target_tokens:,} target tokens, "
            f"{batches.num_dropped:,} pairs longer than {self.config.max_length} tokens dropped"
            f"; {plan_in_words(batches)}"
        )

    def callbacks(self, run, tokenizer):
        config = self.config
        if self.valid_text is None or not config.bleu_every:
            return []
        settings = SearchSettings(
            num_beams=config.num_beams,
            num_best=config.num_beams,
            length_penalty=config.length_penalty,
            max_source_length=config.max_length,
            max_target_length=config.max_length,
            scoring=config.scoring,
            token_rules=read_token_rules(config.token_rules),
        )

        @functools.cache  # compiled searches stay compiled from one epoch to another
        def translator_of(model):
            return Translator(model, *self._tokenizers(tokenizer), settings=settings)

        def bleu_of(model):
            translations = translations_of(translator_of(model), self.valid_text.sources)[0]
            return sacrebleu.BLEU().corpus_score(translations, [self.valid_text.targets]).score

        return [BestScore(bleu_of, run.best_model_file, config.bleu_every, "val_bleu")]

    def show_result(self, run):
        translator = Translator.load(run.path)
        text = self.valid_text or self.train_text
        save_pictures(run, translator.attention(text.sources[0], text.targets[0]))
        if self.valid_text is not None:
            translations, _ = translations_of(translator, text.sources)
            print(bleu_report(translations, text.targets))

    @staticmethod
    def translate(options):
        with _engine(options) as (answer, settings):
            answer_lines(answer, settings.max_source_length)

    @staticmethod
    def evaluate(options):
        text = read_files(options.source, options.target)
        with _engine(options) as (answer, settings):
            translations, is_cut = answer(text.sources)
        cut = [f"{line:,}" for line, was_cut in enumerate(is_cut, start=1) if was_cut]
        report_cut_texts(cut, len(is_cut), settings.max_source_length)
        print(bleu_report(translations, text.targets))

    @staticmethod
    def export(options):
        publish(_loaded(options, options.dtype), options)

    def _token_ids(self, text, tokenizer):
        """The ids of both sides."""
        source, target = self._tokenizers(tokenizer)
        return tokenize(text.sources, source), tokenize(text.targets, target or source)

    def _batches(self, source_ids, target_ids):
        return TokenBatches(source_ids, target_ids, *self._limits(), self.config.batch_shapes())

    def _tokenizers(self, tokenizer):
        """Those of source and target, with their languages; the latter None if it is the same."""
        config, given = self.config, ()
        if getattr(tokenizer, "languages", None) or not config.dataset:
            given = config.source_language or None, config.target_language or None
        return in_languages(tokenizer, self.target_tokenizer, {}, *given)

    def _limits(self):
        return self.config.tokens_per_batch, self.config.max_length, self.config.seed


def translations_of(translator, texts):
    """The translations, a list of strings, and whether each text was truncated."""
    answer = translator.answer(texts)
    return [text.decode() for text in answer["translation"]], answer["truncated"]


def bleu_report(translations, references):
    """Two lines of BLEU, cased and lower-cased, each with sacreBLEU's signature."""
    lines = []
    for label, lowercase in (("BLEU", False), ("BLEU, lower-cased", True)):
        metric = sacrebleu.BLEU(lowercase=lowercase)
        score = metric.corpus_score(translations, [references]).score
        lines.append(f"{label}: {score:.2f}   {metric.get_signature()}")
    return "\n".join(lines)


@contextlib.contextmanager
def _engine(options):
    """Yields a function that translates texts, like `translations_of`, and the search settings."""
    is_ours = options.engine == "tensorflow"
    # CTranslate2 runs models trained in half precision in float32.
    translator = _loaded(options, None if is_ours else "float32", options.cache)
    settings = translator.settings
    if is_ours:
        yield functools.partial(translations_of, translator), settings
        return
    dtype = "int8" if options.engine.endswith("int8") else "float32"
    with tempfile.TemporaryDirectory() as folder:
        path = convert.write(translator, "ctranslate2", f"{folder}/model", dtype=dtype)
        engine = convert.CTranslate2Engine(path, translator)
        if differences := engine.differences():
            print(f"CTranslate2 searches with {differences}.", file=sys.stderr)
        yield engine.answer, settings


def _loaded(options, dtype=None, cache="auto"):
    languages = options.source_language, options.target_language
    search = options.num_beams, options.length_penalty
    given = {name: getattr(options, name) for name in RULES}
    rules = {name: value for name, value in given.items() if value is not None}
    return Translator.load(options.run, *search, dtype, cache, *languages, rules)


def _check_pair(source, target, flags):
    if bool(source) != bool(target):
        raise ValueError(f"Give both {flags}. Received: {source!r} and {target!r}.")


def _first_translations(text):
    """Each source once, with the first of its translations."""
    # Going through them backwards, the first translation is the last to be kept.
    first = dict(zip(reversed(text.sources), reversed(text.targets), strict=True))
    sources = list(dict.fromkeys(text.sources))
    return ParallelText(sources, [first[source] for source in sources])
