"""Workers that each hold a model and answer blocks of lines: processes, or actors of Ray."""

import contextlib
import dataclasses
import importlib
import itertools
import math
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections import deque

from . import settings
from .command import start_tensorflow
from .deferred import tf
from .gpus import cores, gpu_count, visible_gpus
from .launch import on_ray

MOST_DEATHS = 3  # of workers, before any further block is answered
SECONDS_TO_END = 5  # after which a process is killed


class Died(Exception):
    """A worker ended before it answered."""


@contextlib.contextmanager
def processes(answering, options, count):
    """A `Pool` of processes on this machine, which share its cores and have one GPU each."""
    gpus = visible_gpus(gpu_count(), os.environ) or [None]
    answerer = Answerer.of(answering, options, count)

    def begin(number):
        return Process(dataclasses.replace(answerer, gpu=gpus[number % len(gpus)]))

    with Pool(begin, count) as pool:
        yield pool


@contextlib.contextmanager
def actors(answering, options, count):
    """A `Pool` of actors on Ray's cluster, with a GPU each if it has any.

    Args:
        answering: as for `bulk.answer_input`.
        options: its options.
        count: number of actors; None for one for each GPU, or else for each machine.
    """
    with on_ray.cluster() as ray:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        machines = [each for each in machines if each.get("CPU")] or [{}]
        gpus = int(sum(each.get("GPU", 0) for each in machines))
        count = count or gpus or len(machines)
        answerer = Answerer.of(answering, options, math.ceil(count / len(machines)))
        # One CPU each, whatever they use: Ray would wait forever for cores that others occupy.
        remote = ray.remote(Answerer).options(
            num_cpus=1, num_gpus=1 if gpus else 0, scheduling_strategy="SPREAD"
        )
        with Pool(lambda _: Actor(ray, remote.remote(**vars(answerer))), count) as pool:
            yield pool


@dataclasses.dataclass
class Answerer:
    """Holds the model in a worker, and answers with it.

    Args:
        module: name of the module whose function `answering` makes a function that answers texts.
        options_class: name of a class of that module.
        options: settings of this class, a dictionary.
        imports: names of the modules of --import.
        folder: working directory.
        sharing: number of workers that share the cores of the machine.
        gpu: id of its GPU; None to leave CUDA_VISIBLE_DEVICES unchanged.
    """

    module: str
    options_class: str
    options: dict
    imports: list
    folder: str
    sharing: int
    gpu: str | None = None

    @classmethod
    def of(cls, answering, options, sharing):
        # Of a program the module is named __main__, which others cannot import.
        name = sys.modules[answering.__module__].__spec__.name
        values = type(options).__name__, options.model_dump()
        return cls(name, *values, settings.imported, os.getcwd(), sharing)

    def load(self):
        """Loads the model."""
        os.chdir(self.folder)
        threads = str(max(1, cores() // self.sharing))
        os.environ["OMP_NUM_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"] = threads
        os.environ["TTY_COMPATIBLE"] = "0"  # the parent draws the progress bar
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        start_tensorflow("translate")
        tf.config.threading.set_inter_op_parallelism_threads(int(threads))
        settings.import_modules(self.imports)
        module = importlib.import_module(self.module)
        options = getattr(module, self.options_class)(**self.options)
        self._function = module.answering(options)

    def answer(self, texts):
        """The answers to texts, and whether each text was truncated."""
        answers, is_cut = self._function(texts)
        return list(answers), list(map(bool, is_cut))


class Process:
    """A process of this machine that calls methods of an `Answerer`; it ends with this one."""

    def __init__(self, answerer):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, answerer), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, name, *arguments):
        """What a method returns; raises what it raises, and `Died` if the process ends."""
        try:
            self._pipe.send((name, arguments))
            outcome = self._pipe.recv()
        except (EOFError, OSError):
            raise Died from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self):
        """Ends the process, whatever it does."""
        self._process.terminate()
        self._process.join(SECONDS_TO_END)
        self._process.kill()


def _serve(pipe, answerer):
    """Calls the methods that the parent names, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends them
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            try:
                outcome = getattr(answerer, name)(*arguments)
            except Exception as error:
                outcome = error
            pipe.send(outcome)


class Actor:
    """An actor of Ray that calls methods of an `Answerer`; the same methods as `Process`."""

    def __init__(self, ray, actor):
        self._ray, self._actor = ray, actor

    def call(self, name, *arguments):
        """What a method returns; raises what it raises, and `Died` if the actor is lost."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._actor, name).remote(*arguments))
        except exceptions.RayTaskError as error:
            raise error.cause from None
        except exceptions.RayError as error:
            raise Died from error

    def end(self):
        """Ends the actor, whatever it does."""
        self._ray.kill(self._actor)


class Pool:
    """Answers blocks of lines in several workers; one that dies is replaced.

    A worker takes a block once it has loaded its model: no block waits for a worker that a cluster
    has no room for.

    Args:
        begin: a function from the number of a worker to a `Process` or an `Actor`.
        count: number of workers.
    """

    def __init__(self, begin, count):
        self._begin, self._count, self._workers, self._is_over = begin, count, {}, False
        self._tasks = queue.PriorityQueue()  # pairs of a block's number and its texts
        self._outcomes = queue.SimpleQueue()  # pairs of a block's number and its answers
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(count)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, error, *_):
        self._is_over = True
        for number in range(self._count):
            self._tasks.put((-1 - number, None))  # before any block
        if error is not None:
            for worker in list(self._workers.values()):
                worker.end()
        for thread in self._threads:
            thread.join()

    def _run(self, number):
        """Keeps one worker alive, and gives it the first block that none has taken."""
        while not self._is_over:
            block = None
            try:
                worker = self._workers[number] = self._begin(number)
                worker.call("load")
                while not self._is_over:
                    block, texts = self._tasks.get()
                    if texts is not None:
                        self._outcomes.put((block, worker.call("answer", texts)))
            except Exception as error:
                self._outcomes.put((block, error))
                if not isinstance(error, Died):
                    return
            finally:
                if number in self._workers:
                    self._workers[number].end()

    def answered(self, blocks):
        """Yields each block with its answers and whether each text was truncated, in order.

        Args:
            blocks: an iterator of objects with `texts`, of which a few are read ahead.

        Raises:
            ValueError: if workers die again and again, or lack a file.
        """
        waiting, done, deaths, numbers = deque(), {}, 0, itertools.count()
        while True:
            while len(waiting) < 2 * self._count + 1 and (block := next(blocks, None)):
                waiting.append((next(numbers), block))
                if block.texts:
                    self._tasks.put((waiting[-1][0], block.texts))
                else:
                    done[waiting[-1][0]] = [], []
            if not waiting:
                return
            first, block = waiting[0]
            while first not in done:
                number, outcome = self._outcomes.get()
                if isinstance(outcome, Died):
                    deaths += 1
                    if deaths > MOST_DEATHS:
                        raise ValueError(
                            f"A worker died {deaths} times while {block} was to be answered, "
                            "perhaps for lack of memory. Give fewer --processes, or leave these "
                            "lines out."
                        )
                    print("A worker died; its lines are answered again.", file=sys.stderr)
                    if number is not None:
                        self._tasks.put((number, waiting[number - first][1].texts))
                elif isinstance(outcome, OSError):  # not to be taken for one of the output
                    raise ValueError(f"A worker has failed: {outcome}.") from outcome
                elif isinstance(outcome, Exception):
                    raise outcome
                else:
                    done[number], deaths = outcome, 0
            waiting.popleft()
            yield block, *done.pop(first)
