"""Trains a language model on a text; measures it, samples from it, exports it.

Train, or resume a training that was stopped:

    python -m train.language_model --text shakespeare.txt --hold-out 0.1 --run runs/shakespeare

Use the trained run:

    python -m train.language_model sample --run runs/shakespeare --prompt "KING RICHARD:"
    python -m train.language_model evaluate --run runs/shakespeare --text other.txt --stride 16
    python -m train.language_model export --run runs/shakespeare --name shakespeare

--model transformer_xl carries a memory from one segment of the text to the next.
"""

import dataclasses
import functools
import math
import pathlib

import tensorflow as tf

from keras_transformer.data import TextSegments, TextWindows, corpora, sliding_windows
from keras_transformer.decoding import stream
from keras_transformer.models.decoder_only import (
    attention_scores,
    language_model,
    start_cache,
    step,
)
from keras_transformer.models.gpt2_model import gpt2
from keras_transformer.models.xl_model import attention_scores as xl_attention_scores
from keras_transformer.models.xl_model import score, transformer_xl
from keras_transformer.models.xl_model import start_cache as start_xl_cache
from keras_transformer.models.xl_model import step as xl_step
from keras_transformer.serving import (
    GeneratorFunctions,
    GeneratorModule,
    SamplingSettings,
    with_dtype,
)
from keras_transformer.serving.generator_module import CONTROL_IDS
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy
from train import experiment
from train.config import LanguageModelConfig
from train.experiment import RunOptions, read_options
from train.pictures import LONGEST, save_pictures, self_attention
from train.run import Run, Task, optimizer_of
from train.settings import required, setting, settings
from train.tokens import texts_of, token_ids, tokenizer_of
from train.training_config import LARGEST_SEED

NAME = "language_model"
# How each kind of model writes, its `start_cache` and its `step`, and shows where it looks.
MODELS = {
    "transformer": (start_cache, step, attention_scores),
    "gpt2": (start_cache, step, attention_scores),
    "transformer_xl": (start_xl_cache, xl_step, xl_attention_scores),
}


def main(arguments=None):
    commands = {"sample": run_sample, "evaluate": run_evaluate, "export": run_export}
    experiment.run_command(arguments, run_train, commands)


def run_train(arguments):
    experiment.run_training(
        arguments, NAME, __doc__, LanguageModelConfig, read_text, language_model_task, show_result
    )


def show_result(run, config, model, train_text, valid_text):
    tokenizer = run.tokenizer()
    ids = token_ids(tokenizer, valid_text or train_text)[: min(config.context, LONGEST)]
    scores = MODELS[config.model][-1](model, ids[None])
    beginning = tokenizer.detokenize([ids]).numpy()[0].decode()
    save_pictures(run, self_attention(scores, tokenizer, ids), title=beginning)
    if valid_text:
        print(report(config, model, tokenizer, valid_text))


@settings
class SampleOptions(RunOptions):
    """Flags of `sample`."""

    prompt: str = setting("\n", "text to continue; default: a line break")
    length: int = setting(500, "tokens to write", ge=0)
    temperature: float = setting(
        0.8, "below 1 sharpens the probabilities; the least takes the best token", ge=0.0001
    )
    top_k: int | None = setting(None, "draw among this many of the most likely tokens", ge=1)
    top_p: float | None = setting(
        None, "draw among the most likely tokens that hold this probability", gt=0, le=1
    )
    seed: int = setting(0, "the same seed draws the same text", ge=0, le=LARGEST_SEED)


@settings
class EvaluateOptions(RunOptions):
    """Flags of `evaluate`."""

    text: str = required("file of text; may be .gz")
    context: int | None = setting(None, "window in tokens; default: as trained", ge=2)
    stride: int | None = setting(
        None, "tokens that the window moves; default: half of --context", ge=1
    )
    memory_length: int | None = setting(
        None, "tokens that transformer_xl remembers; default: as trained", ge=0
    )


def run_sample(arguments):
    description = "Continues a prompt, to standard output, token by token."
    options = read_options(SampleOptions, arguments, NAME, "sample", description)
    run = Run(options.run, LanguageModelConfig)
    config, model, tokenizer = run.config(), run.model(), run.tokenizer()
    start, advance, _ = MODELS[config.model]
    prompt = token_ids(tokenizer, options.prompt or "\n")
    written = stream(
        functools.partial(advance, model),
        functools.partial(start, model, 1),
        prompt,
        num_tokens=options.length,
        context=reach(config),
        seed=(options.seed, 0),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        forbidden_ids=CONTROL_IDS,
    )
    print(options.prompt, end="", flush=True)
    try:
        for text in texts_of(tokenizer, written):
            print(text, end="", flush=True)
    finally:  # also of a text that Ctrl-C ends
        print()


def run_evaluate(arguments):
    description = "Measures a trained run on another text."
    options = read_options(EvaluateOptions, arguments, NAME, "evaluate", description)
    run = Run(options.run, LanguageModelConfig)
    config = evaluated(run.config(), options)
    text = corpora.read_file(options.text)
    print(report(config, run.model(), run.tokenizer(), text))


def evaluated(config, options):
    """The config of a run with the context, stride and memory of `EvaluateOptions`."""
    names = ("context", "stride", "memory_length")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if "stride" in given and config.model == "transformer_xl":
        raise ValueError("transformer_xl reads segments with a memory; it has no --stride.")
    if config.model == "gpt2" and given.get("context", 0) > config.context:
        raise ValueError(
            f"--context must be at most {config.context}, the positions that this gpt2 has. "
            f"Received: {options.context}."
        )
    if "context" in given and "stride" not in given:
        given["stride"] = None  # that of the run may be longer
    return dataclasses.replace(config, **given)


def run_export(arguments):
    experiment.run_export(arguments, NAME, LanguageModelConfig, exported_generator)


def exported_generator(run, options):
    return generator_of(run, options.dtype)


def generator_of(run, dtype="float32"):
    """The served `Generator` of a trained run."""
    config, context = run.config(), reach(run.config())
    functions = generator_functions(config, with_dtype(run.model(), dtype))
    settings = SamplingSettings(context=context, max_tokens=context // 2)
    return GeneratorModule(functions, run.tokenizer(), settings)


def generator_functions(config, model):
    """The model of a run as the functions that a `Generator` is made of."""
    start, advance, _ = MODELS[config.model]
    return GeneratorFunctions(
        weights=model.weights,
        start_cache=functools.partial(start, model),
        step=functools.partial(advance, model),
        logits=lambda token_ids: model(token_ids, training=False),
    )


def reach(config):
    """How many tokens a model was trained to look back at, with its memory."""
    return config.context + memory_length_of(config)


def memory_length_of(config):
    """How many tokens the model of a config remembers; 0 if it has no memory."""
    if config.model != "transformer_xl":
        return 0
    return config.row()["memory_length"] if config.memory_length is None else config.memory_length


def language_model_task(config, train_text, valid_text=b""):
    """How a `Run` learns to go on with a text."""
    if config.model == "transformer_xl":
        batches, sizes = TextSegments, (config.context, config.batch_size)
    else:
        batches = TextWindows
        sizes = (config.context, config.batch_size, config.evaluate_every, config.seed)

    def read():
        tokenizer = tokenizer_of(config, train_text)
        return tokenizer, batches(token_ids(tokenizer, train_text), *sizes)

    def validation(tokenizer):
        if not valid_text:
            return None
        # Outside of training transformer_xl has no memory, so it reads a longer window.
        ids = token_ids(tokenizer, valid_text)
        return sliding_windows(ids, reach(config), stride_of(config), config.batch_size)

    return Task(
        read=read,
        load=lambda path, _: batches.load(path, *sizes),
        build=lambda tokenizer, batches: compiled_model(config, tokenizer.vocabulary_size),
        describe=lambda windows: f"{windows.num_tokens:,} tokens of text",
        validation=validation,
    )


def compiled_model(config, vocabulary_size):
    if config.model == "transformer_xl":
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        rows, rest = divmod(config.batch_size, replicas)
        if rest:
            raise ValueError(
                "transformer_xl remembers each row of a batch: every replica must have as many. "
                f"Received: batch_size={config.batch_size} for {replicas} replicas."
            )
        model = transformer_xl(vocabulary_size, rows, **config.dimensions())
    elif config.model == "gpt2":
        given = {"vocabulary_size": vocabulary_size, "max_sequence_length": config.context}
        model = gpt2(**given, **config.dimensions())
    else:
        model = language_model(vocabulary_size, **config.dimensions())
    model.compile(
        optimizer=optimizer_of(config),
        loss=TokenCrossentropy(config.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity()],
        clip_norm=config.clip_norm or None,
        accumulation_steps=config.accumulation_steps,
    )
    return model


def stride_of(config):
    return config.stride or max(1, config.context // 2)


def read_text(config):
    """The training text that a config names, and the one to measure on, empty if there is none.

    Raises:
        ValueError: if the config names no text, or two to measure on.
    """
    if not config.text:
        raise ValueError("Give a text to learn from: --text, a file or a TFDS name.")
    if config.valid_text and config.hold_out:
        raise ValueError(
            "Give one text to measure on: --valid-text or --hold-out. "
            f"Received: {config.valid_text!r} and {config.hold_out}."
        )
    if pathlib.Path(config.text).exists() or "." in config.text:
        text = corpora.read_file(config.text)
    else:
        text = corpora.read_text_dataset(config.text, "train", config.data_dir or None)
    if config.valid_text:
        return text, corpora.read_file(config.valid_text)
    cut = len(text) - int(len(text) * config.hold_out)
    while cut < len(text) and text[cut] & 0xC0 == 0x80:  # inside a character of UTF-8
        cut += 1
    return text[:cut], text[cut:]


def report(config, model, tokenizer, text):
    """A line of what the model thinks of a text: nats a token, perplexity, bits.

    Args:
        config: of its run, or with another context, stride or memory.
        model: of `MODELS[config.model]`.
        tokenizer: of its run.
        text: bytes; all of it but its first token is predicted.
    """
    ids = token_ids(tokenizer, text)
    if len(ids) < 2:
        raise ValueError(
            "A text to measure on must have two tokens, of which the second is predicted. "
            f"Received: {len(ids)}."
        )
    if config.model == "transformer_xl":
        memory_length = memory_length_of(config)
        total, count = score(model, ids[None], config.context, memory_length)
        nats, given = total / count, f"segments of {config.context}, memory {memory_length}"
    else:
        batch_size = max(1, 8192 // config.context)
        windows = sliding_windows(ids, config.context, stride_of(config), batch_size)
        model.compile("adam", TokenCrossentropy())
        nats = model.evaluate(windows, verbose=0)
        given = f"context {config.context}, stride {stride_of(config)}"
    bits = nats * (len(ids) - 1) / math.log(2)
    characters = len(text.decode(errors="replace"))
    return (
        f"{nats:.4f} nats a token, perplexity {math.exp(nats):.3f}; "
        f"{bits / characters:.4f} bits a character, {bits / len(text):.4f} bits a byte; "
        f"{len(ids):,} tokens, {given}."
    )


if __name__ == "__main__":
    main()
