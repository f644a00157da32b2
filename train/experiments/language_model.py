"""Language models: one long text, characters or bytes or pieces, nats per token."""

import dataclasses
import math
import re

import tensorflow as tf

from keras_transformer.data import (
    PackedDocuments,
    TextSegments,
    TextWindows,
    corpora,
    sliding_windows,
    tokenize,
)
from keras_transformer.models import decoder_only, gpt2_model, xl_model
from keras_transformer.serving import Generator
from keras_transformer.serving.generator import first_id_of
from keras_transformer.serving.settings import read_sampling
from keras_transformer.tokenizers import SymbolTokenizer, train_byte_pairs
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy
from train.experiment import Experiment, log_dropped, plan_in_words, publish
from train.experiments.pretrained import check_packed, completed, for_training, pretrained_of
from train.language_model import USUAL_MODEL, LanguageModelConfig
from train.pictures import beginning, save_pictures
from train.run import Run
from train.training_config import fill_in

SIZES = {
    "transformer": decoder_only.SIZES,
    "gpt2": gpt2_model.SIZES,
    "transformer_xl": xl_model.SIZES,
}

RULES = ("no_repeat_ngram_size", "repetition_penalty")  # which have flags
PRETRAINED_CLASSES = (decoder_only.LanguageModel, xl_model.TransformerXLModel)
WHAT_IS_PRETRAINED = "a finished run of train.language_model, or a folder of GPT-2"


class LanguageModel(Experiment):
    """Learns to continue a text, bytes, and is measured in nats per token."""

    def __init__(self, config, texts=None, run=None):
        self.pretrained = pretrained_of(config, PRETRAINED_CLASSES, WHAT_IS_PRETRAINED, run)
        self.first_id = 0
        super().__init__(self.completed(config, pretrained=self.pretrained), texts, run)
        if self.pretrained is not None:
            self.first_id = first_id_of(self.pretrained.model, self.pretrained.tokenizer)
            check_packed(self.config, self.pretrained)
            self._check_context()

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        fixed = ("model", "tokens", "size")
        names = (*fixed, "context", "memory_length", "sampling")
        config = completed(config, names, fixed, before, pretrained)
        fill_in(config, USUAL_MODEL)
        read_sampling(config.sampling, config.context)  # raises for a wrong one
        return dataclasses.replace(config)  # which checks them together

    def _check_context(self):
        config, model = self.config, self.pretrained.model
        if config.model != "transformer_xl":
            longest = getattr(model.positions, "max_sequence_length", config.context)
            if config.context > longest:
                raise ValueError(
                    f"--context must be at most {longest}, the positions that the model of "
                    f"--pretrained has. Received: {config.context}."
                )

    def sizes(self):
        return SIZES[self.config.model]

    def read_texts(self):
        config = self.config
        if not config.text:
            raise ValueError("Give a training text: --text, a file or a TFDS name.")
        if config.valid_text and config.hold_out:
            raise ValueError(
                "Give one validation text: --valid-text or --hold-out. "
                f"Received: {config.valid_text!r} and {config.hold_out}."
            )
        if config.is_dataset():
            text = corpora.read_text_dataset(config.text, "train", config.data_dir or None)
        else:
            text = corpora.read_file(config.text)
        if config.valid_text:
            return text, corpora.read_file(config.valid_text)
        cut = len(text) - int(len(text) * config.hold_out)
        while cut < len(text) and text[cut] & 0xC0 == 0x80:  # inside a character of UTF-8
            cut += 1
        if config.hold_out and cut == len(text):
            raise ValueError(
                "--hold-out must hold out at least one character. "
                f"Received: --hold-out {config.hold_out} of a text of {len(text)} bytes."
            )
        return text[:cut], text[cut:]

    def make_tokenizer(self):
        """A vocabulary that holds all characters of the text, or all bytes."""
        config, text = self.config, self.train_text
        if self.pretrained is not None:
            return self.pretrained.tokenizer
        if config.tokens == "bytes":
            return SymbolTokenizer()
        if config.tokens == "pieces":
            lines = text.decode(errors="replace").splitlines(keepends=True)
            return train_byte_pairs(lines, config.vocabulary_size)
        try:
            return SymbolTokenizer("".join(set(text.decode())))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Characters need a text in UTF-8; otherwise use --tokens bytes. Received: {error}."
            ) from None

    def make_batches(self, tokenizer):
        batches, sizes = self._batches()
        if self.config.packed:
            documents = documents_of(self.train_text)
            kept = [document for document in documents if document.strip()]
            log_dropped(len(documents) - len(kept), len(documents), "empty documents")
            return batches(tokenize(kept, tokenizer), *sizes)
        return batches(token_ids(tokenizer, self.train_text) - self.first_id, *sizes)

    def load_batches(self, path, tokenizer):
        batches, sizes = self._batches()
        return batches.load(path, *sizes)

    def validation(self, tokenizer):
        if not self.valid_text:
            return None
        config = self.config
        if config.packed:
            batches, sizes = self._batches()
            return batches(document_ids(tokenizer, self.valid_text), *sizes).epoch()
        # Outside training transformer_xl has no memory, so it reads a longer window.
        length = config.context + memory_length_of(config)
        ids = token_ids(tokenizer, self.valid_text) - self.first_id
        pad_id = pad_id_of(self.first_id)
        return sliding_windows(ids, length, stride_of(config), config.batch_size, pad_id)

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
            return xl_model.transformer_xl(vocabulary_size, rows, **config.dimensions())
        given = {"packed": True} if config.packed else {}
        if config.model == "gpt2":
            given |= {"vocabulary_size": vocabulary_size, "max_sequence_length": config.context}
            return gpt2_model.gpt2(**given, **config.dimensions())
        return decoder_only.language_model(vocabulary_size, **given, **config.dimensions())

    def objective(self, batches):
        pad_id = pad_id_of(self.first_id)
        loss = TokenCrossentropy(self.config.label_smoothing, pad_id)
        return {"loss": loss, "metrics": [TokenAccuracy(pad_id), Perplexity(pad_id)]}

    def describe(self, batches):
        tokens = f"{batches.num_tokens:,} tokens of text"
        if not self.config.packed:
            return tokens
        return f"{tokens}, {batches.num_documents:,} documents; {plan_in_words(batches)}"

    def show_result(self, run):
        generator = Generator.load(run.path)
        text = self.valid_text or self.train_text
        shown = beginning(generator.tokenizer, text, self.config.context)
        save_pictures(run, generator.attention(shown))
        if self.valid_text:
            print(report(self.config, generator, self.valid_text))

    @staticmethod
    def sample(options):
        given = {name: getattr(options, name) for name in RULES}
        rules = {name: value for name, value in given.items() if value is not None}
        generator = Generator.load(options.run, cache=options.cache, token_rules=rules)
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
    def evaluate(options):
        config = evaluated(Run(options.run, LanguageModelConfig).config(), options)
        text = corpora.read_file(options.text)
        print(report(config, Generator.load(options.run), text))

    @staticmethod
    def export(options):
        publish(Generator.load(options.run, options.dtype), options)

    def _batches(self):
        """The class of the batches, and the arguments of their sizes."""
        config = self.config
        if config.model == "transformer_xl":
            return TextSegments, (config.context, config.batch_size)
        if config.packed:
            sizes = config.context, config.batch_size, config.seed, config.row_multiple or 1
            return PackedDocuments, sizes
        return TextWindows, (config.context, config.batch_size, config.evaluate_every, config.seed)


def pad_id_of(first_id):
    """The label of padding; where a model lacks control ids, 0 is a token as any other."""
    return -1 if first_id else 0


def token_ids(tokenizer, text):
    return tokenizer.tokenize([text]).flat_values.numpy()


def document_ids(tokenizer, text):
    return tokenize(documents_of(text), tokenizer)


def documents_of(text):
    """The documents of a text, bytes, each with the empty lines after it."""
    ends = [match.end() for match in re.finditer(rb"(?:\r?\n){2,}", text)]
    cuts = zip([0, *ends], [*ends, len(text)], strict=True)
    return [text[start:end] for start, end in cuts if start < end]


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
        return xl_model.SIZES[config.size]["memory_length"]
    return config.memory_length


def stride_of(config):
    return config.stride or max(1, config.context // 2)


def evaluated(config, options):
    """The config of a run with the context, stride and memory of `EvaluateOptions`."""
    names = ("context", "stride", "memory_length")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
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
    return dataclasses.replace(config, **given)


def report(config, generator, text):
    """A line with the model's score of a text: nats per token, perplexity, bits.

    Args:
        config: the config of the run, possibly with another context, stride or memory.
        generator: the `Generator` of the run.
        text: bytes; all of it except the first token is predicted.
    """
    model, first_id = generator.model, first_id_of(generator.model, generator.tokenizer)
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
        documents = PackedDocuments(
            document_ids(generator.tokenizer, text),
            config.context,
            max(1, 8192 // config.context),
        )
        model.compile("adam", TokenCrossentropy())
        nats, count = model.evaluate(documents.epoch(), verbose=0), documents.num_labels
        how = f"{documents.num_documents:,} documents, in rows of {config.context}"
    else:
        batch_size, count = max(1, 8192 // config.context), len(ids) - 1
        pad_id = pad_id_of(first_id)
        windows = sliding_windows(ids, config.context, stride_of(config), batch_size, pad_id)
        model.compile("adam", TokenCrossentropy(pad_id=pad_id))
        nats = model.evaluate(windows, verbose=0)
        how = f"context {config.context}, stride {stride_of(config)}"
    bits = nats * count / math.log(2)
    characters = len(text.decode(errors="replace"))
    return (
        f"{nats:.4f} nats a token, perplexity {math.exp(nats):.3f}; "
        f"{bits / characters:.4f} bits a character, {bits / len(text):.4f} bits a byte; "
        f"{len(ids):,} tokens, {how}."
    )
