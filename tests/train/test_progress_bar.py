"""What is said of work on files where there is no terminal."""

import itertools

from train import progress_bar
from train.progress_bar import Shown


def test_rates_are_of_what_was_done_since_a_pass_was_first_heard_of(monkeypatch, capsys):
    """Rows of an earlier process, or of blocks that ended together, took no time here."""
    clock = itertools.count(step=40)
    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: next(clock))
    with Shown(400, "lines") as show:
        for name, lines in (("counting", 100), ("counting", 180), ("writing", 300)):
            show(name, lines, lines)
    assert capsys.readouterr().err.splitlines() == [
        "counting: 25%, 100 lines",
        "counting: 45%, 180 lines, 2 lines/s",
        "writing: 75%, 300 lines",
    ]
