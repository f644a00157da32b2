"""Many connections at once, for twenty seconds: pytest -m soak."""

import concurrent.futures
import threading
import time

import pytest

from .client import measure, memory_of
from .conftest import KINDS, TEXTS

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("name", KINDS)
def test_sixteen_connections_for_twenty_seconds(server, alone, name, capsys):
    """Prints latencies and memory; every answer is the one to the text alone."""
    port, process = server
    may_end, memory = threading.Event(), []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(measure, port, name, TEXTS, alone[name], n, may_end) for n in range(16)]
        try:
            for _ in range(6):
                time.sleep(5)
                memory.append(memory_of(process.pid))
        finally:
            may_end.set()
        results = [job.result() for job in jobs]
    assert not [wrong for _, found in results for wrong in found]
    # The first ten seconds meet batches of every size, and are left out.
    seconds = sorted(lasted for times, _ in results for begun, lasted in times if begun > 10)
    middle, last = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    with capsys.disabled():
        print(
            f"\n{name}: {len(seconds)} answers in 20 s, p50 {1000 * middle:.1f} ms, "
            f"p99 {1000 * last:.1f} ms; MiB {', '.join(f'{size:.0f}' for size in memory)}"
        )
    assert memory[-1] < 1.05 * memory[1]
