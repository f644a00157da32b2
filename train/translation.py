"""Trains a translation model on your own text; evaluates it, translates with it, exports it.

Train, or resume a run that was stopped:

    keras-transformer translation --source train.en --target train.de \\
        --valid-source val.en --valid-target val.de --run runs/mine

All GPUs of this machine are used without a flag. On several workers, with the same numbers:

    keras-transformer launch --workers 2 -- keras-transformer translation --source ...

--pretrained tunes the model of another run, or of a released folder such as opus-mt-en-de.

Use the trained run (each has its own --help):

    keras-transformer translation translate --run runs/mine < in.txt > out.txt
    keras-transformer translation evaluate --run runs/mine --source test.en --target test.de
    keras-transformer translation export --run runs/mine --name mine
"""

import functools
import json
from typing import ClassVar, Literal

import numpy as np

from .command import Command
from .deferred import Deferred, kt
from .experiment import Experiment, log_dropped, plan_in_words, publish
from .lines import report_cut_texts
from .options import DecodingOptions, ExportOptions, FilesOptions, RunOptions
from .pretrained import for_training
from .settings import both, flag_of, one_of, setting
from .text_scores import check_metric, report, score_of
from .training_config import (
    LEAST_PIECES,
    TABLE,
    TrainingConfig,
    blocks_setting,
    left_to_pretrained,
)

bulk = Deferred(f"{__package__}.bulk")
callbacks = Deferred("keras_transformer.training.callbacks")
devices = Deferred(f"{__package__}.devices")
pictures = Deferred(f"{__package__}.pictures")
preparation = Deferred("keras_transformer.data.preparation")
token_ids = Deferred("keras_transformer.data.token_ids")

METRICS = Literal["bleu", "chrf", "rouge", "exact"]
RULES = ("no_repeat_ngram_size", "min_length", "repetition_penalty")  # which have flags


class TranslationConfig(TrainingConfig):
    """One experiment of `keras-transformer translation`."""

    command: ClassVar[str] = "translation"
    further_dimensions: ClassVar[tuple] = ("blocks", "num_decoder_layers")
    training_text: ClassVar[dict] = one_of(
        "training text", "source target", "tsv", "table", "dataset", "prepared"
    )
    usual: ClassVar[dict] = {
        "num_beams": 5, "length_penalty": 1.0, "scoring": "gnmt_heuristic", "token_rules": "{}",
    }  # fmt: skip
    left_open: ClassVar[tuple] = (
        *usual, "source_language", "target_language", "source_prefix", "max_target_length",
    )  # fmt: skip
    exclusive: ClassVar[dict] = {
        **TrainingConfig.exclusive,
        **training_text,
        **one_of("validation text", "valid_source valid_target", "valid_tsv", "valid_table"),
        **left_to_pretrained(
            "size", "blocks", "num_decoder_layers", "activation", "normalize_first",
            "vocabulary_size",
        ),
        "--prepared is tokenised already: put the prefix into the text before keras-transformer "
        "prepare, and give --source-prefix ''": ("prepared", "source_prefix"),
    }  # fmt: skip
    text_requirements: ClassVar[dict] = {
        **both("source", "target"),
        **both("valid_source", "valid_target"),
        "--tokens-per-batch must be at least --max-length, so that any sentence fits into a batch":
            lambda config: config.tokens_per_batch >= config.max_length,
        "--source-language and --target-language need a --dataset, or a --pretrained model of many "
        "languages": lambda config: (
            config.dataset or config.pretrained
            or not (config.source_language or config.target_language)
        ),
    }  # fmt: skip

    source: str = setting("", "file of source sentences, one per line; may be .gz")
    target: str = setting("", "file of their translations")
    valid_source: str = setting("", "file of source sentences for validation")
    valid_target: str = setting("", "file of their translations")
    tsv: str = setting("", "instead: one file, source TAB target")
    valid_tsv: str = setting("", "the same for validation")
    table: str = setting("", f"instead: {TABLE}")
    valid_table: str = setting("", "the same for validation")
    source_column: str = setting(
        "source", "column of source sentences in a table, e.g. en, or translation.en if nested"
    )
    target_column: str = setting("target", "column of their translations")
    dataset: str = setting("", "instead: a TFDS name, e.g. ted_hrlr_translate/pt_to_en")
    source_language: str = setting(
        "", "language to translate from, with --dataset or a multilingual model"
    )
    target_language: str = setting(
        "", "language to translate to, with --dataset or a multilingual model"
    )
    source_prefix: str | None = setting(
        None,
        'text to put before each source, in training and in translation, e.g. "summarize: " for '
        "T5; default: none, or that of --pretrained",
    )
    data_dir: str = setting("", "folder where TFDS keeps its data")
    prepared: str = setting(
        "",
        "instead: a folder that keras-transformer prepare has made, for text that exceeds the "
        "memory",
    )
    distinct_sources: bool = setting(False, "train only on the first translation of each source")
    max_pairs: int = setting(0, "train only on this many pairs, the first ones; 0 for all", ge=0)

    pretrained: str = setting(
        "",
        "tune the model of a finished run, or of a folder of Marian, M2M100, NLLB, BART, "
        "mBART-50, T5 or OpenNMT-tf",
    )
    vocabulary_size: int = setting(8000, "pieces shared by both languages", ge=LEAST_PIECES)
    size: Literal["tiny", "base", "big"] = setting("base", "published dimensions to start from")
    blocks: Literal["transformer", "llama"] | None = blocks_setting()
    num_decoder_layers: int | None = setting(
        None, "blocks of the decoder; default: as many as of the encoder", ge=1
    )
    label_smoothing: float = setting(
        0.1, "share of the target spread over the vocabulary", ge=0, lt=1
    )
    tokens_per_batch: int = setting(4096, "maximum tokens in a batch on either side", ge=2)
    max_length: int = setting(256, "longest sentence in tokens; longer pairs are dropped", ge=2)
    max_target_length: int | None = setting(
        None, "longest translation of the search in tokens; default: --max-length", ge=2
    )
    packed: bool = setting(
        False,
        "pack several pairs into each row of --max-length tokens: one shape, little padding",
    )
    bleu_every: int = setting(
        0, "epochs between measurements of --metric during training; 0 for none", ge=0
    )
    metric: METRICS = setting(
        "bleu",
        "score of the validation text: bleu and chrf, of sacreBLEU; rouge, F1 of ROUGE-1, 2 and L, "
        "for English; exact, percentage of answers with the words of their reference",
    )
    num_beams: int | None = setting(
        None, "beams when translating; default: 5, or those of --pretrained", ge=1
    )
    length_penalty: float | None = setting(
        None, "exponent of the length penalty; default: 1, or that of --pretrained", ge=0
    )
    scoring: (
        Literal[
            "gnmt_heuristic", "gnmt",
            "huggingface", "huggingface_early_stopping", "huggingface_never",
        ] | None
    ) = setting(
        None,
        "rules of the beam search; gnmt searches on while any sequence may still win, which takes "
        "longer; huggingface, for models converted from there; default: gnmt_heuristic, or those "
        "of --pretrained",
    )  # fmt: skip
    token_rules: str | None = setting(
        None,
        'which tokens the search may choose, as JSON, e.g. {"no_repeat_ngram_size": 3}; default: '
        "any, or those of --pretrained",
    )

    def has_validation(self):
        pair = self.valid_source or self.valid_target
        given = (pair, self.valid_tsv, self.valid_table, self.dataset)
        return any(map(bool, given)) or self.has_held_out()

    def needs(self):
        has_table = (bool(self.table or self.valid_table), "--table or --valid-table")
        raw = (not self.prepared, "a text that is not --prepared")
        return super().needs() | {
            "distinct_sources": raw,
            "max_pairs": raw,
            "vocabulary_size": raw,
            "data_dir": (bool(self.dataset), "--dataset"),
            "source_column": has_table,
            "target_column": has_table,
            "bleu_every": (self.has_validation(), "a validation text"),
        }


class SearchOptions(RunOptions):
    """Decodes with a trained run by beam search."""

    num_beams: int | None = setting(None, "beams; default: the run's", ge=1)
    length_penalty: float | None = setting(
        None, "exponent of the length penalty; default: the run's", ge=0
    )
    no_repeat_ngram_size: int | None = setting(
        None,
        "never translate to the same N tokens in a row twice; 0 allows it; default: the run's",
        ge=0,
    )
    min_length: int | None = setting(
        None, "fewest tokens of a translation, end token included; default: the run's", ge=0
    )
    repetition_penalty: float | None = setting(
        None, "above 1 makes tokens that have occurred less likely; default: the run's", gt=0
    )
    source_language: str = setting(
        "", "with a multilingual model: language of the texts, e.g. en; default: the run's"
    )
    target_language: str = setting("", "language to translate to, likewise; default: the run's")
    source_prefix: str | None = setting(
        None, 'text before each source, e.g. "summarize: "; default: the run\'s'
    )


class TranslateOptions(SearchOptions, DecodingOptions, FilesOptions):
    """Translates standard input, one sentence per line, to standard output, or files.

    {command} --run runs/mine < in.txt > out.txt
    {command} --run runs/mine --input 'in/*.gz' --output out --processes 2
    {command} --run runs/mine --format json --num-best 3 < in.txt > out.jsonl
    """

    requirements: ClassVar[dict] = {
        **FilesOptions.requirements,
        "--num-best needs --format json": (
            lambda options: options.num_best is None or options.format == "json"
        ),
    }

    format: Literal["text", "json"] = setting(
        "text",
        "text: the best translation of each line; json: an object with the best translations, "
        "their scores and lengths in tokens, and whether the line was truncated",
    )
    num_best: int | None = setting(
        None, "with --format json: translations of each line; default: one for each beam", ge=1
    )


class EvaluateOptions(SearchOptions, DecodingOptions):
    """Scores a trained run on other text.

    {command} --run runs/mine --source test.en --target test.de
    {command} --run runs/mine --table test.parquet --source-column en --target-column de
    """

    evaluation_text: ClassVar[dict] = one_of("evaluation text", "source target", "table")
    exclusive: ClassVar[dict] = evaluation_text
    requirements: ClassVar[dict] = both("source", "target")

    source: str = setting("", "file of sentences, one per line; may be .gz")
    target: str = setting("", "file of their translations")
    table: str = setting("", f"instead: {TABLE}")
    source_column: str = setting("source", "column of the sentences in a table")
    target_column: str = setting("target", "column of their translations")
    metric: METRICS | None = setting(None, "score to print; default: the run's")

    def model_post_init(self, context):
        super().model_post_init(context)
        check_metric(self.metric)
        self.check_given(self.evaluation_text)


class TranslationExportOptions(SearchOptions, ExportOptions):
    """Publishes a trained run as a SavedModel for TensorFlow Serving, which fixes its search.

    {command} --run runs/mine --name mine --num-beams 4
    """


class TranslationExperiment(Experiment):
    """Learns `ParallelText` with an encoder-decoder and shared pieces; is scored by `metric`."""

    config_class = TranslationConfig
    kind = "translation"
    pretrained_from = (
        "a finished run of keras-transformer translation, or a folder of Marian, M2M100, NLLB, "
        "BART, mBART-50, T5 or OpenNMT-tf"
    )

    def __init__(self, config, texts=None, run=None):
        check_metric(config.metric)
        super().__init__(config, texts, run)

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        config = super().completed(config, before, pretrained)
        kt.serving.settings.read_search(vars(config))  # raises for wrong rules
        return config

    def pretrained_classes(self):
        return (kt.models.encoder_decoder.TranslationModel,)

    def use_pretrained(self):
        longest = getattr(self.pretrained.model.positions, "max_sequence_length", None)
        for name in ("max_length", "max_target_length"):
            length = getattr(self.config, name)
            if None not in (longest, length) and length > longest:
                raise ValueError(
                    f"{flag_of(name)} must be at most {longest} tokens, the positions of the model "
                    f"of --pretrained. Received: {length}."
                )
        self.target_tokenizer = self.pretrained.target_tokenizer
        self._tokenizers(self.pretrained.tokenizer)  # raises for languages that it lacks

    def sizes(self):
        return kt.models.encoder_decoder.SIZES

    def read_texts(self):
        config = self.config
        pair = config.source, config.target
        text = self._read("train", pair, config.tsv, config.table)
        if config.distinct_sources:
            text = _first_translations(text)
        if config.max_pairs:
            text = kt.data.ParallelText(*(side[: config.max_pairs] for side in text))
        return text, None

    def read_valid_text(self):
        config = self.config
        pair = config.valid_source, config.valid_target
        if any((*pair, config.valid_tsv, config.valid_table, config.dataset)):
            return self._read("validation", pair, config.valid_tsv, config.valid_table)
        return None

    def example(self):
        return kt.data.ParallelText(*(side[:1] for side in self.train_text))

    def from_json(self, content):
        return kt.data.ParallelText(*content)

    def _read(self, split, pair, tsv, table):
        """The text of two files, of one, of a table, or else of a split of the data set."""
        config = self.config
        dataset = "" if any((*pair, tsv, table)) else config.dataset
        languages = config.source_language, config.target_language
        columns = languages if dataset else (config.source_column, config.target_column)
        where = {"dataset": dataset, "split": split, "data_dir": config.data_dir or None}
        return kt.data.PairStream(*pair, tsv, table, columns, **where).read()

    def prepared_texts(self):
        tokenizer, names = self.prepared.tokenizer(), preparation.HELD_OUT
        pair = [tokenizer.detokenize(ids[None]) for ids in self.prepared[0].values()]
        first = kt.data.ParallelText(*([text.numpy()[0].decode()] for text in pair))
        if names[0] not in self.prepared.manifest["files"]:
            return first, None
        return first, kt.data.PairStream(*map(self.prepared.checked, names)).read()

    def learn_tokenizer(self):
        sentences = [*self.train_text.sources, *self.train_text.targets]
        return kt.tokenizers.train_sentencepiece(sentences, self.config.vocabulary_size)

    def columns(self, tokenizer):
        sides = self._token_ids(self.train_text, tokenizer)
        # An empty text may have tokens that name its language.
        empty = self._token_ids(kt.data.ParallelText([""], [""]), tokenizer)
        pairs = zip(sides, empty, strict=True)
        kept = np.all([ids.lengths > text.lengths for ids, text in pairs], axis=0)
        if self.config.source_prefix:  # which a short text may be one token with
            is_text = [bool(text.strip()) for text in self.train_text.sources]
            kept = np.array(is_text, bool) & (sides[1].lengths > empty[1].lengths)
        log_dropped(int((~kept).sum()), len(kept), "pairs with an empty side")
        source, target = (ids.take(np.flatnonzero(kept)) for ids in sides)
        return {"source": source, "target": target}, {}, {}

    def make_batches(self, tokenizer, plan_folder=None):
        columns = self.prepared.columns
        return self._batches(columns["source"], columns["target"], plan_folder)

    def validation(self, tokenizer, replicas=1):
        if self.valid_text is None:
            return None
        return self._batches(*self._token_ids(self.valid_text, tokenizer)).epoch(replicas)

    def _batches(self, sources, targets, plan_folder=None):
        config = self.config
        sizes = config.tokens_per_batch, config.max_length, config.seed, config.batch_shapes()
        return kt.data.TokenBatches(sources, targets, *sizes, plan_folder)

    def build(self, tokenizer, batches):
        if self.pretrained is not None:
            return for_training(self.pretrained.model, self.config)
        return kt.translation(tokenizer.vocabulary_size, **self.config.dimensions())

    def objective(self, batches):
        loss = kt.TokenCrossentropy(self.config.label_smoothing)
        return {"loss": loss, "metrics": [kt.TokenAccuracy(), kt.Perplexity()]}

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
        settings = kt.serving.settings.read_search(vars(config))

        @functools.cache  # compiled searches stay compiled from one epoch to another
        def translator_of(model):
            return kt.serving.Translator(model, *self._tokenizers(tokenizer), settings=settings)

        def score(model):
            translations = translations_of(translator_of(model), self.valid_text.sources)[0]
            return score_of(config.metric, translations, self.valid_text.targets)

        name = f"val_{config.metric}"
        return [callbacks.BestScore(score, run.best_model_file, config.bleu_every, name)]

    def show_result(self, run):
        translator = kt.serving.Translator.load(run.path)
        text, limits = self.shown_text, translator.settings
        if self.valid_text is not None:
            translations, _ = translations_of(translator, text.sources)
            print(report(self.config.metric, translations, text.targets))
        source = _shown(translator.tokenizer, text.sources[0], limits.max_source_length)
        target = _shown(translator.target_tokenizer, text.targets[0], limits.max_target_length)
        pictures.save_pictures(run, translator.attention(source, target))

    @staticmethod
    def translate(options):
        limit = kt.serving.RunFolder(options.run).settings()["max_length"]
        bulk.answer_input(answering, options, limit)

    @staticmethod
    def evaluate(options):
        metric = options.metric or kt.serving.RunFolder(options.run).settings()["metric"]
        check_metric(metric)
        if options.table:
            columns = options.source_column, options.target_column
            text = kt.data.PairStream(table=options.table, columns=columns).read()
        else:
            text = kt.data.PairStream(options.source, options.target).read()
        translator = _load_translator(options, cache=options.cache)
        translations, is_cut = translations_of(translator, text.sources)
        cut = [f"{line:,}" for line, was_cut in enumerate(is_cut, start=1) if was_cut]
        report_cut_texts(cut, len(is_cut), translator.settings.max_source_length)
        print(report(metric, translations, text.targets))

    @staticmethod
    def export(options):
        publish(_load_translator(options, options.dtype), options)

    def _token_ids(self, text, tokenizer):
        """The ids of both sides."""
        source, target = self._tokenizers(tokenizer)
        pairs = zip(text, (source, target or source), strict=True)
        return [token_ids.checked_ids(kt.data.tokenize(*pair), "text") for pair in pairs]

    def _tokenizers(self, tokenizer):
        """Those of source and target, with their languages; the latter None if it is the same."""
        config, given = self.config, ()
        if getattr(tokenizer, "languages", None) or not config.dataset:
            given = config.source_language or None, config.target_language or None
        prefix = {"source_prefix": config.source_prefix}
        return kt.serving.in_languages(tokenizer, self.target_tokenizer, prefix, *given)


def _shown(tokenizer, text, max_length):
    """The beginning of a text that fits into a picture, and with a start or end into the model."""
    for length in range(max_length - 1, 0, -1):
        part = pictures.beginning(tokenizer, text, length)
        part = part.removeprefix(getattr(tokenizer, "prefix", ""))  # which is put there again
        # What is joined and cut again may have more tokens.
        if tokenizer.tokenize([part]).row_lengths().numpy()[0] < max_length:
            return part
    return ""


def translations_of(translator, texts):
    """The translations, a list of strings, and whether each text was truncated."""
    answer = translator.answer(texts)
    return [text.decode() for text in answer["translation"]], answer["truncated"]


def n_best_of(translator, num_best, texts):
    """JSON of the best translations of each text, and whether each text was truncated."""
    free = {"target_prefix": [""] * len(texts), "max_length": [0] * len(texts)}
    answer = translator.answer(texts, "translate_nbest", **free)
    rows = zip(translator.hypotheses(answer), answer["truncated"].tolist(), strict=True)
    objects = [
        {"translations": [each._asdict() for each in best[:num_best]], "truncated": was_cut}
        for best, was_cut in rows
    ]
    return [json.dumps(each, ensure_ascii=False) for each in objects], answer["truncated"]


def answering(options):
    """A function from texts to lines of answers, and whether each text was truncated."""
    translator = _load_translator(options, cache=options.cache)
    if options.format == "text":
        return functools.partial(translations_of, translator)
    num_beams = translator.settings.search.num_beams
    num_best = options.num_best or num_beams
    if num_best > num_beams:
        raise ValueError(
            f"--num-best must be at most --num-beams. Received: {num_best} and {num_beams}."
        )
    return functools.partial(n_best_of, translator, num_best)


def _load_translator(options, dtype=None, cache="auto"):
    if cache != "static":  # which XLA compiles for one batch at a time
        devices.one_thread_each()
    names = (
        "num_beams", "length_penalty", "source_language", "target_language", "source_prefix",
        "weights",
    )  # fmt: skip
    return kt.serving.Translator.load(
        options.run,
        dtype=dtype,
        cache=cache,
        token_rules=options.given(RULES),
        **{name: getattr(options, name) for name in names},
    )


def _first_translations(text):
    """Each source once, with the first of its translations."""
    # Going through them backwards, the first translation is the last to be kept.
    first = dict(zip(reversed(text.sources), reversed(text.targets), strict=True))
    sources = list(dict.fromkeys(text.sources))
    return kt.data.ParallelText(sources, [first[source] for source in sources])


SUBCOMMANDS = {
    "translate": TranslateOptions,
    "evaluate": EvaluateOptions,
    "export": TranslationExportOptions,
}
main = Command(__doc__, TranslationExperiment, SUBCOMMANDS).main

if __name__ == "__main__":
    main()
