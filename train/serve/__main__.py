"""Serves a folder of SavedModels over TensorFlow Serving's REST API, on Ray Serve.

    pip install -e '.[serve]'
    python -m train.serve saved_models
    curl -d '{"instances": ["It is ten past six."]}' http://localhost:8501/v1/models/demo:predict

http://localhost:8501/ is a page to try the models. New versions are served as soon as they are
loaded. With RAY_ADDRESS=auto the replicas run on the machines of a running Ray cluster.
"""

import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys

from ..command import one_line_errors, without_start_up_notes
from ..launch.on_ray import check_listens, gpus_of_a_worker
from ..settings import Parser, Settings, import_modules, setting


class ServeOptions(Settings):
    """Flags of the server."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all networks")
    port: int = setting(8501, "HTTP port", ge=1, le=65535)
    replicas: int = setting(
        1, "processes that answer; each loads all models, and new versions by itself", ge=1
    )
    gpus_per_replica: int = setting(0, "GPUs per replica", ge=0)
    num_versions: int = setting(1, "number of versions to serve per model, the highest", ge=1)
    poll_seconds: float = setting(1.0, "seconds between checks for new versions", gt=0)
    max_batch_rows: int = setting(32, "maximum rows that are answered together", ge=1)
    batch_seconds: float = setting(0.002, "seconds that a request waits for others", ge=0)
    runs: str = setting(
        "runs", "folder of runs; a run with the name of a model lets the page show its attention"
    )
    metrics_port: int = setting(
        8502, "port of Prometheus metrics; a running Ray cluster has its own", ge=1, le=65535
    )


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="python -m train.serve", description=__doc__)
    parser.add_argument("folder", help="folder of NAME/VERSION/saved_model.pb, as from `export`")
    given_in = parser.add_settings(ServeOptions)
    parser.add_imports()
    flags = parser.parse_args(arguments)
    with one_line_errors("Stopped."):
        options = ServeOptions(**given_in(flags))
        folder = check_folder(flags.folder)
        check_port(options.host, options.port)
        if is_own_cluster():
            check_port("", options.metrics_port)
        run(folder, options, flags.imports)


def is_own_cluster():
    """Whether this command starts a cluster, of this machine alone, instead of joining one."""
    return os.environ.get("RAY_ADDRESS") in (None, "", "local")


def check_folder(folder):
    """The absolute path of a folder of models.

    Raises:
        ValueError: if no model is in it.
    """
    path = pathlib.Path(folder).resolve()
    if not any(path.glob("*/*/saved_model.pb")):
        raise ValueError(f"{folder} holds no model. Expected: NAME/VERSION/saved_model.pb.")
    return str(path)


def check_port(host, port):
    """Raises ValueError if another process listens on a port; Ray would fail halfway."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ValueError(f"Cannot listen on {host}:{port}: {error.strerror}.") from None


REAPER = """
import os, sys
sys.stdin.read()
for process in sys.argv[1:]:
    try:
        os.kill(int(process), 9)
    except OSError:  # it has ended
        pass
"""


def start_reaper():
    """Starts a process that kills Ray's when this one ends without having killed the reaper.

    If this process is killed, Ray ends its processes with it, but for two agents.
    """
    import psutil  # Ray has it

    processes = [str(child.pid) for child in psutil.Process().children(recursive=True)]
    command = [sys.executable, "-S", "-c", REAPER, *processes]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def run(folder, options, imports):
    """Serves until SIGINT or SIGTERM; every replica imports the modules with these names."""
    if is_own_cluster():
        # Ray reads this when it is imported: it keeps a cluster of one machine on 127.0.0.1.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ImportError(f"Serving needs `pip install -e '.[serve]'`: {error}.") from None
    with without_start_up_notes():
        from .app import Server
    import_modules(imports)  # here, too: it names those that do not exist

    def stop(*_):
        raise KeyboardInterrupt

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no usage statistics
    os.environ.setdefault("RAY_metrics_report_interval_ms", "2000")
    # Ray has a public name for this port only in `ray start`; the metrics test guards it.
    own = {"include_dashboard": False, "_metrics_export_port": options.metrics_port}
    # "local": without an address Ray joins whatever cluster was started last on this machine.
    own = {"address": "local", **own} if is_own_cluster() else {}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if not own:
        check_listens(os.environ["RAY_ADDRESS"])
    ray.init(log_to_driver=False, logging_level="warning", **own)
    signal.signal(signal.SIGTERM, stop)  # after Ray has set its own handler
    reaper, is_deployed = None, False
    try:
        reaper = start_reaper() if own else None
        # Ray would wait forever for GPUs that there are not.
        machines = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
        gpus_of_a_worker(machines, options.replicas, options.gpus_per_replica, of="replica")
        quiet = {"log_level": "WARNING", "enable_access_log": False}
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": options.host, "port": options.port},
            logging_config=quiet,
        )
        # Not one core each: Ray would wait forever if there were more replicas than cores.
        resources = {"num_cpus": 0, "num_gpus": options.gpus_per_replica}
        server = Server.options(num_replicas=options.replicas, ray_actor_options=resources)
        is_deployed = True  # at least begun
        serve.run(
            server.bind(
                folder,
                options.num_versions,
                options.poll_seconds,
                options.max_batch_rows,
                options.batch_seconds,
                str(pathlib.Path(options.runs).resolve()),
                imports,
            ),
            name="models",
            logging_config=quiet,
        )
        print(f"Serving {folder} on http://{options.host}:{options.port}/", flush=True)
        signal.pause()
    finally:
        if reaper:
            reaper.kill()
        if own:
            serve.shutdown()
        elif is_deployed:  # a shutdown would delete everybody's applications
            serve.delete("models")
        ray.shutdown()


if __name__ == "__main__":
    main()
