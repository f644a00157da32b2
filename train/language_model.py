"""Trains a language model on a text; evaluates it, samples from it, exports it.

Train, or resume a run that was stopped:

    keras-transformer language-model --text shakespeare.txt --hold-out 0.1 --run runs/shakespeare

Use the trained run (each has its own --help):

    keras-transformer language-model sample --run runs/shakespeare --prompt "KING RICHARD:"
    keras-transformer language-model evaluate --run runs/shakespeare --text other.txt --stride 16
    keras-transformer language-model export --run runs/shakespeare --name shakespeare

--model transformer_xl carries a memory from one segment of the text to the next. --pretrained
tunes the model of another run, or of a released folder of GPT-2, Llama, Mistral or Qwen.
"""

import itertools
import json
import math
import pathlib
from typing import ClassVar, Literal

from .command import Command
from .deferred import Deferred, kt, tf
from .experiment import Experiment, log_dropped, plan_in_words, publish
from .options import DecodingOptions, ExportOptions, FilesOptions, RunOptions
from .pretrained import for_training
from .settings import one_of, required, setting
from .training_config import (
    ENOUGH_PIECES,
    LARGEST_SEED,
    TABLE,
    TrainingConfig,
    blocks_setting,
    left_to_pretrained,
)

bulk = Deferred(f"{__package__}.bulk")
devices = Deferred(f"{__package__}.devices")
generators = Deferred("keras_transformer.serving.generator")
id_rows = Deferred("keras_transformer.data.token_ids")
pictures = Deferred(f"{__package__}.pictures")
runs = Deferred(f"{__package__}.run")

RULES = ("no_repeat_ngram_size", "repetition_penalty")  # which have flags
SIZES = {
    "transformer": ("small", "medium"),
    "gpt2": ("124M", "355M", "774M", "1558M"),
    "transformer_xl": ("small", "enwik8", "wikitext103", "wikitext103_large"),
}
ALL_SIZES = "; ".join(f"{', '.join(sizes)} with --model {model}" for model, sizes in SIZES.items())


class LanguageModelConfig(TrainingConfig):
    """One experiment of `keras-transformer language-model`."""

    command: ClassVar[str] = "language_model"
    further_dimensions: ClassVar[tuple] = ("blocks", "memory_length")
    training_text: ClassVar[dict] = one_of("training text", "text", "prepared")
    usual: ClassVar[dict] = {
        "tokens": "characters", "model": "transformer", "size": "small", "context": 256,
        "sampling": "{}",
    }  # fmt: skip
    left_open: ClassVar[tuple] = (*usual, "memory_length")
    of_pretrained: ClassVar[tuple] = ("model", "tokens", "size")
    exclusive: ClassVar[dict] = {
        **TrainingConfig.exclusive,
        **training_text,
        **one_of("validation text", "valid_text", "hold_out"),
        **left_to_pretrained("blocks", "activation", "normalize_first", "vocabulary_size"),
        **{
            f"--size must be one of {', '.join(sizes)} with --model {model}": (
                f"model={model}", f"size!={'|'.join(sizes)}",
            )
            for model, sizes in SIZES.items()
        },
        "--hold-out needs --text; keras-transformer prepare --held-out holds out of --prepared": (
            "prepared", "hold_out",
        ),
        "--blocks needs --model transformer": ("blocks", "model!=transformer"),
        "--memory-length needs --model transformer_xl": (
            "memory_length!=", "model!=transformer_xl",
        ),
        "--packed needs another --model: in transformer_xl, each row of a batch continues the one "
        "before": ("packed", "model=transformer_xl"),
        "--accumulation-steps must be 1 with --model transformer_xl, whose memory belongs to a "
        "whole batch": ("accumulation_steps", "model=transformer_xl"),
        "--r-drop must be 0 with --model transformer_xl, whose memory belongs to one pass": (
            "r_drop", "model=transformer_xl",
        ),
    }  # fmt: skip
    requirements: ClassVar[dict] = {
        **TrainingConfig.requirements,
        **ENOUGH_PIECES,
        "--stride must be at most --context, so that no token is left out": lambda config: (
            None in (config.stride, config.context) or config.stride <= config.context
        ),
    }

    text: str = setting(
        "",
        f"files of text to learn from, may be .gz; a folder of .txt files; {TABLE}; or a TFDS name",
    )
    valid_text: str = setting("", "file of text, or table, for validation")
    text_column: str = setting("text", "column of texts in a table")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    prepared: str = setting(
        "",
        "instead of --text: a folder of keras-transformer prepare --kind language_model, or "
        "documents",
    )
    hold_out: float = setting(
        0.0, "instead of --valid-text: share of the text to hold out, at its end", ge=0, lt=1
    )

    pretrained: str = setting(
        "",
        "tune the model of a finished run, or of a folder of GPT-2, Llama and the like from "
        "Hugging Face, or of GPT-2 from KerasHub",
    )
    tokens: Literal["characters", "bytes", "pieces"] | None = setting(
        None, "what to cut the text into; default: characters, or as --pretrained"
    )
    vocabulary_size: int = setting(2000, "pieces, with --tokens pieces", ge=1)
    model: Literal["transformer", "gpt2", "transformer_xl"] | None = setting(
        None,
        "architecture; transformer_xl remembers earlier segments; default: transformer, or that of "
        "--pretrained",
    )
    size: str | None = setting(
        None, f"published dimensions to start from, by default small: {ALL_SIZES}"
    )
    memory_length: int | None = setting(
        None, "tokens that transformer_xl remembers; default: set by --size", ge=0
    )
    blocks: Literal["transformer", "llama"] | None = blocks_setting()
    context: int | None = setting(
        None, "tokens of a training window; default: 256, or those of --pretrained", ge=2
    )
    batch_size: int = setting(32, "windows per batch", ge=1)
    packed: bool = setting(
        False,
        "instead of windows of the whole text: documents, separated by empty lines, several in "
        "each row of --context tokens; none attends to another",
    )
    evaluate_every: int = setting(
        500,
        "steps per epoch; an epoch of transformer_xl, or with --packed, is one pass over the text",
        ge=1,
    )
    stride: int | None = setting(
        None, "tokens that the window moves in evaluation; default: half of --context", ge=1
    )
    sampling: str | None = setting(
        None,
        'how the run samples, as JSON, e.g. {"temperature": 0.7, "token_rules": '
        '{"no_repeat_ngram_size": 3}}; default: temperature 0.8, or as --pretrained',
    )
    schedule: Literal["cosine", "inverse_sqrt"] = setting(
        "cosine", "learning rate after the warm-up; cosine decays to a tenth of the peak"
    )

    def has_validation(self):
        return bool(self.valid_text or self.hold_out) or self.has_held_out()

    def is_dataset(self):
        """Whether --text is the name of a data set, not that of a file."""
        is_name = not set(".*?[") & set(self.text)
        return bool(self.text) and is_name and not pathlib.Path(self.text).exists()

    def needs(self):
        in_windows = self.model != "transformer_xl" and not self.packed
        texts = filter(None, (self.text, self.valid_text))
        has_table = any(map(kt.data.tables.is_table, texts))
        return super().needs() | {
            "data_dir": (self.is_dataset(), "a TFDS name as --text"),
            "text_column": (has_table, "a table as --text or --valid-text"),
            "tokens": (not self.prepared, "a text that is not --prepared"),
            "vocabulary_size": (not self.prepared and self.tokens == "pieces", "--tokens pieces"),
            "evaluate_every": (in_windows, "windows: neither --model transformer_xl nor --packed"),
            "stride": (in_windows, "windows: neither --model transformer_xl nor --packed"),
            "shapes": (False, "batches of varying lengths"),
            "row_multiple": (self.packed, "--packed"),
        }


def _sampling_of(given, inherited, context):
    """The JSON of --sampling, with what belongs to the model of --pretrained.

    Args:
        given: the flag, or None.
        inherited: that of the run or of --pretrained, or None.
        context: of the run; an inherited length that does not fit is left out.
    """
    if not inherited or not context:
        return given if given is not None else inherited
    theirs = kt.serving.settings.read_object("sampling", inherited)
    if given is None:
        if theirs.get("max_tokens", 0) < context:
            return inherited
        del theirs["max_tokens"]
        return json.dumps(theirs)
    kept = {name: theirs[name] for name in ("start_id", "end_ids") if name in theirs}
    own = kt.serving.settings.read_object("sampling", given)
    return json.dumps(kept | own) if kept else given


class SampleOptions(DecodingOptions):
    """Writes a prompt and its continuation to standard output, token by token.

    {command} --run runs/shakespeare --prompt "KING RICHARD:"
    """

    prompt: str = setting("\n", "text to continue; default: a line break")
    length: int = setting(500, "tokens to write", ge=0)
    temperature: float | None = setting(
        None,
        "below 1 favours likely tokens, near 0 always takes the likeliest; default: the run's, "
        "0.8 unless it is a converted model",
        gt=0,
    )
    top_k: int | None = setting(
        None, "draw among this many of the most likely tokens; default: the run's", ge=1
    )
    top_p: float | None = setting(
        None,
        "draw among the most likely tokens that hold this probability; default: the run's",
        gt=0,
        le=1,
    )
    no_repeat_ngram_size: int | None = setting(
        None, "never write the same N tokens in a row twice; 0 allows it; default: the run's", ge=0
    )
    repetition_penalty: float | None = setting(
        None, "above 1 makes tokens that have occurred less likely; default: the run's", gt=0
    )
    seed: int = setting(0, "the same seed draws the same text", ge=0, le=LARGEST_SEED)


class ScoreOptions(FilesOptions):
    """Scores standard input, one text per line, as log-probability TAB tokens, or files.

    The first token of a text is given and does not count. Log-probabilities are in nats.

    {command} --run runs/shakespeare < texts.txt > scores.tsv
    {command} --run runs/shakespeare --input 'in/*.gz' --output out --processes 2
    """


class EvaluateOptions(RunOptions):
    """Evaluates a trained run on another text.

    {command} --run runs/shakespeare --text other.txt --stride 16
    """

    text: str = required("file of text, may be .gz; or a table")
    text_column: str = setting("text", "column of texts in a table")
    context: int | None = setting(None, "window in tokens; default: as trained", ge=2)
    stride: int | None = setting(
        None, "tokens that the window moves; default: half of --context", ge=1
    )
    memory_length: int | None = setting(
        None, "tokens that transformer_xl remembers; default: as trained", ge=0
    )


class LanguageModelExperiment(Experiment):
    """Learns to continue a text, a list of documents in bytes; is measured in nats per token."""

    config_class = LanguageModelConfig
    pretrained_from = (
        "a finished run of keras-transformer language-model, or a folder of GPT-2 or Llama"
    )
    first_id = 0  # of the tokenizer that the model knows

    @property
    def kind(self):
        return "documents" if self.config.packed else "language_model"

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        given = config.sampling
        config = super().completed(config.replace(sampling=None), before, pretrained)
        config = config.replace(sampling=_sampling_of(given, config.sampling, config.context))
        kt.serving.settings.read_sampling(config.sampling, config.context)  # raises for a wrong one
        return config

    def pretrained_classes(self):
        return kt.models.decoder_only.LanguageModel, kt.models.xl_model.TransformerXLModel

    def use_pretrained(self):
        config, model = self.config, self.pretrained.model
        self.first_id = generators.first_id_of(model, self.pretrained.tokenizer)
        if config.packed and self.first_id:
            raise ValueError(
                "--packed ends each document with the id 3, which the model of --pretrained does "
                f"not have. Leave it out. Received: {config.pretrained}."
            )
        if config.model != "transformer_xl":
            longest = getattr(model.positions, "max_sequence_length", config.context)
            if config.context > longest:
                raise ValueError(
                    f"--context must be at most {longest}, the positions that the model of "
                    f"--pretrained has. Received: {config.context}."
                )

    def sizes(self):
        module = {"transformer": "decoder_only", "gpt2": "gpt2_model", "transformer_xl": "xl_model"}
        return getattr(kt.models, module[self.config.model]).SIZES

    def read_texts(self):
        config = self.config
        if config.is_dataset():
            where = {"dataset": config.text, "data_dir": config.data_dir or None}
            documents = kt.data.DocumentStream(**where).read_bytes()
        else:
            documents = read_documents(config.text, config.text_column)
        text = b"".join(documents)
        cut = len(text) - int(len(text) * config.hold_out)
        while cut < len(text) and text[cut] & 0xC0 == 0x80:  # inside a character of UTF-8
            cut += 1
        if config.hold_out and cut == len(text):
            raise ValueError(
                "--hold-out must hold out at least one character. "
                f"Received: --hold-out {config.hold_out} of a text of {len(text)} bytes."
            )
        starts = itertools.accumulate(map(len, documents), initial=0)
        pairs = list(zip(documents, starts, strict=False))
        first = [document[: max(0, cut - start)] for document, start in pairs]
        held_out = [document[max(0, cut - start) :] for document, start in pairs]
        return list(filter(None, first)), list(filter(None, held_out)) or None

    def read_valid_text(self):
        config = self.config
        if not config.valid_text:
            return None
        return read_documents(config.valid_text, config.text_column)

    def example(self):
        return [b"".join(self.train_text[: 2**12])[: 2**12]]  # no document is empty

    def to_json(self, text):
        return [document.decode("latin-1") for document in text]

    def from_json(self, content):
        return [document.encode("latin-1") for document in content]

    def prepared_texts(self):
        first, held_out = self.prepared_example()
        return [first.encode()], held_out and read_documents(held_out)

    def learn_tokenizer(self):
        """A vocabulary that holds all characters of the text, or all bytes."""
        config = self.config
        if config.tokens == "bytes":
            return kt.tokenizers.SymbolTokenizer()
        text = b"".join(self.train_text)
        if config.tokens == "pieces":
            lines = text.decode(errors="replace").splitlines(keepends=True)
            return kt.tokenizers.train_byte_pairs(lines, config.vocabulary_size)
        try:
            return kt.tokenizers.SymbolTokenizer("".join(set(text.decode())))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Characters need a text in UTF-8; otherwise use --tokens bytes. Received: {error}."
            ) from None

    def columns(self, tokenizer):
        if self.config.packed:
            kept = [document for document in self.train_text if document.strip()]
            count = len(self.train_text)
            log_dropped(count - len(kept), count, "empty documents")
            ids = id_rows.checked_ids(kt.data.tokenize(kept, tokenizer), "text")
            return {"text": ids}, {}, {}
        ids = token_ids(tokenizer, self.train_text)
        return {"text": kt.data.IdRows(ids, [len(ids)])}, {}, {}

    def make_batches(self, tokenizer, plan_folder=None):
        config, ids = self.config, self.prepared.columns["text"]
        sizes = config.context, config.batch_size
        if config.packed:
            return self._packed(ids, plan_folder)
        if config.model == "transformer_xl":
            return kt.data.TextSegments(ids, *sizes, self.first_id)
        return kt.data.TextWindows(ids, *sizes, config.evaluate_every, config.seed, self.first_id)

    def _packed(self, ids, plan_folder=None):
        config = self.config
        sizes = config.context, config.batch_size, config.seed, config.batch_shapes()
        return kt.data.PackedDocuments(ids, *sizes, plan_folder)

    def validation(self, tokenizer, replicas=1):
        if not self.valid_text:
            return None
        config = self.config
        if config.packed:
            ids = kt.data.tokenize(self.valid_text, tokenizer)
            return self._packed(ids).epoch(replicas)
        # Outside training transformer_xl has no memory, so it reads a longer window.
        length = config.context + memory_length_of(config)
        ids = token_ids(tokenizer, self.valid_text) - self.first_id
        pad_id = pad_id_of(self.first_id)
        sizes = length, stride_of(config), config.batch_size
        return kt.data.sliding_windows(ids, *sizes, pad_id, replicas)

    def build(self, tokenizer, batches):
        config, vocabulary_size = self.config, tokenizer.vocabulary_size
        is_xl = config.model == "transformer_xl"
        rows = rows_of_a_replica(config.batch_size) if is_xl else 0
        if self.pretrained is not None:
            changes = {"batch_size": rows, **config.given(("memory_length",))} if is_xl else {}
            model = for_training(self.pretrained.model, config, **changes)
            if is_xl:
                model.forget()
            return model
        if is_xl:
            return kt.transformer_xl(vocabulary_size, rows, **config.dimensions())
        if config.model == "gpt2":
            given = {"vocabulary_size": vocabulary_size, "max_sequence_length": config.context}
            return kt.gpt2(**given, **config.dimensions())
        return kt.language_model(vocabulary_size, **config.dimensions())

    def objective(self, batches):
        pad_id = pad_id_of(self.first_id)
        loss = kt.TokenCrossentropy(self.config.label_smoothing, pad_id)
        return {"loss": loss, "metrics": [kt.TokenAccuracy(pad_id), kt.Perplexity(pad_id)]}

    def describe(self, batches):
        tokens = f"{batches.num_tokens:,} tokens of text"
        if not self.config.packed:
            return tokens
        return f"{tokens}, {batches.num_documents:,} documents; {plan_in_words(batches)}"

    def show_result(self, run):
        generator = kt.serving.Generator.load(run.path)
        text = b"".join(self.shown_text)
        shown = pictures.beginning(generator.tokenizer, text, self.config.context)
        pictures.save_pictures(run, generator.attention(shown))
        if self.valid_text:
            print(report(self.config, generator, self.valid_text))

    @staticmethod
    def sample(options):
        rules = options.given(RULES)
        generator = kt.serving.Generator.load(
            options.run, cache=options.cache, token_rules=rules, weights=options.weights
        )
        pieces = generator.stream(
            options.prompt,
            options.length,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
        )
        print(options.prompt, end="", flush=True)
        try:
            for text in pieces:
                print(text, end="", flush=True)
        finally:  # even if Ctrl-C ends the text
            print()

    @staticmethod
    def score(options):
        limit = kt.serving.RunFolder(options.run).settings()["context"] + 1
        bulk.answer_input(answering, options, limit)

    @staticmethod
    def evaluate(options):
        config = config_for_evaluation(runs.Run(options.run, LanguageModelConfig).config(), options)
        text = read_documents(options.text, options.text_column)
        generator = kt.serving.Generator.load(options.run, weights=options.weights)
        print(report(config, generator, text))

    @staticmethod
    def export(options):
        publish(
            kt.serving.Generator.load(options.run, options.dtype, weights=options.weights), options
        )


def answering(options):
    """A function from texts to their scores, and whether each was truncated."""
    devices.one_thread_each()
    generator = kt.serving.Generator.load(options.run, weights=options.weights)

    def answer(texts):
        found = generator.answer(texts, "score")
        pairs = zip(-found["nats"], found["length"], strict=True)
        return [f"{nats:.4f}\t{count}" for nats, count in pairs], found["truncated"]

    return answer


def pad_id_of(first_id):
    """The label of padding; where a model lacks control ids, 0 is a token like any other."""
    return -1 if first_id else 0


def token_ids(tokenizer, documents):
    """The ids of a whole text, given as the documents that it consists of."""
    return tokenizer.tokenize([b"".join(documents)]).flat_values.numpy()


def read_documents(path, column="text"):
    """The documents of a file of text or of a table, bytes."""
    return kt.data.DocumentStream(path, column).read_bytes()


def rows_of_a_replica(batch_size):
    """The number of rows of a batch that each replica remembers.

    Raises:
        ValueError: if the rows do not divide equally among the replicas.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    rows, rest = divmod(batch_size, replicas)
    if rest:
        raise ValueError(
            "--batch-size must be divisible by the number of replicas with --model "
            "transformer_xl, which remembers each row of a batch. "
            f"Received: {batch_size} for {replicas} replicas."
        )
    return rows


def memory_length_of(config):
    """The number of tokens that the model of a config remembers; 0 if it has no memory."""
    if config.model != "transformer_xl":
        return 0
    if config.memory_length is None:
        return kt.models.xl_model.SIZES[config.size]["memory_length"]
    return config.memory_length


def stride_of(config):
    return config.stride or max(1, config.context // 2)


def config_for_evaluation(config, options):
    """The config of a run with the context, stride and memory of `EvaluateOptions`."""
    given = options.given(("context", "stride", "memory_length"))
    if "stride" in given and config.model == "transformer_xl":
        raise ValueError("transformer_xl reads segments with a memory; it has no --stride.")
    if "stride" in given and config.packed:
        raise ValueError("A run trained with --packed reads whole documents; it has no --stride.")
    if config.model == "gpt2" and given.get("context", 0) > config.context:
        raise ValueError(
            f"--context must be at most {config.context}, the number of positions of this gpt2. "
            f"Received: {options.context}."
        )
    if "context" in given and "stride" not in given:
        given["stride"] = None  # the run's may be longer
    return config.replace(**given)


def report(config, generator, text):
    """A line with the model's score of a text: nats per token, perplexity, bits.

    Args:
        config: the config of the run, possibly with another context, stride or memory.
        generator: the `Generator` of the run.
        text: a list of documents, bytes; all but the first token is predicted.
    """
    model, first_id = generator.model, generators.first_id_of(generator.model, generator.tokenizer)
    ids = token_ids(generator.tokenizer, text) - first_id
    if len(ids) < 2:
        raise ValueError(
            "An evaluation text must have at least two tokens, of which the second is predicted. "
            f"Received: {len(ids)}."
        )
    if config.model == "transformer_xl":
        memory_length = memory_length_of(config)
        total, count = model.score(ids[None], config.context, memory_length)
        nats, how = total / count, f"segments of {config.context}, memory {memory_length}"
    elif config.packed:
        documents = kt.data.PackedDocuments(
            kt.data.tokenize(text, generator.tokenizer),
            config.context,
            max(1, 8192 // config.context),
        )
        model.compile("adam", kt.TokenCrossentropy())
        nats, count = model.evaluate(documents.epoch(), verbose=0), documents.num_labels
        how = f"{documents.num_documents:,} documents, in rows of {config.context}"
    else:
        batch_size, count = max(1, 8192 // config.context), len(ids) - 1
        pad_id = pad_id_of(first_id)
        windows = kt.data.sliding_windows(
            ids, config.context, stride_of(config), batch_size, pad_id
        )
        model.compile("adam", kt.TokenCrossentropy(pad_id=pad_id))
        nats = model.evaluate(windows, verbose=0)
        how = f"context {config.context}, stride {stride_of(config)}"
    bits = nats * count / math.log(2)
    whole = b"".join(text)
    characters = len(whole.decode(errors="replace"))
    return (
        f"{nats:.4f} nats a token, perplexity {math.exp(nats):.3f}; "
        f"{bits / characters:.4f} bits a character, {bits / len(whole):.4f} bits a byte; "
        f"{len(ids):,} tokens, {how}."
    )


SUBCOMMANDS = {
    "sample": SampleOptions,
    "score": ScoreOptions,
    "evaluate": EvaluateOptions,
    "export": ExportOptions,
}
main = Command(__doc__, LanguageModelExperiment, SUBCOMMANDS).main

if __name__ == "__main__":
    main()
