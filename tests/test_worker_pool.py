"""Blocks handled by workers: in order, each once, whatever dies."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.worker_pool import Died, WorkerPool, local_pool, ray_cluster, ray_pool

SQUARES = [(f"block {number}", (f"{number} ** 2",)) for number in range(30)]
RESULTS = [(f"block {number}", number**2) for number in range(30)]
PID = "__import__('os').getpid()"


def exits(code):
    return f"__import__('os')._exit({code})"


def exits_once(path):
    return f"open({str(path)!r}).read() if __import__('os').path.exists({str(path)!r}) else " + (
        f"(open({str(path)!r}, 'w').write('again'), {exits(1)})"
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_blocks_are_in_order_for_any_number_of_workers(count):
    with local_pool(count) as pool:
        assert list(pool.map(eval, SQUARES)) == RESULTS
        assert list(pool.map(len, [(n, ("a" * n,)) for n in range(9)])) == [
            (n, n) for n in range(9)
        ]


def test_few_blocks_are_read_ahead():
    read, ahead = [], []

    def blocks():
        for number, (_, arguments) in enumerate(SQUARES):
            read.append(number)
            yield number, arguments

    with local_pool(2) as pool:
        for number, _ in pool.map(eval, blocks()):
            ahead.append(len(read) - number)
    assert max(ahead) == 5


def test_a_single_block_starts_no_worker():
    with local_pool(2) as pool:
        assert list(pool.map(eval, [(0, (PID,))])) == [(0, os.getpid())]
        assert list(pool.map(eval, [])) == []


def test_a_worker_imports_nothing_before_its_function_does_and_prints_beside_its_answers():
    code = "(print('not an answer'), sorted({'keras', 'numpy'} & {*__import__('sys').modules}))[1]"
    with local_pool(2) as pool:
        assert list(pool.map(eval, [(0, (code,)), (1, (code,))])) == [(0, []), (1, [])]


def test_a_worker_that_dies_is_replaced_and_its_block_done_again(tmp_path, caplog):
    blocks = list(SQUARES)
    blocks[7:7] = [("dying", (exits_once(tmp_path / "died"),))]
    with local_pool(2) as pool, caplog.at_level(logging.WARNING):
        results = list(pool.map(eval, blocks))
    assert results == [*RESULTS[:7], ("dying", "again"), *RESULTS[7:]]
    assert caplog.messages == ["A worker died; its block will be processed again."]


def test_a_result_that_cannot_be_pickled_is_an_error_and_no_death(caplog):
    with local_pool(2) as pool, pytest.raises(TypeError, match="pickle"):
        list(pool.map(eval, [*SQUARES, ("generator", ("(x for x in ())",))]))
    assert not caplog.messages


def test_an_error_of_an_earlier_function_ends_no_block_of_a_later_one():
    is_late = threading.Event()

    class Worker:
        """One but the first loads the first function after all of its blocks, and fails."""

        def __init__(self, number):
            self.is_first = number == 0

        def call(self, packed, *arguments):
            function = pickle.loads(packed)
            if function is abs and not self.is_first:
                is_late.wait()
                raise ValueError("This worker cannot load abs.")
            return function(*arguments) if arguments else None

        def end(self):
            is_late.set()

    with WorkerPool(Worker, 2) as pool:
        assert list(pool.map(abs, [(n, (-n,)) for n in range(9)])) == [(n, n) for n in range(9)]
        is_late.set()
        assert list(pool.map(str, [(n, (n,)) for n in range(99)])) == [
            (n, str(n)) for n in range(99)
        ]


def test_a_block_that_kills_each_worker_is_named(caplog):
    blocks = [*SQUARES[:9], ("poem.txt, line 3", (exits(3),)), *SQUARES[9:]]
    results = []
    message = r"died 4 times at poem\.txt, line 3, perhaps .* fewer .* Received: exit code 3\."
    with local_pool(2) as pool, pytest.raises(ValueError, match=message):
        results.extend(pool.map(eval, blocks))
    assert len(caplog.messages) == 3


def test_deaths_at_different_blocks_do_not_add_up(tmp_path):
    blocks = [(n, (exits_once(tmp_path / str(n)),)) for n in range(7)]
    with local_pool(3) as pool:
        assert list(pool.map(eval, blocks)) == [(n, "again") for n in range(7)]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("1 / 0", ZeroDivisionError, "division"),
        ("open('/')", ValueError, r"A worker failed: .*'/'"),
    ],
)
def test_errors_of_the_function_are_raised(code, error, message):
    blocks, results = [*SQUARES[:3], ("bad", (code,)), *SQUARES[3:]], []
    with local_pool(2) as pool, pytest.raises(error, match=message):
        for result in pool.map(eval, blocks):
            results.append(result)
    assert results == RESULTS[:3]


def test_a_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with local_pool(2) as pool, pytest.raises(ValueError, match=r"A worker failed: .*nowhere"):
        list(pool.map(eval, SQUARES))


def test_each_worker_keeps_its_environment(tmp_path):
    code = "(__import__('time').sleep(0.1), __import__('os').environ['DEVICE'])[1]"
    blocks = [(n, (code,)) for n in range(8)]
    blocks[2:2] = [("dying", (exits_once(tmp_path / "died"),))]
    with local_pool(2, [{"DEVICE": "5"}, {"DEVICE": "7"}]) as pool:
        devices = [device for block, device in pool.map(eval, blocks) if block != "dying"]
    assert {*devices[-3:]} == {"5", "7"}


class PlayedWorker:
    """Calls in this process; a worker of `waits` gets no room before it is ended."""

    waits = ()

    def __init__(self, number):
        self._has_room = threading.Event()
        self._must_wait = number in self.waits

    def call(self, packed, *arguments):
        if self._must_wait:
            self._has_room.wait()
            raise Died("ended")
        return eval(*arguments) if arguments else None

    def end(self):
        self._has_room.set()


def test_no_block_waits_for_a_worker_without_room(monkeypatch):
    monkeypatch.setattr(PlayedWorker, "waits", (0, 2))
    with WorkerPool(PlayedWorker, 3) as pool:
        assert list(pool.map(eval, SQUARES)) == RESULTS


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


@needs_proc
def test_workers_end_with_the_pool_whatever_they_do(tmp_path):
    with local_pool(2) as pool, pytest.raises(KeyboardInterrupt):
        sleeping = [(n, ("__import__('time').sleep(600)",)) for n in range(9)]
        pids = []
        for _, pid in pool.map(eval, [*[(n, (PID,)) for n in range(5)], *sleeping]):
            pids.append(pid)
            raise KeyboardInterrupt
    assert not any(map(is_alive, pids))
    assert not pool._threads[0].is_alive()


def test_several_threads_may_end_a_worker_at_once():
    errors = []
    for _ in range(30):
        worker, start = local_pool(2)._start(0), threading.Barrier(8)

        def end(worker=worker, start=start):
            start.wait()
            try:
                worker.end()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=end) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(how):
    program = f"""
import signal
from keras_transformer.worker_pool import local_pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
blocks = [(n, ("(__import__('time').sleep(0.2), {PID})[1]",)) for n in range(600)]
with local_pool(2) as pool:
    for _, pid in pool.map(eval, blocks):
        print(pid, flush=True)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    pids = {int(parent.stdout.readline()) for _ in range(4)}
    assert all(map(is_alive, pids))
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does
    else:
        parent.send_signal(how)
    _, told = parent.communicate()
    assert parent.returncode and told.count("Traceback") <= 1
    assert wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.oracle
def test_actors_of_ray_do_the_same(tmp_path, monkeypatch, caplog):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    blocks = [*SQUARES[:7], ("dying", (exits_once(tmp_path / "died"),)), *SQUARES[7:]]
    with ray_cluster(2) as ray:
        with ray_pool(ray, 3) as pool:  # of which one gets no room
            assert list(pool.map(eval, blocks)) == [
                *RESULTS[:7], ("dying", "again"), *RESULTS[7:],
            ]  # fmt: skip
            code = "sorted({'keras', 'keras_transformer'} & {*__import__('sys').modules})"
            assert list(pool.map(eval, [(0, (code,)), (1, (code,))])) == [(0, []), (1, [])]
        assert caplog.messages.count("A worker died; its block will be processed again.") == 1
        with ray_pool(ray, 2) as pool, pytest.raises(ZeroDivisionError):
            list(pool.map(eval, [*SQUARES, ("bad", ("1 / 0",))]))
        message = "died 4 times at poison, .*Received: "
        with ray_pool(ray, 2) as pool, pytest.raises(ValueError, match=message):
            list(pool.map(eval, [*SQUARES, ("poison", (exits(3),))]))
