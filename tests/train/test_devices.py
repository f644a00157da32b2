"""A worker whose peer has died ends by itself; what else fails is not taken for that."""

import os

import pytest
import tensorflow as tf

from train import devices

LOST = tf.errors.UnavailableError(None, None, "Connection reset by peer\nand where it was seen")


@pytest.fixture
def exits(monkeypatch):
    """The exit codes with which the process would have ended."""
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def fail_under(monkeypatch, is_one_of_several, error):
    monkeypatch.setattr(devices, "has_workers", lambda strategy: is_one_of_several)
    with devices.exit_when_a_worker_is_lost(strategy=None):
        raise error


def test_a_worker_that_loses_another_exits_with_its_own_code_and_two_lines(
    monkeypatch, exits, capfd
):
    fail_under(monkeypatch, True, LOST)
    assert exits == [76] == [devices.EXIT_CODE_LOST_WORKER]
    assert capfd.readouterr().err.splitlines()[-2:] == [
        "Another worker was lost: Connection reset by peer",
        "Start all workers again with the same command: they resume from the last checkpoint.",
    ]


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_no_other_mistake_is_taken_for_a_lost_worker(monkeypatch, exits, is_one_of_several):
    error = ValueError("of the text") if is_one_of_several else LOST
    with pytest.raises(type(error)):
        fail_under(monkeypatch, is_one_of_several, error)
    assert not exits
