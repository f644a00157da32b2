"""The launcher through Ray Train, where Ray is installed."""

import json
import os
import sys
import threading
import time

import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from train.launch.on_ray import run_on_ray

from .conftest import command_that_dies

pytestmark = pytest.mark.oracle
ray = pytest.importorskip("ray")
pytest.importorskip("ray.train")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster


@pytest.fixture(scope="module", autouse=True)
def light_workers(tmp_path_factory, on_two_workers):
    """Ray's own processes import TensorFlow but use nothing of it, and need seconds for it.

    Workers that train must not: `on_two_workers` trained before.
    """
    path = os.environ.get("PYTHONPATH", "")
    folder = tmp_path_factory.mktemp("light")
    code = "import sys\nfrom unittest import mock\nsys.modules[__name__] = mock.MagicMock()\n"
    (folder / "tensorflow.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [path])]))
        yield path


@pytest.fixture(scope="module")
def machine(light_workers):
    """Ray on this machine, started once."""
    ray.init("local", num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


def program(folder, body):
    head = "import json, os, pathlib, sys; c = json.loads(os.environ['TF_CONFIG']); "
    head += f"i = c['task']['index']; d = pathlib.Path({str(folder)!r}); "
    head += "n = len(list(d.glob(f'{i}-*'))); (d / f'{i}-{n}').write_text(json.dumps(c)); "
    return [sys.executable, "-c", head + body]


@pytest.mark.usefixtures("machine")
def test_ray_starts_all_again_when_one_is_lost_but_not_when_they_were_told_to_stop(tmp_path):
    body = "import time; n or (os.kill(os.getpid(), 9) if i else time.sleep(100)); sys.exit(75)"
    assert run_on_ray(program(tmp_path, body), 2, restarts=2) == 75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    config = json.loads((tmp_path / "1-1").read_text())
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2


@pytest.mark.soak
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("chief", ["time.sleep(300)", "0"])
def test_ray_ends_with_the_mistake_of_any_worker_and_starts_none_again(chief, tmp_path):
    body = f"import time; sys.exit(2) if i else {chief}"
    assert run_on_ray(program(tmp_path, body), 2, restarts=3) == 2
    begun = {path.name for path in tmp_path.iterdir()}
    assert {"1-0"} <= begun <= {"0-0", "1-0"}, "the chief may be ended before it begins"


@pytest.mark.usefixtures("machine")
def test_ray_trains_as_the_launcher_of_one_machine_does(
    text, tmp_path, light_workers, on_two_workers
):
    variables = [f"PYTHONPATH={light_workers}", "DIES=2:0:0", f"DIED={tmp_path}/died"]  # no result
    training = ["env", *variables, *command_that_dies(text, tmp_path / "run")]
    assert run_on_ray(training, 2, restarts=0) == 0
    weights = [RunFolder(run).model().weights for run in (tmp_path / "run", on_two_workers / "run")]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.soak
def test_ray_goes_on_with_the_workers_that_are_left(tmp_path, monkeypatch):
    """One of two machines is lost; the one that is left has room for one worker."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "15")  # instead of 60
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost = cluster.add_node(num_cpus=1)

    def lose():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)

    body = "import time; len(c['cluster']['worker']) > 1 and time.sleep(300)"
    threading.Thread(target=lose, daemon=True).start()
    try:
        ray.init(address=cluster.address)
        assert run_on_ray(program(tmp_path, body), 2, restarts=2, min_workers=1) == 0
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0"]
    assert len(json.loads((tmp_path / "0-1").read_text())["cluster"]["worker"]) == 1


@pytest.mark.soak
def test_a_worker_of_ray_may_have_several_gpus(tmp_path):
    ray.shutdown()
    ray.init("local", num_gpus=4)  # Ray believes it, and sets CUDA_VISIBLE_DEVICES
    body = "(d / f'{i}.gpus').write_text(os.environ['CUDA_VISIBLE_DEVICES'])"
    try:
        with pytest.raises(ValueError, match=r"too few GPUs for 3 on each worker.*2 workers"):
            run_on_ray(program(tmp_path, body), 2, restarts=0, gpus_per_worker=3)
        assert run_on_ray(program(tmp_path, body), 2, restarts=0, gpus_per_worker=2) == 0
    finally:
        ray.shutdown()
    gpus = [path.read_text().split(",") for path in tmp_path.glob("*.gpus")]
    assert sorted(gpu for of_worker in gpus for gpu in of_worker) == ["0", "1", "2", "3"]
    assert [len(of_worker) for of_worker in gpus] == [2, 2]
