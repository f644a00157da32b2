"""Answers files line by line in several processes, which each hold the model.

A file of answers appears whole or not at all. Interrupted, the same command leaves out the files
that are there; a process that dies is replaced, and its lines are answered again.
"""

import concurrent.futures
import contextlib
import gzip
import importlib
import itertools
import multiprocessing
import os
import pathlib
import signal
import sys
from collections import deque

from . import settings
from .command import start_tensorflow
from .deferred import Deferred
from .gpus import cores, gpu_count
from .lines import answer_lines, first_of, report_cut_texts
from .progress_bar import Shown

corpora = Deferred("keras_transformer.data.corpora")
files = Deferred("keras_transformer.files")
pair_streams = Deferred("keras_transformer.data.pair_streams")

BLOCK = 1024  # lines answered together
MOST_DEATHS = 3  # of processes, before any further block is answered

_answers = {}  # of a worker: the function that answers, and what keeps it alive


def answer_input(answering, options, max_length, how="truncated at the end"):
    """Answers each line of the files of `options.input` in a file of the same name.

    Without such files, those of standard input; see `answer_lines`.

    Args:
        answering: function of a module, with this name, that makes from the options a context of a
            function from texts to their answers and whether each was truncated. Each of several
            processes calls it.
        options: `FilesOptions`.
        max_length: longest text in tokens that is not truncated.
        how: how texts are truncated, in words.

    Raises:
        OSError: if a file cannot be read or written.
        ValueError: if there is no file, two have one name, or they would be overwritten.
        RuntimeError: if processes die again and again.
    """
    with answering(options) as answer:
        if options.input:
            # Of a program the module is named __main__, which others cannot import.
            name = sys.modules[answering.__module__].__spec__.name
            _answer_files(answer, name, options, max_length, how)
        else:
            answer_lines(answer, max_length, how)


def _answer_files(answer, name, options, max_length, how):
    pairs = _pairs(options.input, options.output)
    waiting = [pair for pair in pairs if not pair[1].exists()]
    if there := len(pairs) - len(waiting):
        print(f"{there:,} of {len(pairs):,} files are answered already: left out.", file=sys.stderr)
    total = sum(corpora.bytes_of_text(source) for source, _ in waiting)
    count, whole, cut, unreadable = 0, 0, [], []
    processes = options.processes or max(1, gpu_count())
    try:
        with Shown(total, "lines") as shown, contextlib.ExitStack() as stack:
            if processes == 1:
                answered = _alone(answer, _blocks(waiting))
            else:
                pool = stack.enter_context(_Pool(name, options, processes))
                answered = pool.answered(_blocks(waiting))
            before = 0
            for source, target in waiting:
                size, position = corpora.bytes_of_text(source), 0
                with files.atomic_path(target) as draft, _written(draft, target) as file:
                    for block, answers, is_cut in answered:
                        if block.is_end:
                            break
                        rows = (text.replace("\n", " ").encode() + b"\n" for text in answers)
                        file.write(b"".join(rows))
                        places = range(block.first, block.first + len(block.texts))
                        named = [f"{source.name}:{place:,}" for place in places]
                        cut += list(itertools.compress(named, is_cut))
                        unreadable += [f"{source.name}:{place:,}" for place in block.unreadable]
                        count += len(answers)
                        position += block.num_bytes
                        shown("answering", before + min(position, size), count)
                before, whole = before + size, whole + 1
    except KeyboardInterrupt:
        print(f"Stopped. {whole:,} of {len(waiting):,} files are whole.", file=sys.stderr)
        raise
    finally:
        report_cut_texts(cut, count, max_length, how)
        if unreadable:
            print(
                f"{len(unreadable):,} of {count:,} lines are not UTF-8; their bytes were read as "
                f"U+FFFD: lines {first_of(unreadable)}.",
                file=sys.stderr,
            )
    print(f"{options.output} holds the answers to {count:,} lines of {whole:,} files.")


def _pairs(pattern, output):
    """The input files and where their answers go."""
    sources = [path for path in pair_streams.files_of(pattern) if path.is_file()]
    if not sources:
        raise FileNotFoundError(
            "--input must be a file or a quoted pattern of files. "
            f"Received: {pattern}, which is a folder."
        )
    output = pathlib.Path(output)
    names = [source.name for source in sources]
    if twice := {name for name in names if names.count(name) > 1}:
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


class _Block:
    """Some lines of one file, one after another; the last block of a file has none."""

    def __init__(self, path, first, lines):
        self.path, self.first, self.is_end = path, first, not lines
        self.num_bytes = sum(map(len, lines))
        self.texts, self.unreadable = [], []
        for number, line in enumerate(lines, start=first):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                self.texts.append(line.decode())
            except UnicodeDecodeError:
                self.unreadable.append(number)
                self.texts.append(line.decode(errors="replace"))


def _blocks(pairs):
    for source, _ in pairs:
        with corpora.opened(source) as file:
            first = 1
            while lines := list(itertools.islice(file, BLOCK)):
                yield _Block(source, first, lines)
                first += len(lines)
        yield _Block(source, first, [])


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


def _alone(answer, blocks):
    """What `_Pool.answered` yields, of this process."""
    for block in blocks:
        yield block, *(([], []) if block.is_end else answer(block.texts))


class _Pool:
    """Processes that answer blocks; all are begun again when one of them dies."""

    def __init__(self, name, options, processes):
        self._processes = processes
        self._arguments = (settings.imported, name, options, processes)
        self._executor = None

    def __enter__(self):
        self._begin()
        return self

    def __exit__(self, *_):
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in list((self._executor._processes or {}).values()):
            process.terminate()

    def _begin(self):
        context = multiprocessing.get_context("spawn")
        numbers = context.Value("i", 0)
        self._executor = concurrent.futures.ProcessPoolExecutor(
            self._processes, context, _start, (numbers, *self._arguments)
        )

    def answered(self, blocks):
        """Yields each block with its answers and whether each text was truncated, in order."""
        waiting, deaths = deque(), 0  # pairs of a block and its future; None for an end
        while True:
            while len(waiting) < 2 * self._processes + 1 and (block := next(blocks, None)):
                waiting.append([block, None if block.is_end else self._submit(block)])
            if not waiting:
                return
            block, future = waiting[0]
            try:
                answers, is_cut = ([], []) if future is None else future.result()
            except concurrent.futures.process.BrokenProcessPool:
                deaths += 1
                if deaths > MOST_DEATHS:
                    last = block.first + len(block.texts) - 1
                    raise RuntimeError(
                        f"A process died {deaths} times while it answered {block.path}, lines "
                        f"{block.first:,} to {last:,}, perhaps for lack of memory. Give fewer "
                        "--processes, or leave these lines out."
                    ) from None
                print("A process died; its lines are answered again.", file=sys.stderr)
                self._begin()
                for each in waiting:
                    each[1] = each[1] and self._submit(each[0])
                continue
            deaths = 0
            waiting.popleft()
            yield block, answers, is_cut

    def _submit(self, block):
        try:
            return self._executor.submit(_answer, block.texts)
        except concurrent.futures.process.BrokenProcessPool as error:
            future = concurrent.futures.Future()
            future.set_exception(error)
            return future


def _start(numbers, imports, module, options, processes):
    """Loads the model in a worker, which has its share of the processors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends them
    with numbers.get_lock():
        number, numbers.value = numbers.value, numbers.value + 1
    if gpu_count() > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpu_count())
    else:
        threads = max(1, cores() // processes)
        os.environ["OMP_NUM_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads)
    start_tensorflow("translate")
    settings.import_modules(imports)
    answering = importlib.import_module(module).answering(options)
    _answers["alive"] = answering
    _answers["function"] = answering.__enter__()


def _answer(texts):
    answers, is_cut = _answers["function"](texts)
    return list(answers), list(map(bool, is_cut))
