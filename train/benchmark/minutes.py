"""Engines one after another, each in a process of its own, until the minutes are over.

What a process finds out it tells at once, so that nothing is lost when the rest is stopped.
"""

import contextlib
import functools
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from .engines import NoDevice
from .rounds import seconds_a_unit, set_up, why_not

ROUNDS, UNITS = 4, 5  # each round is timed as a whole
SECONDS_TO_WARM_UP = 0.5  # a GPU that had nothing to do has a low clock
SECONDS_TO_END = 2
LAST_WORDS = 2000  # characters of what a process said that are kept when it has died


class Measure(NamedTuple):
    """What one process measures: a row of a table."""

    table: object  # that the row stands in
    label: str  # name of the row, until its process tells a better one
    work: Callable  # from a function that waits for the device to parts of the row, a generator
    environment: dict  # variables of the process
    share: float  # of all minutes that it may take
    is_ours: bool = True  # and may not fail


def timed(build, workload, wait):
    """Yields what an engine is, how long it takes to start, to compile and to work, and details.

    Args:
        build: makes an `Engine` of a `Workload`, and leaves the device alone.
        workload: the work of a unit.
        wait: returns when the device is free.
    """
    begun = time.perf_counter()
    engine = build(workload)
    yield {
        "name": engine.name,
        "parameters": engine.num_parameters,
        "seconds_to_start": time.perf_counter() - begun,
    }
    wait()
    yield {"doing": "compiling"}
    begun = time.perf_counter()
    engine.prepare()
    engine.finish(engine.unit())
    yield {"doing": "working", "seconds_to_compile": time.perf_counter() - begun}
    begun = time.perf_counter()
    result = engine.finish(engine.unit())
    while time.perf_counter() - begun < SECONDS_TO_WARM_UP:
        engine.finish(engine.unit())
    seconds = [seconds_a_unit(engine, UNITS) for _ in range(ROUNDS)]
    yield {"doing": "tracing its kernels", "result": result, "seconds": seconds}
    yield from engine.details()


def compared(build, workload, wait):
    """Yields what a comparison finds out.

    Args:
        build: makes a function, which compares, of a `Workload`, and leaves the device alone.
        workload: what is compared.
        wait: returns when the device is free.
    """
    compare = build(workload)
    wait()
    yield {"doing": "comparing"}
    yield compare()


def one_by_one(measures, begun, minutes):
    """Yields each measure and its row, once for whatever is new in the row.

    A row has `doing` until it is finished; `unavailable`, why there is no measurement, or None; and
    `afterwards`, what went wrong after it. The next process starts while one works, but leaves the
    device alone until that has finished. What outlasts its share, or the minutes, is killed. What
    comes after the minutes is left out.

    Args:
        measures: a list of `Measure`, of which the first is worth the most.
        begun: when the minutes began, in seconds of `time.monotonic`.
        minutes: how many there are.
    """
    end, processes = begun + 60 * minutes, []
    folder = tempfile.TemporaryDirectory()
    try:
        for place, measure in enumerate(measures):
            row = {"name": measure.label, "unavailable": None, "seconds": [], "doing": "starting"}
            now = time.monotonic()
            if now < end:
                for following in measures[len(processes) : place + 2]:
                    said = os.path.join(folder.name, f"{len(processes)}")
                    processes.append(_Process(following, said))
                for news in processes[place].work(min(end, now + 60 * minutes * measure.share)):
                    row |= news
                    yield measure, row
            else:
                row["trouble"] = f"left out: {minutes:g} minutes were over"
            del row["doing"]
            row |= {"afterwards" if row["seconds"] else "unavailable": row.pop("trouble", None)}
            yield measure, row
    finally:
        for process in processes:
            process.end()
        folder.cleanup()


class _Process:
    """The process of a measure. It starts at once, but waits until it may use the device.

    What it and its libraries print is appended to the file `said`.
    """

    def __init__(self, measure, said):
        context = multiprocessing.get_context("spawn")  # a fork inherits threads and memory
        self._pipe, theirs = context.Pipe()
        self._said = said
        arguments = theirs, measure.work, measure.environment, said
        self._process = context.Process(target=_tell, args=arguments)
        self._process.start()
        theirs.close()

    def work(self, until):
        """Lets it use the device, and yields what it tells, dictionaries; kills it at a time."""
        begun, doing = time.monotonic(), "starting"
        with contextlib.suppress(OSError):  # it has ended, and told why
            self._pipe.send(None)
        while self._pipe.poll(max(until - time.monotonic(), 0)):
            try:
                news = self._pipe.recv()
            except (EOFError, OSError):
                news = self._death()
            if news is None:
                return
            doing = news.get("doing", doing)
            yield news
            if "trouble" in news:
                return
        self._process.kill()
        self._process.join()
        yield {"trouble": f"stopped after {time.monotonic() - begun:.0f} s, while {doing}"}

    def _death(self):
        """What is told of a process that ended before it had told everything."""
        self._process.join(SECONDS_TO_END)
        trouble = f"failed: its process ended with exit code {self._process.exitcode}"
        with open(self._said, encoding="utf-8", errors="replace") as file:
            return {"trouble": trouble, "details_of_failure": file.read()[-LAST_WORDS:]}

    def end(self):
        """Waits a moment for one that has told everything, and kills it."""
        self._pipe.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()


def _tell(pipe, work, environment, said):
    """Sends what a measure finds out, and None after it."""

    def unless_alone(use, *arguments):
        try:
            return use(*arguments)
        except (EOFError, OSError):  # nobody listens any more
            os._exit(1)

    set_up(environment, said)
    try:
        for news in work(functools.partial(unless_alone, pipe.recv)):
            unless_alone(pipe.send, news)
        news = None
    except Exception as error:  # whatever a framework raises becomes a line of the table
        news = {"trouble": why_not(error), "details_of_failure": traceback.format_exc()}
        news["lacks"] = error.name if isinstance(error, ModuleNotFoundError) else None
        news["has_no_device"] = isinstance(error, NoDevice)
    unless_alone(pipe.send, news)
