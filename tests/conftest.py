"""What all tests share: the same random numbers each time, and the public data."""

import pathlib

import keras
import pytest

DATA = pathlib.Path(__file__).parents[2] / "shared" / "data"


# Files of minutes, begun first: two processes take one file after the other.
LONG = ("layers/test_backends.py", "train/test_workers.py", "training/test_on_jax.py")


def pytest_collection_modifyitems(config, items):
    """Begins with the long files; `-m "not slow"` leaves the very long tests out, too."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))
    if "soak" not in config.getoption("markexpr"):
        soak = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


@pytest.fixture(autouse=True)
def same_random_numbers():
    keras.utils.set_random_seed(7)


@pytest.fixture(scope="session")
def data():
    """The folder of public corpora beside the repository."""
    if not DATA.is_dir():
        pytest.skip(f"needs the corpora in {DATA}")
    return DATA
