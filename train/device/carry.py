"""Collects the packages that `python -m train.device` needs and a GPU machine may lack.

    python -m train.device.carry --python 3.12 carried

Run it on a machine with a network, copy the folder, and put it on PYTHONPATH:

    PYTHONPATH=carried python -m train.device
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

# Without what they require: JAX and NumPy are there, TensorFlow is not needed.
PACKAGES = (
    "keras>=3.12,<3.16", "keras-hub>=0.32,<0.33", "kagglehub", "kagglesdk", "optree", "namex",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
MOST_BYTES = 64 * 2**20


def collect(folder, python, platforms=PLATFORMS, packages=PACKAGES):
    """Unpacks the packages for a version of Python into a new folder; returns their bytes.

    Raises:
        ValueError: in one line, if the folder exists, pip fails, or they are too large.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists. Delete it, or name another folder")
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent) as draft:
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
            f"--python-version={python}", "--implementation=cp", f"--target={draft}/packages",
            *(f"--platform={name}" for name in platforms), *packages,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise ValueError(f"pip could not collect the packages: {lines[-1]}")
        packages = pathlib.Path(draft, "packages")
        size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
        if size > MOST_BYTES:
            raise ValueError(f"the packages take {size / 2**20:.0f} MiB, of at most 64")
        packages.rename(folder)
    return size


def main(arguments=None):
    parser = argparse.ArgumentParser(
        "python -m train.device.carry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=pathlib.Path, help="new folder for the packages")
    parser.add_argument("--python", default="3.12", help="of that machine; default: 3.12")
    options = parser.parse_args(arguments)
    try:
        size = collect(options.folder, options.python)
    except ValueError as error:
        print(f"error: {error}.", file=sys.stderr)
        sys.exit(2)
    print(f"{options.folder}: {size / 2**20:.0f} MiB. Copy it, and put it on PYTHONPATH.")


if __name__ == "__main__":
    main()
