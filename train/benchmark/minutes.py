"""Engines one after another, each in a process of its own, until the minutes are over.

What a process finds out it tells at once, so that nothing is lost when the rest is stopped.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from typing import NamedTuple

from .rounds import seconds_a_unit, set_up, why_not

ROUNDS, UNITS = 4, 5  # each round is timed as a whole
SECONDS_TO_END = 2


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
    result = engine.finish(engine.unit())
    seconds = [seconds_a_unit(engine, UNITS) for _ in range(ROUNDS)]
    yield {"doing": "tracing its kernels", "result": result, "seconds": seconds}
    yield from engine.details()


def compared(function, workload, wait):
    """Yields what a function of a workload finds out.

    The arguments are those of `timed`, but for the function.
    """
    wait()
    yield {"doing": "comparing"}
    yield function(workload)


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
    try:
        for place, measure in enumerate(measures):
            row = {"name": measure.label, "unavailable": None, "seconds": [], "doing": "starting"}
            now = time.monotonic()
            if now < end:
                processes += map(_Process, measures[len(processes) : place + 2])
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


class _Process:
    """The process of a measure. It starts at once, but waits until it may use the device."""

    def __init__(self, measure):
        context = multiprocessing.get_context("spawn")  # a fork inherits threads and memory
        self._pipe, theirs = context.Pipe()
        arguments = theirs, measure.work, measure.environment
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
                news = {"trouble": "failed: its process ended"}
            if news is None:
                return
            doing = news.get("doing", doing)
            yield news
            if "trouble" in news:
                return
        self._process.kill()
        yield {"trouble": f"stopped after {time.monotonic() - begun:.0f} s, while {doing}"}

    def end(self):
        """Waits a moment for one that has told everything, and kills it."""
        self._pipe.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()


def _tell(pipe, work, environment):
    """Sends what a measure finds out, and None after it."""
    set_up(environment)
    try:
        for news in work(pipe.recv):
            pipe.send(news)
        pipe.send(None)
    except (EOFError, ConnectionError):
        return  # nobody listens any more
    except Exception as error:  # whatever a framework raises becomes a line of the table
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        pipe.send({"trouble": why_not(error), "lacks": lacks})
