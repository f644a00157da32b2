"""From measured seconds to speeds, ratios and a table."""

import platform
import statistics
from pathlib import Path


def compare(rows, tokens, flops=None):
    """Adds to each measured row its speed, and its ratio to the first, ours.

    Args:
        rows: rows from `measure`.
        tokens: target tokens per unit of work.
        flops: operations of the matrix products per unit of work; None to omit their rates.
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


def is_limit(row):
    """Whether this is not an engine but only the matrix products."""
    return row["name"].startswith("products")


def engine_table(rows):
    """Lines of text, one per row of `compare`."""

    def ours_faster_by(row):
        ratios = row.get("ours_is_faster_by") if row is not rows[0] else None
        return "{:.2f} ({:.2f}-{:.2f})".format(*ratios) if ratios else ""

    def shown(key, form):
        return lambda row: format(row[key], form) if row.get(key) else ""

    columns = {
        "engine": lambda row: row["name"],
        "tokens/s": shown("tokens_per_second", ".0f"),
        "ms": lambda row: f"{1000 * statistics.median(row['seconds']):.1f}",
        "ours faster by": ours_faster_by,
    }
    if any("gflops" in row for row in rows):
        columns["GFLOP/s"] = shown("gflops", ".3g")
        columns["of products"] = shown("share_of_products", ".0%")
    return table(columns, rows)


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
    """A description of the machine that was measured.

    Args:
        threads: threads of each engine.
        gpu: name of the GPU; None if the CPU was measured.
    """
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "gpu": gpu,
        "python": platform.python_version(),
    }
