"""Workers that Ray places on the machines of its cluster, and restarts when one is lost."""

import os
import subprocess

from train.command import EXIT_CODE_MISTAKE
from train.launch.local import EXIT_CODE_STOPPED, end_with_parent

FINAL_CODES = (0, EXIT_CODE_MISTAKE, EXIT_CODE_STOPPED)


def run_on_ray(command, count, restarts):
    """Runs a command in `count` workers of Ray's `TensorflowTrainer`.

    Each is a process of its own with the TF_CONFIG that Ray has made, in the working directory of
    this command, which must exist on all machines. Each worker gets a GPU if there are enough.

    Returns:
        The exit code of the workers: 0, or one after which restarting is no use.

    Raises:
        ImportError: without Ray.
        RuntimeError: when the workers were lost more than `restarts` times.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.tensorflow import TensorflowTrainer
    except ImportError as error:
        raise ImportError(f"Ray is needed: pip install -e '.[ray]'. Received: {error}") from error
    directory = os.getcwd()

    def work():
        environment = dict(os.environ)
        environment.pop("TF_USE_LEGACY_KERAS", None)  # Ray sets it, for Keras 2
        code = subprocess.run(
            command, cwd=directory, env=environment, preexec_fn=end_with_parent, check=False
        ).returncode
        if code not in FINAL_CODES:
            raise RuntimeError(f"The worker exited with code {code}.")
        return code

    ray.init(ignore_reinit_error=True, log_to_driver=True)
    gpus = ray.cluster_resources().get("GPU", 0) >= count
    trainer = TensorflowTrainer(
        work,
        scaling_config=ScalingConfig(num_workers=count, use_gpu=gpus),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=restarts)),
    )
    try:
        return trainer.fit().return_value
    except Exception as error:  # Ray's own type holds the errors of all workers
        raise RuntimeError(f"The workers were lost: {str(error).splitlines()[0]}") from error
    finally:
        ray.shutdown()
