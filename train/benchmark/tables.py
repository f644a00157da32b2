"""From measured seconds to speeds, ratios and a table."""

import os
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


def table(rows):
    """Lines of text, one row per engine, with aligned columns."""
    lines = [["engine", "tokens/s", "ms", "ours faster by", "GFLOP/s", "of products"]]
    for row in rows:
        if row["unavailable"]:
            continue
        line = [row["name"], "", f"{1000 * statistics.median(row['seconds']):.1f}", ""]
        if "tokens_per_second" in row:
            line[1] = f"{row['tokens_per_second']:.0f}"
        if "ours_is_faster_by" in row and row is not rows[0]:
            line[3] = "{:.2f} ({:.2f}-{:.2f})".format(*row["ours_is_faster_by"])
        if "gflops" in row:
            share = row["share_of_products"]
            line += [f"{row['gflops']:.3g}", f"{share:.0%}" if share else ""]
        lines.append(line + [""] * (6 - len(line)))
    width = 6 if any("gflops" in row for row in rows) else 4
    lines = [line[:width] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
    return aligned + [f"{row['name']}  {row['unavailable']}" for row in rows if row["unavailable"]]


def describe(size):
    return (
        f"{size.num_layers}+{size.num_layers} layers, {size.hidden_dim} wide, "
        f"{size.intermediate_dim} inside, {size.num_heads} heads, vocabulary {size.vocabulary_size}"
    )


def machine(threads, gpu=None):
    """A description of the machine that was measured.

    Args:
        threads: threads of each engine.
        gpu: name of the GPU; None if the CPU was measured.
    """
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    )
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "gpu": gpu,
        "python": platform.python_version(),
    }
