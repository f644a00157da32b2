"""What is shown of work on files while it goes on."""

import sys
import time

SECONDS_BETWEEN_LINES = 30


class Shown:
    """Shows how far work on files is: a bar on a terminal, a line now and then elsewhere.

    Args:
        num_bytes: bytes of text that each pass reads.
        rows: what is counted, a plural noun.
    """

    def __init__(self, num_bytes, rows):
        self._num_bytes, self._rows, self._bar, self._tasks = num_bytes, rows, None, {}
        self._last = time.perf_counter()
        self._start = self._before = None  # time and rows when a pass was first heard of

    def __enter__(self):
        if sys.stderr.isatty():
            import rich.console
            import rich.progress

            columns = (
                *rich.progress.Progress.get_default_columns(),
                rich.progress.TextColumn("{task.fields[rate]}"),
            )
            self._bar = rich.progress.Progress(*columns, console=rich.console.Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, name, position, rows):
        now = time.perf_counter()
        if name not in self._tasks:
            self._start, self._before = now, rows
            self._tasks[name] = self._bar and self._bar.add_task(
                name, total=self._num_bytes, rate=""
            )
        seconds = now - self._start
        rate = f"{(rows - self._before) / seconds:,.0f} {self._rows}/s" if seconds > 1 else ""
        if self._bar is not None:
            self._bar.update(self._tasks[name], completed=position, rate=rate)
        elif now - self._last > SECONDS_BETWEEN_LINES:
            self._last = now
            done = f"{name}: {position / max(1, self._num_bytes):.0%}"
            parts = filter(None, (done, f"{rows:,} {self._rows}", rate))
            print(", ".join(parts), file=sys.stderr, flush=True)
