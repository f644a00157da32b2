"""Trains a language model on a text, measures it, writes with it, exports it.

Train, or go on where an interrupted training was stopped:

    python -m train.language_model --text shakespeare.txt --hold-out 0.1 --run runs/shakespeare

Use what came out:

    python -m train.language_model sample --run runs/shakespeare --prompt "KING RICHARD:"
    python -m train.language_model evaluate --run runs/shakespeare --text other.txt --stride 16
    python -m train.language_model export --run runs/shakespeare --name shakespeare

With --model transformer_xl a memory is carried from segment to segment of the text.
"""

import dataclasses
import functools
import math
import pathlib

import tensorflow as tf

from keras_transformer.decoding import stream
from keras_transformer.models.gpt2 import gpt2
from keras_transformer.models.language_model import (
    attention_scores,
    language_model,
    start_cache,
    step,
)
from keras_transformer.models.transformer_xl import SIZES as XL_SIZES
from keras_transformer.models.transformer_xl import attention_scores as xl_attention_scores
from keras_transformer.models.transformer_xl import score, transformer_xl
from keras_transformer.models.transformer_xl import start_cache as start_xl_cache
from keras_transformer.models.transformer_xl import step as xl_step
from keras_transformer.serving import (
    Generator,
    GeneratorFunctions,
    SamplingSettings,
    with_dtype,
)
from keras_transformer.serving.generator import CONTROL_IDS
from keras_transformer.text import (
    SymbolTokenizer,
    TextSegments,
    TextWindows,
    corpora,
    sliding_windows,
    train_byte_pairs,
)
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy
from train import experiment
from train.config import LanguageModelConfig
from train.experiment import run_parser
from train.pictures import LONGEST, save_pictures, self_attention
from train.run import Run, Task, optimizer_of

NAME = "language_model"
TOKENS = ("characters", "bytes", "pieces")
# How each kind of model writes, its `start_cache` and its `step`, and shows where it looks.
MODELS = {
    "transformer": (start_cache, step, attention_scores),
    "gpt2": (start_cache, step, attention_scores),
    "transformer_xl": (start_xl_cache, xl_step, xl_attention_scores),
}
LONGEST_CHARACTER = 4  # bytes of UTF-8


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


def run_sample(arguments):
    parser = run_parser(NAME, "sample", "Writes on from a prompt, to standard output, as it goes.")
    parser.add_argument("--prompt", default="\n", help="what to go on from (default a line break)")
    parser.add_argument("--length", type=int, default=500, help="tokens to write (default 500)")
    parser.add_argument("--temperature", type=float, default=0.8, help="above 0 (default 0.8)")
    parser.add_argument("--top-k", type=int, help="draw among so many of the best tokens")
    parser.add_argument("--top-p", type=float, help="draw among the best that hold this share")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same text")
    options = parser.parse_args(arguments)
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
    for text in texts_of(tokenizer, written):
        print(text, end="", flush=True)
    print()


def run_evaluate(arguments):
    parser = run_parser(NAME, "evaluate", "Measures a trained run on another text.")
    parser.add_argument("--text", required=True, help="file of text")
    parser.add_argument("--context", type=int, help="in tokens (default as trained)")
    parser.add_argument("--stride", type=int, help="in tokens (default half of the context)")
    parser.add_argument(
        "--memory-length", type=int, help="of transformer_xl, in tokens (default as trained)"
    )
    options = parser.parse_args(arguments)
    run = Run(options.run, LanguageModelConfig)
    text = corpora.read_text(options.text)
    given = {
        name: value
        for name in ("context", "stride", "memory_length")
        if (value := getattr(options, name)) is not None
    }
    config = dataclasses.replace(run.config(), **given)
    if "stride" in given and config.model == "transformer_xl":
        raise ValueError("transformer_xl reads segments with a memory; it has no --stride.")
    if "memory_length" in given and config.model != "transformer_xl":
        raise ValueError(f"--memory-length is of transformer_xl. The run is of {config.model}.")
    if config.context < 1 or given.get("stride", 1) < 1:
        raise ValueError(f"--context and --stride must be at least 1 token. Received: {given}.")
    print(report(config, run.model(), run.tokenizer(), text))


def run_export(arguments):
    experiment.run_export(arguments, NAME, LanguageModelConfig, generator_of)


def generator_of(run, dtype="float32"):
    """The served `Generator` of a trained run."""
    config, context = run.config(), reach(run.config())
    functions = generator_functions(config, with_dtype(run.model(), dtype))
    settings = SamplingSettings(context=context, max_tokens=context // 2)
    return Generator(functions, run.tokenizer(), settings)


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
    if config.memory_length >= 0:
        return config.memory_length
    return XL_SIZES.get(config.size, {}).get("memory_length", 0)  # the model refuses other sizes


def texts_of(tokenizer, ids):
    """The text of each token that arrives, held back while bytes of a character are missing."""
    pending = []
    for token_id in ids:
        pending.append(token_id)
        text = tokenizer.detokenize([pending]).numpy()[0].decode()
        if not text.endswith("\ufffd"):
            yield text
            pending = []
        elif len(pending) == LONGEST_CHARACTER:  # the first of them begins no character
            yield tokenizer.detokenize([pending[:1]]).numpy()[0].decode()
            pending = pending[1:]
    if pending:
        yield tokenizer.detokenize([pending]).numpy()[0].decode()


def language_model_task(config, train_text, valid_text=b""):
    """How a `Run` learns to go on with a text."""
    if config.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}. Received: {config.model!r}.")
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
    if not 0 <= config.hold_out < 1:
        raise ValueError(f"hold_out must be a share in [0, 1). Received: {config.hold_out}.")
    if pathlib.Path(config.text).is_file() or "." in config.text:
        text = corpora.read_text(config.text)
    else:
        text = corpora.read_text_dataset(config.text, "train", config.data_dir or None)
    if config.valid_text:
        return text, corpora.read_text(config.valid_text)
    cut = len(text) - int(len(text) * config.hold_out)
    while cut < len(text) and text[cut] & 0xC0 == 0x80:  # inside a character of UTF-8
        cut += 1
    return text[:cut], text[cut:]


def tokenizer_of(config, text):
    """The vocabulary of a text, which holds all of its characters or all bytes."""
    if config.tokens not in TOKENS:
        raise ValueError(f"tokens must be one of {', '.join(TOKENS)}. Received: {config.tokens!r}.")
    if config.tokens == "bytes":
        return SymbolTokenizer()
    if config.tokens == "pieces":
        lines = text.decode(errors="replace").splitlines(keepends=True)
        return train_byte_pairs(lines, config.vocabulary_size)
    try:
        return SymbolTokenizer("".join(set(text.decode())))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Characters need a text in UTF-8; otherwise take --tokens bytes. Received: {error}."
        ) from None


def token_ids(tokenizer, text):
    return tokenizer.tokenize([text]).flat_values.numpy()


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
