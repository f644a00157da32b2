"""Answers files line by line, in this process or in several workers, which each hold the model.

A file of answers appears whole or not at all. Interrupted, the same command leaves out the files
that are there; a worker that dies is replaced, and its lines are answered again.
"""

import codecs
import collections
import contextlib
import gzip
import importlib
import itertools
import math
import os
import pathlib
import sys

from . import settings
from .command import start_tensorflow
from .deferred import Deferred, tf
from .gpus import cores, gpu_count, visible_gpus
from .lines import FirstPlaces, answer_lines, first_of, report_cut_texts
from .progress_bar import Shown

files = Deferred("keras_transformer.files")
text_files = Deferred("keras_transformer.data.text_files")
worker_pool = Deferred("keras_transformer.worker_pool")

BLOCK = 1024  # lines answered together


def answer_input(answering, options, max_length, how="truncated at the end"):
    """Answers each line of the files of `options.input` in a file of the same name.

    Without such files, those of standard input; see `answer_lines`.

    Args:
        answering: function of a module, with this name, that makes from the options a function
            from texts to their answers and whether each was truncated. Each worker calls it.
        options: `FilesOptions`.
        max_length: longest text in tokens that is not truncated.
        how: how texts are truncated, in words.

    Raises:
        OSError: if there is no file, one cannot be written, or a cluster cannot be reached.
        ValueError: if two files have one name, they would be overwritten, or workers die again and
            again; after all others are answered, if files cannot be read.
    """
    if options.input:
        _answer_files(answering, options, max_length, how)
        return
    answer_lines(answering(options), max_length, how)


def _answer_files(answering, options, max_length, how):
    pairs = _pairs(options.input, options.output)
    waiting = [pair for pair in pairs if not pair[1].exists()]
    if there := len(pairs) - len(waiting):
        print(f"{there:,} of {len(pairs):,} files are answered already: left out.", file=sys.stderr)
    sizes = [text_files.bytes_of_text(source) for source, _ in waiting]
    lines, written, whole, unread = 0, 0, 0, []
    cut, unreadable = FirstPlaces(), FirstPlaces()
    try:
        with Shown(sum(sizes), "lines") as shown, contextlib.ExitStack() as stack:
            if waiting:
                answered = stack.enter_context(_answered(answering, options, _blocks(waiting)))
            befores = itertools.accumulate(sizes, initial=0)
            for (_, target), size, before in zip(waiting, sizes, befores, strict=False):
                position = 0
                try:
                    with files.atomic_path(target) as draft, _written(draft, target) as file:
                        for block, (answers, is_cut) in answered:
                            if block.is_end:
                                break
                            rows = (text.replace("\n", " ").encode() + b"\n" for text in answers)
                            file.write(b"".join(rows))
                            cut.add(itertools.compress(block.places, is_cut))
                            unreadable.add(block.unreadable)
                            lines += len(answers)
                            position += block.num_bytes
                            shown("answering", before + min(position, size), lines)
                        if block.error is not None:
                            raise _Unread
                except _Unread:
                    unread.append(str(block.error))
                else:
                    whole, written = whole + 1, written + block.last
    except KeyboardInterrupt:
        print(f"Stopped. {whole:,} of {len(waiting):,} files are whole.", file=sys.stderr)
        raise
    finally:
        report_cut_texts(cut, lines, max_length, how)
        if unreadable:
            print(
                f"{len(unreadable):,} of {lines:,} lines are not UTF-8; their bytes were read as "
                f"U+FFFD: lines {first_of(unreadable)}.",
                file=sys.stderr,
            )
    print(f"{options.output} holds the answers to {written:,} lines of {whole:,} files.")
    if unread:
        raise ValueError("\n".join(unread))


@contextlib.contextmanager
def _answered(answering, options, blocks):
    """Yields an iterator of each block with its answers and whether each text was truncated."""
    with contextlib.ExitStack() as stack:
        if options.runner == "ray":
            ray = stack.enter_context(worker_pool.ray_cluster(options.processes))
            machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            machines = [each for each in machines if each.get("CPU")] or [{}]
            gpus = int(sum(each.get("GPU", 0) for each in machines))
            count = options.processes or gpus or len(machines)
            sharing = math.ceil(count / len(machines))
            pool = worker_pool.ray_pool(ray, count, num_gpus=min(gpus, 1))
        else:
            gpus = visible_gpus(gpu_count(), os.environ)
            sharing = count = options.processes or max(1, len(gpus))
            environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}]
            pool = worker_pool.local_pool(count, environments)
        answerer = _Answerer(answering, options, sharing)
        if options.runner == "local" and count == 1:  # in this process
            answerer.load()
        pairs = ((block, (block.texts,)) for block in blocks)
        yield stack.enter_context(pool).map(answerer, pairs)


class _Answerer:
    """Answers texts with a model; one that is unpickled in a worker has loaded it.

    Args:
        answering: as for `answer_input`.
        options: its options.
        sharing: number of workers that share the cores of a machine.
    """

    def __init__(self, answering, options, sharing):
        self._answering, self._options, self._sharing = answering, options, sharing

    def load(self):
        self._function = self._answering(self._options)
        return self

    def __call__(self, texts):
        """The answers to texts, and whether each text was truncated."""
        if not texts:
            return [], []
        answers, is_cut = self._function(texts)
        return list(answers), list(map(bool, is_cut))

    def __reduce__(self):
        # Of a program the module is named __main__, which others cannot import.
        module = sys.modules[self._answering.__module__].__spec__.name
        options = type(self._options).__name__, self._options.model_dump()
        return _loaded, (module, *options, settings.imported, os.getcwd(), self._sharing)


def _loaded(module, options_class, options, imports, folder, sharing):
    """An `_Answerer` in a worker."""
    os.chdir(folder)
    threads = str(max(1, cores() // sharing))
    os.environ["OMP_NUM_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"] = threads
    os.environ["TTY_COMPATIBLE"] = "0"  # the parent draws the progress bar
    start_tensorflow("translate")
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    settings.import_modules(imports)
    module = importlib.import_module(module)
    options = getattr(module, options_class)(**options)
    return _Answerer(module.answering, options, sharing).load()


def _pairs(pattern, output):
    """The input files and where their answers go."""
    sources = [path for path in text_files.files_of(pattern) if path.is_file()]
    if not sources:
        raise FileNotFoundError(
            "--input must be a file or a quoted pattern of files. "
            f"Received: {pattern}, which is a folder."
        )
    output = pathlib.Path(output)
    counts = collections.Counter(source.name for source in sources)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(
            "--input must be files of different names, because answers have the name of their file."
            f" Received: {sorted(twice)[0]} in several folders."
        )
    if any(source.parent.resolve() == output.resolve() for source in sources):
        raise ValueError(
            f"--output must be another folder than that of --input. Received: {output} for both."
        )
    files.check_writable(output)
    return [(source, output / source.name) for source in sources]


class _Unread(Exception):
    """A file could not be read to its end."""


class _Block:
    """Some lines of one file, one after another; the last block of a file has none.

    It may have the error for which it is the last.
    """

    def __init__(self, path, first, lines, error=None):
        self.is_end, self.error, self._path = not lines, error, path
        self.num_bytes = sum(map(len, lines))
        self.first, self.last = first, first + len(lines) - 1
        self.places = [f"{path.name}:{number:,}" for number in range(first, first + len(lines))]
        self.texts, self.unreadable = [], []
        for place, line in zip(self.places, lines, strict=True):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                self.texts.append(line.decode())
            except UnicodeDecodeError:
                self.unreadable.append(place)
                self.texts.append(line.decode(errors="replace"))

    def __str__(self):
        return f"{self._path}, lines {self.first:,} to {self.last:,}"


def _blocks(pairs):
    for source, _ in pairs:
        first, error = 1, None
        try:
            with text_files.opened(source) as file:
                while lines := list(itertools.islice(file, BLOCK)):
                    if first == 1:
                        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                    yield _Block(source, first, lines)
                    first += len(lines)
        except (OSError, ValueError, ImportError) as damage:
            error = damage  # in its place, when the files before it are whole
        yield _Block(source, first, [], error)


@contextlib.contextmanager
def _written(draft, target):
    """A file of bytes to write, packed as the name of the target says."""
    if target.suffix == ".gz":
        with open(draft, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            yield file
    elif target.suffix == ".zst":
        import zstandard

        with zstandard.open(draft, "wb") as file:
            yield file
    else:
        with open(draft, "wb") as file:
            yield file
