"""Trains a language model on a text; evaluates it, samples from it, exports it.

Train, or resume a run that was stopped:

    python -m train.language_model --text shakespeare.txt --hold-out 0.1 --run runs/shakespeare

Use the trained run (each has its own --help):

    python -m train.language_model sample --run runs/shakespeare --prompt "KING RICHARD:"
    python -m train.language_model evaluate --run runs/shakespeare --text other.txt --stride 16
    python -m train.language_model export --run runs/shakespeare --name shakespeare

--model transformer_xl carries a memory from one segment of the text to the next. --pretrained
tunes the model of another run, or of a released folder of GPT-2.
"""

import pathlib
from typing import Literal

from train.command import Command
from train.options import DecodingOptions, ExportOptions, RunOptions
from train.settings import required, setting, settings
from train.training_config import (
    LARGEST_SEED,
    TrainingConfig,
    check_left_to_pretrained,
    check_packed,
    check_pieces,
    fill_in,
)

SIZES = {
    "transformer": ("small", "medium"),
    "gpt2": ("124M", "355M", "774M", "1558M"),
    "transformer_xl": ("small", "enwik8", "wikitext103", "wikitext103_large"),
}
USUAL_MODEL = {
    "tokens": "characters", "model": "transformer", "size": "small", "context": 256,
    "sampling": "{}",
}  # fmt: skip
ALL_SIZES = "; ".join(f"{', '.join(sizes)} with --model {model}" for model, sizes in SIZES.items())


@settings
class LanguageModelConfig(TrainingConfig):
    """One experiment of `python -m train.language_model`."""

    earlier = {"sampling": USUAL_MODEL["sampling"]}

    text: str = setting("", "file of text to learn from, may be .gz; or a TFDS name")
    valid_text: str = setting("", "file of text for validation")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    hold_out: float = setting(
        0.0, "instead: share of the text, at its end, to hold out for validation", ge=0, lt=1
    )

    pretrained: str = setting(
        "", "tune the model of a finished run, or of a folder of GPT-2, of Hugging Face or KerasHub"
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

    def __post_init__(self):
        if self.pretrained:
            check_left_to_pretrained(self, ("activation", "pre_norm", "vocabulary_size"))
        else:
            fill_in(self, USUAL_MODEL)
        if None not in (self.model, self.size, self.tokens, self.context):
            self._check_model()
        super().__post_init__()
        check_pieces(self)
        check_packed(self)

    def _check_model(self):
        if self.size not in SIZES[self.model]:
            raise ValueError(
                f"--size must be one of {', '.join(SIZES[self.model])} with --model "
                f"{self.model}. Received: {self.size}."
            )
        if self.packed and self.model == "transformer_xl":
            raise ValueError(
                "--packed needs another --model: in transformer_xl, each row of a batch continues "
                "the one before. Received: --model transformer_xl."
            )
        if self.stride is not None and self.stride > self.context:
            raise ValueError(
                "--stride must be at most --context, so that no token is left out. "
                f"Received: {self.stride} and {self.context}."
            )
        if self.model != "transformer_xl" and self.memory_length is not None:
            raise ValueError(
                f"--memory-length needs --model transformer_xl. Received: --model {self.model}."
            )
        if self.model == "transformer_xl" and self.accumulation_steps > 1:
            raise ValueError(
                "--accumulation-steps must be 1 with --model transformer_xl, whose memory belongs "
                f"to a whole batch. Received: {self.accumulation_steps}."
            )

    def has_validation(self):
        return bool(self.valid_text or self.hold_out)

    def is_dataset(self):
        """Whether --text is the name of a data set, not that of a file."""
        return bool(self.text) and "." not in self.text and not pathlib.Path(self.text).exists()

    def needs(self):
        in_windows = self.model != "transformer_xl" and not self.packed
        return super().needs() | {
            "data_dir": (self.is_dataset(), "a TFDS name as --text"),
            "vocabulary_size": (self.tokens == "pieces", "--tokens pieces"),
            "evaluate_every": (in_windows, "windows: neither --model transformer_xl nor --packed"),
            "stride": (in_windows, "windows: neither --model transformer_xl nor --packed"),
            "shapes": (False, "batches of varying lengths"),
            "row_multiple": (self.packed, "--packed"),
        }

    def dimensions(self):
        return super().dimensions() | self.given(("memory_length",))


@settings
class SampleOptions(DecodingOptions):
    """Continues a prompt, to standard output, token by token.

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


@settings
class EvaluateOptions(RunOptions):
    """Evaluates a trained run on another text.

    {command} --run runs/shakespeare --text other.txt --stride 16
    """

    text: str = required("file of text; may be .gz")
    context: int | None = setting(None, "window in tokens; default: as trained", ge=2)
    stride: int | None = setting(
        None, "tokens that the window moves; default: half of --context", ge=1
    )
    memory_length: int | None = setting(
        None, "tokens that transformer_xl remembers; default: as trained", ge=0
    )


def experiment():
    from train.experiments.language_model import LanguageModel

    return LanguageModel


SUBCOMMANDS = {"sample": SampleOptions, "evaluate": EvaluateOptions, "export": ExportOptions}
main = Command("language_model", __doc__, LanguageModelConfig, experiment, SUBCOMMANDS).main

if __name__ == "__main__":
    from train.language_model import main  # configs/ must fill this class, not that of __main__

    main()
