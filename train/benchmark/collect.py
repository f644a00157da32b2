"""Collects what `train.benchmark --backend jax` needs on a GPU machine without a network.

Run it on a machine that has one. It puts wheels into a folder, for the other machine's version of
Python, on Linux and x86-64: Keras, KerasHub and what these and the command need beside JAX with
CUDA and NumPy, which must be there already, as PyTorch for comparison. Copy the folder with the
checkout; docs/device.md has the two lines that run it there.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys

MAX_MIB = 64  # of the wheels and the checkout
REPOSITORY = pathlib.Path(__file__).parents[2]
# These also require what the other machine has, or TensorFlow, which the benchmark does not need.
WITHOUT_REQUIREMENTS = ("keras>=3.12,<3.16", "keras-hub>=0.32,<0.33", "h5py", "tokenizers")
# What they need beside JAX and NumPy, and what the commands in train/ need.
WITH_REQUIREMENTS = (
    "absl-py", "filelock>=3.24,<5", "namex", "optree", "packaging", "pydantic>=2.12,<3",
    "pyyaml>=6,<7", "regex", "rich>=13,<16",
)  # fmt: skip
# Names by which the benchmark imports what it cannot do without, on any backend.
IMPORTED = ("numpy", "keras", "h5py", "rich", "filelock", "yaml", "pydantic")


def missing_packages():
    """Which of `IMPORTED` are not installed, a list."""
    return [name for name in IMPORTED if importlib.util.find_spec(name) is None]


def collect(folder, python="3.12", pip=(sys.executable, "-m", "pip")):
    """Puts the wheels into a folder.

    Args:
        folder: where to; it is created.
        python: the other machine's version of Python.
        pip: the command that downloads, a sequence.

    Returns:
        The number of wheels, and the size of these and the checkout in MiB.

    Raises:
        ValueError: if pip does not find something, or that is too much.
    """
    platform = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "2014")]
    options = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    command = [*pip, "download", "--quiet", f"--dest={folder}", *options, *platform]
    for packages in (["--no-deps", *WITHOUT_REQUIREMENTS], WITH_REQUIREMENTS):
        done = subprocess.run([*command, *packages], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            reason = errors[-1] if errors else f"exit code {done.returncode}"
            raise ValueError(f"pip collected no wheels for Python {python}. Received: {reason}")
    wheels = sorted(pathlib.Path(folder).glob("*.whl"))
    mib = sum(path.stat().st_size for path in {*wheels, *checkout()}) / 2**20
    if mib > MAX_MIB:
        raise ValueError(
            f"The wheels in {folder} and the checkout must not be larger than {MAX_MIB} MiB "
            f"together. Remove wheels of earlier versions. Received: {mib:.1f} MiB."
        )
    return len(wheels), mib


def checkout():
    """The files of this checkout that are not ignored, a list; empty if it is no repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout
    paths = [REPOSITORY / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m train.benchmark collect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="where to put the wheels")
    parser.add_argument(
        "--python", default="3.12", help="the other machine's version of Python (default: 3.12)"
    )
    options = parser.parse_args(arguments)
    try:
        count, mib = collect(options.folder, options.python)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{count} wheels in {options.folder}; with this checkout {mib:.1f} MiB")
