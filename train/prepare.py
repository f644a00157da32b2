"""Prepares text of any size: cleans it, learns a tokenizer, writes token ids.

    keras-transformer prepare --source 'text/*.en.gz' --target 'text/*.de.gz' --output prepared

Train on the folder, on as many machines as you like, in constant memory:

    keras-transformer translation --prepared prepared --run runs/ende

Documents, for a language model or pretraining:

    keras-transformer prepare --text 'books/*.txt.gz' --kind language_model --output prepared_books

Interrupted, the same command goes on, and the folder holds the same bytes. Compare every byte of a
folder with its checksums:

    keras-transformer prepare --check prepared
"""

import os
import sys
import time
from typing import ClassVar, Literal

from .command import one_line_errors, without_start_up_notes
from .deferred import Deferred, kt
from .progress_bar import Shown
from .settings import Parser, Settings, flag_of, one_of, setting
from .training_config import LARGEST_SEED, LEAST_PIECES, TABLE

tokenizers = Deferred("keras_transformer.tokenizers")

STOPPED = "Stopped. The same command goes on from here."


class PrepareOptions(Settings):
    """What `keras-transformer prepare` reads and leaves out."""

    task: ClassVar[dict] = {
        "Give --output, the folder to write, or --check, a folder to check": ("output", "check")
    }
    kinds_of_text: ClassVar[dict] = one_of(
        "kind of text", "source target", "tsv", "table", "dataset", "text", "labelled"
    )
    exclusive: ClassVar[dict] = {
        **task,
        **kinds_of_text,
        "--max-ratio and --drop-copies need pairs": ("text labelled", "max_ratio drop_copies"),
    }
    requirements: ClassVar[dict] = {
        "--held-out must be 0, at least 2 documents, or a share below 1 with --kind pretraining, "
        "because random texts come from another document": (
            lambda options: options.kind != "pretraining" or options.held_out != 1
        ),
        "--held-out must be a whole number of pairs, or a share below 1": (
            lambda options: options.held_out < 1 or options.held_out % 1 == 0
        ),
    }

    source: str = setting(
        "", "file of source sentences, one per line, or a quoted pattern; may be .gz or .zst"
    )
    target: str = setting("", "file of their translations, or a quoted pattern")
    tsv: str = setting("", "instead: files of lines of source TAB target")
    table: str = setting("", f"instead: {TABLE}")
    source_column: str = setting("source", "column of source sentences in a table")
    target_column: str = setting("target", "column of their translations")
    dataset: str = setting("", "instead: translation data set of TensorFlow Datasets")
    split: str = setting("train", "split of the data set")
    source_language: str | None = setting(None, "language of the data set to translate from")
    target_language: str | None = setting(None, "language to translate to")
    text: str = setting(
        "",
        "instead: documents with empty lines between them, a file or a quoted pattern; a folder of "
        ".txt files, each a document; or a table",
    )
    labelled: str = setting(
        "",
        "instead: texts with labels: files of lines of text TAB label, a folder of folders named "
        "by labels, or a table",
    )
    text_column: str = setting("text", "column of texts in a table of --text or --labelled")
    label_column: str = setting("label", "column of labels")
    numbers: bool = setting(False, "labels are numbers, for a regression")
    kind: Literal["language_model", "documents", "pretraining"] = setting(
        "documents",
        "what documents are for: language_model for windows of the whole text, documents for "
        "--packed, pretraining for documents of sentences",
    )
    output: str = setting("", "folder to write")
    check: str = setting("", "instead: folder whose files are compared with their checksums")

    tokenizer: str = setting(
        "", "file of a tokenizer, such as tokenizer.model of a run; default: one is learned"
    )
    vocabulary_size: int = setting(32_000, "pieces to learn, for both languages", ge=LEAST_PIECES)
    sample_lines: int | None = setting(
        None,
        "rows to learn them from, drawn by their content; memory grows with them; default: 150,000 "
        "pairs or 20,000 documents",
        ge=1,
    )
    held_out: float = setting(
        0.0, "rows to hold out for validation: how many, or, below 1, about which share", ge=0
    )
    distinct: bool = setting(False, "leave out all but the first of equal rows")
    drop_copies: bool = setting(False, "leave out pairs whose sides are equal")
    max_ratio: float = setting(
        0.0,
        "leave out pairs with more than this times the words, split at spaces, on a side; 0: none",
        ge=0,
    )
    max_characters: int = setting(0, "leave out longer rows or sides; 0: none", ge=0)
    max_tokens: int = setting(0, "leave out rows with more tokens on a side; 0: none", ge=0)
    runner: Literal["local", "ray"] = setting(
        "local",
        "local: processes of this machine; ray: actors on the Ray cluster of RAY_ADDRESS, by "
        "default of this machine",
    )
    processes: int | None = setting(None, "processes or actors; default: one on each core", ge=1)
    seed: int = setting(1, "seed of what is drawn", ge=0, le=LARGEST_SEED)

    def model_post_init(self, context):
        super().model_post_init(context)
        self.check_given(self.task)
        for name, (has_effect, words) in self._needs().items():
            if not has_effect and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{flag_of(name)} has no effect {words}. Leave it out. "
                    f"Received: {flag_of(name)} {getattr(self, name)}."
                )
        if self.output:
            self.check_given(self.kinds_of_text)

    def _needs(self):
        """{name of a setting: (whether it has an effect, when it has none in words)}."""
        if self.check:
            return dict.fromkeys(
                type(self).model_fields.keys() - {"check"}, (False, "with --check")
            )
        has_dataset, has_table = bool(self.dataset), bool(self.table)
        has_texts = bool(self.text or self.labelled)
        return {
            "kind": (bool(self.text), "without --text"),
            "numbers": (bool(self.labelled), "without --labelled"),
            "label_column": (bool(self.labelled), "without --labelled"),
            "text_column": (has_texts, "without --text or --labelled"),
            "source_column": (has_table, "without --table"),
            "target_column": (has_table, "without --table"),
            "split": (has_dataset, "without --dataset"),
            "source_language": (has_dataset, "without --dataset"),
            "target_language": (has_dataset, "without --dataset"),
            "vocabulary_size": (not self.tokenizer, "with --tokenizer"),
            "sample_lines": (not self.tokenizer, "with --tokenizer"),
        }


def main(arguments=None):
    parser = Parser(prog="keras-transformer prepare", description=__doc__)
    given_in = parser.add_settings(PrepareOptions)
    with one_line_errors(STOPPED):
        options = PrepareOptions(**given_in(parser.parse_args(arguments)))
        if "keras" not in sys.modules:
            os.environ["KERAS_BACKEND"] = "numpy"  # so that nothing imports TensorFlow
        with without_start_up_notes():
            import keras_transformer.data  # noqa: F401
        if options.check:
            kt.data.Prepared(options.check).check()
            print(f"All files of {options.check} are as they were written.")
        else:
            _prepare(options)


def _prepare(options):
    if options.text:
        stream = kt.data.DocumentStream(options.text, options.text_column, options.kind)
    elif options.labelled:
        path, columns = options.labelled, (options.text_column, options.label_column)
        is_table, is_folder = kt.data.tables.is_table(path), os.path.isdir(path)
        format = "table" if is_table else "folder" if is_folder else "tsv"
        names = [] if options.numbers else None
        stream = kt.data.LabelledStream(**{format: path}, columns=columns, names=names)
    else:
        columns = options.source_column, options.target_column
        languages = options.source_language, options.target_language
        stream = kt.data.PairStream(
            options.source,
            options.target,
            options.tsv,
            options.table,
            languages if options.dataset else columns,
            options.dataset,
            options.split,
        )
    names = (
        "vocabulary_size", "sample_lines", "distinct", "max_ratio", "max_characters", "max_tokens",
        "drop_copies", "runner", "processes", "seed",
    )  # fmt: skip
    settings = {name: getattr(options, name) for name in names}
    share_or_count = options.held_out
    settings["sample_lines"] = options.sample_lines or stream.sample
    settings["held_out"] = share_or_count if share_or_count < 1 else int(share_or_count)
    tokenizer = tokenizers.load_tokenizer(options.tokenizer) if options.tokenizer else None
    rows = "documents" if options.text else "texts" if options.labelled else "pairs"
    start = time.perf_counter()
    with Shown(stream.num_bytes, rows) as shown:
        folder = kt.data.prepare(options.output, stream, tokenizer, **settings, progress=shown)
    counts = dict(folder.manifest["counts"])
    print(f"{options.output} holds {counts.pop('rows'):,} {rows}:")
    if count := folder.manifest.get("sample"):
        is_all = "all " * (count < settings["sample_lines"])
        print(f"  {folder.vocabulary_size:,} pieces learned from {is_all}{count:,} {rows}")
    for side, ids in folder.columns.items():
        print(f"  {ids.num_ids:,} {side} tokens of {folder.vocabulary_size:,} pieces")
    for reason, count in counts.items():
        if count:
            of = "sentences" if options.kind == "pretraining" and reason == "tokens" else rows
            print(f"  {count:,} {of} left out: {reason}")
    size = sum(folder.manifest["files"].values())
    print(f"  {size / 1e6:,.0f} MB on disk, {time.perf_counter() - start:,.0f} s{_peak()}")


def _peak():
    """The most memory that this process has had, in words; nothing on Windows."""
    try:
        import resource
    except ImportError:
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    return f", {peak / 1e9:.2f} GB of memory at most"


if __name__ == "__main__":
    main()
