"""What all tests share: the same random numbers each time, and the public data."""

import pathlib

import keras
import pytest

DATA = pathlib.Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config):
    config.addinivalue_line("markers", "other_backend: runs tests again in a process of its own")
    config.addinivalue_line("markers", "soak: takes long; pytest -m soak runs them")


@pytest.fixture(autouse=True)
def same_random_numbers():
    keras.utils.set_random_seed(7)


@pytest.fixture(scope="session")
def data():
    """The folder of public corpora beside the repository."""
    if not DATA.is_dir():
        pytest.skip(f"needs the corpora in {DATA}")
    return DATA
