"""Converts other people's models to runs, and runs to other formats.

Convert a released model to a run, to translate, evaluate, tune and export (nothing is downloaded):

    keras-transformer convert --from opus-mt-en-de --run runs/opus

Write a trained run in another format; a fresh process checks it with the other library:

    keras-transformer convert --run runs/mine --to ctranslate2 --output converted/mine
"""

import sys

from .classification import ClassificationConfig, served_model
from .command import one_line_errors, without_start_up_notes
from .language_model import LanguageModelConfig
from .pretraining import PretrainingConfig
from .settings import Parser, import_modules
from .translation import TranslationConfig

FORMATS = ("ctranslate2", "huggingface", "keras_hub", "litert", "onnx", "openvino")
CONFIGS = {
    config_class.command: config_class
    for config_class in (
        TranslationConfig,
        LanguageModelConfig,
        ClassificationConfig,
        PretrainingConfig,
    )
}
# A setting that only one kind of run has.
SIGNS = {"num_beams": "translation", "masking_rate": "pretraining", "pooling": "classification"}
TO_RUN, TO_FORMAT = ("source", "run"), ("run", "to", "output")


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="keras-transformer convert", description=__doc__)
    parser.add_argument(
        "--from", dest="source", metavar="FOLDER",
        help="folder to read: config.json, *.safetensors and tokenizer files; an OpenNMT-tf run; "
        "or a KerasHub preset",
    )  # fmt: skip
    parser.add_argument("--run", help="folder of the run, created by --from and read by --to")
    parser.add_argument(
        "--to", metavar="FORMAT", choices=FORMATS,
        help=f"format in which to write the run: {', '.join(FORMATS)}; the searches of ctranslate2 "
        "and huggingface divide scores by a power of the length and may translate otherwise",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FOLDER", help="folder to write to, with --to")
    parser.add_argument(
        "--dtype", help="dtype of the weights that --to writes, e.g. int8; default: as trained"
    )
    parser.add_argument(
        "--weights", choices=("averaged", "best"),
        help="weights that --to writes: the mean of the newest checkpoints, or those with the best "
        "score during training",
    )  # fmt: skip
    parser.add_imports()
    flags = parser.parse_args(arguments)
    flags_set = {name for name in (*TO_RUN, *TO_FORMAT) if getattr(flags, name) is not None}
    if flags_set not in (set(TO_RUN), set(TO_FORMAT)):
        parser.error("give either --from and --run, or --run, --to and --output")
    if flags.dtype is not None and flags.to is None:
        parser.error("--dtype needs --to: --from keeps the dtype of the weights")
    if flags.weights is not None and flags.to is None:
        parser.error("--weights needs --to")
    with one_line_errors("Stopped. Nothing was written."):
        with without_start_up_notes():
            from keras_transformer import convert
            from keras_transformer.files import check_free
        import_modules(flags.imports)
        if flags.source is not None:
            check_free(flags.run, "Choose another --run, or delete it.")
            save_run(convert.read(flags.source), flags.run)
            print(f"{flags.run} holds the model from {flags.source}.")
        else:
            check_free(flags.output, "Choose another --output, or delete it.")
            options = {} if flags.dtype is None else {"dtype": flags.dtype}
            model = text_model_of(flags.run, flags.weights or "averaged")
            path = convert.write(model, flags.to, flags.output, **options)
            print(f"Wrote {path}.")


def save_run(converted, path):
    """Saves a converted model as a run, which appears once it is complete.

    Raises:
        ValueError: if no command works with such a model.
    """
    from keras_transformer.files import atomic_path

    from .run import Run

    config = CONFIGS[converted.command](**converted.config)
    with atomic_path(path) as draft:
        draft.mkdir()
        run = Run(draft, type(config))
        run.save_config(config, converted.target_tokenizer is not None)
        converted.tokenizer.save(run.tokenizer_file)
        if converted.target_tokenizer is not None:
            converted.target_tokenizer.save(run.target_tokenizer_file)
        run.save_checksums()
        if converted.command == "classification":
            run.save_labels(converted.labels, converted.multi_label)
        converted.model.save(run.model_file)


def text_model_of(run, weights="averaged"):
    """The `Translator`, `Generator` or `Classifier` of a trained run.

    Of pretraining, the BERT as `Converted`.

    Models trained in half precision compute in float32, as they do in the other libraries.
    """
    from keras_transformer import convert, serving

    from .run import Run

    folder = serving.RunFolder(run)
    settings = folder.settings()
    kind = next((SIGNS[name] for name in SIGNS if name in settings), "language_model")
    Run(run, CONFIGS[kind]).config()  # raises for wrong ones
    dtype = None if settings.get("dtype", "float32") == "float32" else "float32"
    if kind == "translation":
        return serving.Translator.load(run, dtype=dtype, weights=weights)
    if kind == "pretraining":
        return convert.Converted("pretraining", folder.model(dtype, weights), folder.tokenizer())
    if "labels" in settings or folder.labels_file.exists():
        return served_model(run, dtype, weights)
    return serving.Generator.load(run, dtype, weights=weights)


if __name__ == "__main__":
    main()
