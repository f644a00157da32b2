"""Trains a translation model on your own text; measures it, translates with it, exports it.

Train, or resume a training that was stopped:

    python -m train.translation --source train.en --target train.de \\
        --valid-source val.en --valid-target val.de --run runs/mine

All GPUs of this machine are used without a flag. On several workers, with the same numbers:

    python -m train.launch --workers 2 -- python -m train.translation --source ...

Use the trained run:

    python -m train.translation translate --run runs/mine < in.txt > out.txt
    python -m train.translation evaluate --run runs/mine --source val.en --target val.de
    python -m train.translation export --run runs/mine --name mine
"""

import functools

from keras_transformer.data import (
    ParallelText,
    TokenBatches,
    corpora,
    read_files,
    read_tsv,
    tokenize,
)
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving import with_dtype
from keras_transformer.tokenizers import train_sentencepiece
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_transformer.training.callbacks import BestScore
from train import experiment
from train.config import TranslationConfig
from train.experiment import ExportOptions, RunOptions, read_options
from train.lines import answer_lines, say_what_was_cut
from train.pictures import save_pictures, translation_attention
from train.run import Run, Task, optimizer_of
from train.settings import required, setting, settings
from train.translator import (
    bleu,
    report,
    search_settings,
    translate,
    translate_and_tell,
    translator_of,
)

NAME = "translation"


def main(arguments=None):
    commands = {"translate": run_translate, "evaluate": run_evaluate, "export": run_export}
    experiment.run_command(arguments, run_train, commands)


def run_train(arguments):
    experiment.run_training(
        arguments, NAME, __doc__, TranslationConfig, read_text, translation_task, show_result
    )


def translation_task(config, train_text, valid_text=None):
    """How a `Run` learns to translate: `ParallelText` to learn from, and to measure on or None."""
    limits = (config.tokens_per_batch, config.max_length, config.seed)

    def read():
        sentences = [*train_text.sources, *train_text.targets]
        tokenizer = train_sentencepiece(sentences, config.vocabulary_size)
        return tokenizer, TokenBatches(*(tokenize(side, tokenizer) for side in train_text), *limits)

    def validation(tokenizer):
        if valid_text is None:
            return None
        sides = (tokenize(side, tokenizer) for side in valid_text)
        return TokenBatches(*sides, *limits).epoch()

    def callbacks(run, tokenizer):
        if valid_text is None or not config.bleu_every:
            return []
        settings = search_settings(config)

        def bleu_of(model):
            translator = translator_of(model, tokenizer, settings)
            return bleu(translate(translator, valid_text.sources), valid_text.targets).score

        return [BestScore(bleu_of, run.best_model_file, config.bleu_every, "val_bleu")]

    return Task(
        read=read,
        load=lambda path, _: TokenBatches.load(path, *limits),
        build=lambda tokenizer, batches: compiled_model(config, tokenizer.vocabulary_size),
        describe=lambda batches: (
            f"{batches.num_pairs:,} pairs, {batches.num_target_tokens:,} target tokens, "
            f"{batches.num_dropped:,} pairs longer than {config.max_length} tokens left out"
        ),
        validation=validation,
        callbacks=callbacks,
    )


def compiled_model(config, vocabulary_size):
    model = translation(vocabulary_size, **config.dimensions())
    model.compile(
        optimizer=optimizer_of(config),
        loss=TokenCrossentropy(config.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity()],
        clip_norm=config.clip_norm or None,
        accumulation_steps=config.accumulation_steps,
    )
    return model


def show_result(run, config, model, train_text, valid_text):
    text = valid_text or train_text
    pair = text.sources[0], text.targets[0]
    save_pictures(run, translation_attention(model, run.tokenizer(), *pair), title=pair[0])
    if valid_text is not None:
        translator = translator_of(model, run.tokenizer(), search_settings(config))
        print(report(translate(translator, valid_text.sources), valid_text.targets))


@settings
class SearchFlags:
    """Flags that change the search of a trained run."""

    num_beams: int | None = setting(None, "beams; default: the run's", ge=1)
    length_penalty: float | None = setting(
        None, "exponent of the GNMT length penalty; default: the run's", ge=0
    )


@settings
class TranslateOptions(SearchFlags, RunOptions):
    """Flags of `translate`."""


@settings
class EvaluateOptions(SearchFlags, RunOptions):
    """Flags of `evaluate`."""

    source: str = required("file of sentences, one per line; may be .gz")
    target: str = required("file of their translations")


@settings
class TranslationExportOptions(SearchFlags, ExportOptions):
    """Flags of `export`; the search is fixed in the served model."""


def run_translate(arguments):
    description = "Translates standard input, one sentence per line, to standard output."
    options = read_options(TranslateOptions, arguments, NAME, "translate", description)
    run = Run(options.run)
    translator = _translator(run, options)
    answer_lines(functools.partial(translate_and_tell, translator), run.config().max_length)


def run_evaluate(arguments):
    description = "Measures BLEU of a trained run on other text."
    options = read_options(EvaluateOptions, arguments, NAME, "evaluate", description)
    run = Run(options.run)
    translator = _translator(run, options)
    text = read_files(options.source, options.target)
    translations, is_cut = translate_and_tell(translator, text.sources)
    cut = [f"{line:,}" for line, was_cut in enumerate(is_cut, start=1) if was_cut]
    say_what_was_cut(cut, len(is_cut), run.config().max_length)
    print(report(translations, text.targets))


def run_export(arguments):
    experiment.run_export(
        arguments, NAME, TranslationConfig, exported_translator, TranslationExportOptions
    )


def exported_translator(run, options):
    return _translator(run, options, options.dtype)


def _translator(run, options, dtype=None):
    config = run.config()
    model = run.model() if dtype is None else with_dtype(run.model(), dtype)
    search = search_settings(config, options.num_beams, options.length_penalty)
    return translator_of(model, run.tokenizer(), search)


def read_text(config):
    """The training and the validation text that a config names; None without the latter.

    Raises:
        ValueError: if the config names no text, more than one, or half of one.
    """
    given = [bool(config.source or config.target), bool(config.tsv), bool(config.dataset)]
    if sum(given) != 1:
        raise ValueError(
            "Give one training text: --source and --target, or --tsv, or --dataset. "
            f"Received: {sum(given)} of them."
        )
    if (config.source_language or config.target_language) and not config.dataset:
        raise ValueError("--source-language and --target-language choose from a --dataset.")
    valid_text = None
    if config.tsv:
        train_text = read_tsv(config.tsv)
        valid_text = read_tsv(config.valid_tsv) if config.valid_tsv else None
    elif config.dataset:
        where = {
            "source": config.source_language or None,
            "target": config.target_language or None,
            "data_dir": config.data_dir or None,
        }
        train_text = corpora.read_dataset(config.dataset, "train", **where)
        valid_text = corpora.read_dataset(config.dataset, "validation", **where)
    else:
        train_text = _read_pair(config.source, config.target, "--source and --target")
        if config.valid_source or config.valid_target:
            flags = "--valid-source and --valid-target"
            valid_text = _read_pair(config.valid_source, config.valid_target, flags)
    if config.distinct_sources:
        # Going through them backwards, the first translation is the last to be kept.
        first = dict(zip(reversed(train_text.sources), reversed(train_text.targets), strict=True))
        sources = list(dict.fromkeys(train_text.sources))
        train_text = ParallelText(sources, [first[source] for source in sources])
    if config.max_pairs:
        train_text = ParallelText(*(side[: config.max_pairs] for side in train_text))
    return train_text, valid_text


def _read_pair(source, target, flags):
    if not source or not target:
        raise ValueError(f"{flags} belong together. Received: {source!r} and {target!r}.")
    return read_files(source, target)


if __name__ == "__main__":
    main()
