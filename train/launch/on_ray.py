"""Workers that Ray places on the machines of a cluster, and restarts when one is lost."""

import contextlib
import importlib.util
import os
import subprocess

from ..settings import EXIT_CODE_MISTAKE
from .local import EXIT_CODE_STOPPED, end_with_parent

FINAL_CODES = (0, EXIT_CODE_MISTAKE, EXIT_CODE_STOPPED)


def _worker_pool():
    """The module `keras_transformer.worker_pool` without its package, which imports TensorFlow."""
    [folder] = importlib.util.find_spec("keras_transformer").submodule_search_locations
    path = os.path.join(folder, "worker_pool.py")
    spec = importlib.util.spec_from_file_location("worker_pool", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_on_ray(command, count, restarts, gpus_per_worker=None, min_workers=None):
    """Runs a command in `count` workers of Ray's `TensorflowTrainer`.

    Each is a separate process with Ray's TF_CONFIG, in the working directory of this command, which
    must exist on all machines.

    Args:
        command: a list.
        count: number of workers.
        restarts: how many times to restart all of them.
        gpus_per_worker: number of GPUs of each; None for one if the cluster has any.
        min_workers: how many suffice to start and, after a machine was lost, to go on; None for
            all. With fewer, Ray says so and waits for machines. It restarts all workers with more
            of them, up to `count`, once there is room.

    Returns:
        The exit code of the workers: 0, or one after which restarting is no use.

    Raises:
        ImportError: without Ray.
        ValueError: if the cluster has too few GPUs.
        RuntimeError: when the workers were lost more than `restarts` times.
    """
    directory = os.getcwd()

    def work():
        if not mistakes.empty():  # of one before all were started again
            return EXIT_CODE_MISTAKE
        environment = dict(os.environ)
        environment.pop("TF_USE_LEGACY_KERAS", None)  # Ray sets it, for Keras 2
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        process = subprocess.Popen(
            command, cwd=directory, env=environment, preexec_fn=end_with_parent
        )
        code = None
        while code is None and mistakes.empty():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=1)
        if code is None:  # it would wait for the worker that made the mistake
            process.kill()
            process.wait()
            return EXIT_CODE_MISTAKE
        if code == EXIT_CODE_MISTAKE:
            mistakes.put(code)
        if code not in FINAL_CODES:
            raise RuntimeError(f"The worker exited with code {code}.")
        return code

    with _worker_pool().ray_cluster() as ray:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.tensorflow import TensorflowTrainer
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        machines = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
        gpus = gpus_of_a_worker(machines, min_workers or count, gpus_per_worker)
        trainer = TensorflowTrainer(
            work,
            scaling_config=ScalingConfig(
                num_workers=(min_workers, count) if min_workers else count,
                use_gpu=gpus > 0,
                resources_per_worker={"CPU": 1, **({"GPU": gpus} if gpus else {})},
            ),
            run_config=RunConfig(failure_config=FailureConfig(max_failures=restarts)),
        )
        # What `fit` returns is the chief's code. On this machine: others may be lost.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        mistakes = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        try:
            code = trainer.fit().return_value
            return code if mistakes.empty() else EXIT_CODE_MISTAKE
        except Exception as error:  # Ray's own type holds the errors of all workers
            if not mistakes.empty():
                return EXIT_CODE_MISTAKE
            raise RuntimeError(f"The workers were lost: {str(error).splitlines()[0]}") from error
        finally:
            mistakes.shutdown()


def gpus_of_a_worker(machines, workers, wanted=None):
    """The number of GPUs to request from Ray for each worker.

    Args:
        machines: number of GPUs in each machine of the cluster.
        workers: number of workers.
        wanted: GPUs per worker; None for one if there is any.

    Raises:
        ValueError: if there are too few; Ray would wait for more.
    """
    each = (1 if any(machines) else 0) if wanted is None else wanted
    if each and sum(int(gpus // each) for gpus in machines) < workers:
        raise ValueError(
            f"Ray's cluster has too few GPUs for {each:g} on each worker. Start fewer workers, or "
            f"choose --gpus-per-worker, 0 for the CPU. Received: {workers} workers, machines with "
            f"{', '.join(f'{gpus:g}' for gpus in machines)} GPUs."
        )
    return each
