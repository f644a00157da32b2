"""What the server starts and ends on a cluster of its own, and on one that others use, too."""

import signal
import types

import pytest

from train.serve import __main__ as command

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray's imports
]

OWN, JOINED = ["shutdown", "disconnected"], ["delete models", "disconnected"]


@pytest.fixture
def calls(monkeypatch):
    """What is called of Ray, which does nothing."""
    ray, calls = pytest.importorskip("ray"), []
    from ray import serve

    for name in ("ENABLE_WINDOWS_OR_OSX_CLUSTER", "USAGE_STATS_ENABLED"):
        monkeypatch.setenv(f"RAY_{name}", "0")  # and what it was, afterwards
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "2000")
    monkeypatch.setattr(ray, "init", lambda address=None, **_: calls.append(address))
    nodes = [{"Alive": True, "Resources": {"GPU": 1.0}}, {"Alive": False, "Resources": {"GPU": 8}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("disconnected"))
    monkeypatch.setattr(serve, "start", lambda **_: None)
    monkeypatch.setattr(serve, "run", lambda *_, **__: None)
    monkeypatch.setattr(serve, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(serve, "delete", lambda name: calls.append(f"delete {name}"))
    reaper = types.SimpleNamespace(kill=lambda: None)
    monkeypatch.setattr(command, "start_reaper", lambda: reaper)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "pause", stopped)
    return calls


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("address", "expected"),
    [(None, ["local", *OWN]), ("", ["local", *OWN]), ("auto", [None, *JOINED])],
)
@pytest.mark.parametrize("failing", [None, "run", "start"])
def test_what_others_run_on_a_cluster_stays(address, expected, failing, calls, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    if failing:
        monkeypatch.setattr(f"ray.serve.{failing}", stopped)
    if failing == "start":  # nothing of ours is there yet
        expected = [call for call in expected if call != "delete models"]
    with pytest.raises(KeyboardInterrupt):
        command.run("models", command.ServeOptions(), [])
    assert calls == expected


def test_gpus_that_there_are_not_and_a_cluster_that_is_gone_are_told(calls, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options = command.ServeOptions(replicas=2, gpus_per_replica=1)
    with pytest.raises(ValueError, match=r"too few GPUs for 1 on each replica.*--gpus-per-replica"):
        command.run("models", options, [])
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    calls.clear()
    with pytest.raises(ConnectionError, match="RAY_ADDRESS must be the address of a cluster"):
        command.run("models", command.ServeOptions(), [])
    assert not calls, "before any work"
