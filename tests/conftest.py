"""What all tests share: the same random numbers each time, and the public data."""

import gzip
import os
import pathlib

import keras
import pytest

from train.demo.corpus import demo_corpus

collect_ignore = ["convert/record_opennmt.py"]  # a script for an environment of its own

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
def data(tmp_path_factory):
    """A folder with parallel text: multi30k/{train,val}.{en,de}.gz and tatoeba/eng-fra-5000.tsv.

    Generated sentences, with few words and clean spelling. KERAS_TRANSFORMER_DATA names a folder
    with the public corpora instead: with these the tests show the same of rare characters,
    misspellings and sentences of all lengths.
    """
    if "KERAS_TRANSFORMER_DATA" in os.environ:
        return pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"])
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    (folder / "tatoeba").mkdir()
    corpus = demo_corpus(5000)
    for name, start, stop in (("val", 0, 1014), ("train", 1014, 5000)):
        for language, side in (("en", corpus.sources), ("de", corpus.targets)):
            with gzip.open(
                folder / "multi30k" / f"{name}.{language}.gz", "wt", encoding="utf-8"
            ) as f:
                f.write("\n".join(side[start:stop]) + "\n")
    pairs = zip(*corpus, strict=True)
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (folder / "tatoeba" / "eng-fra-5000.tsv").write_text(lines, "utf-8")
    return folder
