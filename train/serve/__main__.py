"""Serves the newest version of each SavedModel in a folder over TensorFlow Serving's REST API.

    pip install 'keras-transformer-toolkit[serve]'
    keras-transformer serve saved_models
    curl -d '{"instances": ["It is ten past six."]}' http://localhost:8501/v1/models/demo:predict

http://localhost:8501/ is a page to try the models, http://localhost:8501/metrics has metrics for
Prometheus. It is one process on one machine. TensorFlow Serving serves the same folder with
versions that change, on many machines and on GPUs.
"""

import pathlib
import re
import resource
import signal
import socket
import sys

from ..command import one_line_errors, without_start_up_notes
from ..settings import Parser, Settings, import_modules, setting

NAME, VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), re.compile(r"[0-9]{1,18}")
OPEN_FILES = 4096  # at least 1,000 connections; the usual limit of a process is 1,024
SECONDS_TO_STOP = 20  # that running requests have after SIGTERM


class ServeOptions(Settings):
    """Flags of the server."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all networks")
    port: int = setting(8501, "HTTP port", ge=1, le=65535)
    max_batch_rows: int = setting(32, "maximum rows that are answered together", ge=1)
    batch_seconds: float = setting(0.002, "seconds that a request waits for others", ge=0)
    runs: str = setting(
        "runs", "folder of runs; a run with the name of a model lets the page show its attention"
    )


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="keras-transformer serve", description=__doc__)
    parser.add_argument("folder", help="folder of NAME/VERSION/saved_model.pb, as from `export`")
    given_in = parser.add_settings(ServeOptions)
    parser.add_imports()
    flags = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which uvicorn raises once more
    with one_line_errors("Stopped."):
        options = ServeOptions(**given_in(flags))
        paths = newest_versions(flags.folder)
        with bound_socket(options.host, options.port) as listener:
            run(flags.folder, paths, listener, options, flags.imports)


def newest_versions(folder):
    """The path of the newest version of each model in a folder: {name: path}.

    Raises:
        ValueError: if no model is in it.
    """
    found = {}
    for file in pathlib.Path(folder).resolve().glob("*/*/saved_model.pb"):
        name, version = file.parent.parent.name, file.parent.name
        if NAME.fullmatch(name) and VERSION.fullmatch(version):
            found.setdefault(name, []).append(file.parent)
    if not found:
        raise ValueError(f"{folder} holds no model. Expected: NAME/VERSION/saved_model.pb.")
    return {name: max(found[name], key=lambda path: int(path.name)) for name in sorted(found)}


def bound_socket(host, port):
    """A socket for an address; ValueError if another process listens there."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from None
    return listener


def cannot_listen(host, port, error):
    return ValueError(f"Cannot listen on {address_of(host, port)}: {error.strerror}.")


def address_of(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def allow_open_files():
    """Raises this process's limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(folder, paths, listener, options, imports):
    """Serves until SIGINT or SIGTERM.

    Args:
        folder: folder of models.
        paths: from `newest_versions`.
        listener: from `bound_socket`.
        options: `ServeOptions`.
        imports: names of modules that the runs of the models need.
    """
    with without_start_up_notes():
        try:
            import uvicorn

            from .app import make_app
        except ImportError as error:
            needed = "pip install 'keras-transformer-toolkit[serve]'"
            raise ImportError(f"Serving needs `{needed}`: {error}.") from None
        from ..devices import one_thread_each
        from .saved_model import load_models
    one_thread_each()  # before other modules may compute
    import_modules(imports)
    app = make_app(load_models(paths), options.runs, options.max_batch_rows, options.batch_seconds)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SECONDS_TO_STOP,
    )
    allow_open_files()
    try:
        listener.listen(config.backlog)  # from here on clients wait
    except OSError as error:  # another process listens since the models are being loaded
        raise cannot_listen(options.host, options.port, error) from None
    print(f"Serving {folder} on http://{address_of(options.host, options.port)}/", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
