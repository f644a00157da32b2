"""From measured seconds to speeds, ratios and a table."""

import functools
import importlib.metadata
import os
import pathlib
import platform
import statistics
import subprocess

from ..gpus import gpu_count, visible_gpus

LARGEST_KERNELS = 12
VERSIONS = ("tensorflow", "jax", "keras", "keras-hub", "torch", "transformers", "ctranslate2")
SMI = (
    "name", "driver_version", "power.limit", "power.draw", "clocks.sm", "clocks.max.sm",
    "clocks.mem", "temperature.gpu",
)  # fmt: skip


def compare(rows, tokens, flops=None, peak=None):
    """Adds to each measured row its speed, and the ratio of its time to the first's.

    Args:
        rows: rows from `measure`.
        tokens: target tokens per unit of work.
        flops: operations of the matrix products per unit of work; None to omit their rates.
        peak: operations and bytes a second that the device can do at most, a pair; None if they
            are not known.
    """
    ours = rows[0]["seconds"]
    limits = [row for row in rows if is_limit(row) and row["seconds"]]
    limit = min((statistics.median(row["seconds"]) for row in limits), default=None)
    for row in rows:
        if not row["seconds"]:
            continue
        seconds = statistics.median(row["seconds"])
        if not is_limit(row):
            row["tokens_per_second"] = tokens / seconds
        if ours and not is_limit(row):
            ratios = [theirs / our for theirs, our in zip(row["seconds"], ours, strict=True)]
            row["ours_is_faster_by"] = [statistics.median(ratios), min(ratios), max(ratios)]
        if flops is not None:
            row["gflops"] = flops / seconds / 1e9
            row["share_of_products"] = limit and limit / seconds
        if peak and flops is not None:
            row["share_of_peak"] = flops / seconds / peak[0]
        if peak and row.get("bytes_moved"):
            row["bound_ms"] = 1000 * row["bytes_moved"] / peak[1]


def is_limit(row):
    """Whether this is not an engine but only the matrix products."""
    return row["name"].startswith("products")


def engine_table(rows):
    """Lines of text, one per row of `compare`; a column that no row fills is left out."""
    ratios = {"ours faster by": lambda row: _first_faster_by(row) if row is not rows[0] else ""}
    return table(_filled(_SPEEDS | ratios | _SHARES, rows), rows)


def report_table(runs):
    """Lines of text: all that the runs of a report measured, in one table, and the marks.

    Of a table that was measured more than once, the last counts. Runs on another device or backend
    than the last one, or with other models, are left out.

    Args:
        runs: what `run` wrote as JSON, a list.
    """

    def measured(run):
        machine = run.get("machine", {})
        return machine.get("gpu") or machine.get("processor"), run.get("backend"), run.get("toy")

    alike = [run for run in runs if measured(run) == measured(runs[-1])]
    tables = {each["table"]: each for run in alike for each in run["measurements"]}
    rows = [
        {**row, "name": f"{name}: {row['name']}", "is_first": row is each["engines"][0]}
        for name, each in tables.items()
        for row in each["engines"]
    ]
    columns = {
        **_SPEEDS,
        "first faster by": lambda row: "" if row["is_first"] else _first_faster_by(row),
        **_SHARES,
        "holds": lambda row: {True: "yes", False: "NO"}.get(row.get("holds"), ""),
    }
    marks = [
        f"{name}: {line}"
        for name, each in tables.items()
        for line in mark_lines(each.get("marks", ()))
    ]
    return [*table(_filled(columns, rows), rows), *marks]


def _number(key, spec, unit=1.0):
    """A function from a row to the text of one of its numbers; "" if it has none."""
    return lambda row: format(row[key] / unit, spec) if row.get(key) else ""


def _milliseconds(row):
    seconds = row.get("seconds")
    return f"{1000 * statistics.median(seconds):.2f}" if seconds else ""


def _first_faster_by(row):
    ratios = row.get("ours_is_faster_by")
    return "{:.2f} ({:.2f}-{:.2f})".format(*ratios) if ratios else ""


def _busy(row):
    return format(row["kernels"]["busy_ms"], ".2f") if "busy_ms" in row.get("kernels", {}) else ""


def _result(row):
    return format(row["result"], ".4f") if isinstance(row.get("result"), float) else ""


_SPEEDS = {
    "engine": lambda row: row["name"],
    "tokens/s": _number("tokens_per_second", ",.0f"),
    "ms": _milliseconds,
}
_SHARES = {
    "GFLOP/s": _number("gflops", ".3g"),
    "of products": _number("share_of_products", ".0%"),
    "of peak": _number("share_of_peak", ".0%"),
    "bound, ms": _number("bound_ms", ".2f"),
    "busy, ms": _busy,
    "GiB held": _number("peak_bytes", ".2f", 2**30),
    "GiB moved": _number("bytes_moved", ".1f", 2**30),
    "start, s": _number("seconds_to_start", ".1f"),
    "compile, s": _number("seconds_to_compile", ".1f"),
    "result": _result,
}


def _filled(columns, rows):
    """The first column, and those of the others that some measured row fills."""
    measured = [row for row in rows if not row.get("unavailable")]
    (first, name), *others = columns.items()
    return {first: name, **{key: text for key, text in others if any(map(text, measured))}}


def mark_of(text, measured, wanted):
    """What should be reached, and what was.

    Args:
        text: what is measured.
        measured: None if it was not.
        wanted: the least it should be.

    Returns:
        A dictionary of these and `reached`, None if nothing was measured.
    """
    reached = None if measured is None else measured >= wanted
    return {"mark": text, "wanted": wanted, "measured": measured, "reached": reached}


def mark_lines(marks):
    """Lines of text, one for each mark of `mark_of`."""
    lines = []
    for mark in marks:
        measured = mark["measured"]
        line = mark["mark"] if measured is None else f"{measured:,.2f} {mark['mark']}"
        verdict = {True: "reached", False: "MISSED", None: "not measured"}[mark["reached"]]
        lines.append(f"mark: {line}, at least {mark['wanted']:,}: {verdict}")
    return lines


def kernel_table(row):
    """Lines of text, one for each of the largest kernels of a step; none if none was traced."""
    kernels = row.get("kernels")
    if not kernels:
        return []
    if "failed" in kernels:
        return ["", f"No kernels: the profiler failed. {kernels['failed']}"]
    rows = [
        {"name": name, "ms": ms, "calls": calls}
        for name, ms, calls in kernels["by_name"][:LARGEST_KERNELS]
    ]
    columns = {
        "kernel": lambda row: row["name"][:80],
        "ms a step": lambda row: f"{row['ms']:.3f}",
        "calls": lambda row: f"{row['calls']:.0f}",
        "share": lambda row: f"{row['ms'] / kernels['busy_ms']:.0%}",
    }
    return [
        "",
        *table(columns, rows),
        f"The device computes {kernels['busy_ms']:.2f} of {kernels['span_ms']:.2f} ms a step.",
    ]


def table(columns, rows):
    """Lines of text, the columns aligned.

    Args:
        columns: dict from a heading to a function from a row to its text.
        rows: dictionaries; those that say why they are `unavailable` come last, without columns.
    """
    measured = [row for row in rows if not row.get("unavailable")]
    lines = [list(columns), *([text(row) for text in columns.values()] for row in measured)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        *(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ),
        *(f"{row['name']}  {row['unavailable']}" for row in rows if row.get("unavailable")),
    ]


def machine(threads, gpu=None):
    """What must be known of a machine to compare its numbers with others.

    Args:
        threads: threads of each engine.
        gpu: name of the GPU; None if the CPU was measured.
    """
    cpu_info = pathlib.Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "gpu": gpu,
        "gpu_state": nvidia_smi() if gpu else None,
        "python": platform.python_version(),
        "versions": {
            name: installed.version
            for name in VERSIONS
            for installed in list(importlib.metadata.distributions(name=name))[:1]
        },
    }


@functools.cache
def measured_gpu():
    """The id of the GPU that is measured: the first that CUDA shows."""
    return (visible_gpus(gpu_count(), os.environ) or ["0"])[0]


def nvidia_smi():
    """Driver, power, clocks and temperature of the GPU that is measured; None if unknown."""
    query = [f"--query-gpu={','.join(SMI)}", "--format=csv,noheader", f"--id={measured_gpu()}"]
    try:
        done = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(SMI, map(str.strip, done.stdout.split(",")), strict=False))
