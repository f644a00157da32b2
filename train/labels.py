"""The names of the labels that a run has learned, and texts that must have them."""

import json
import zlib

from keras_transformer.data import LabelledBatches
from keras_transformer.files import DamagedFile, whole
from train.recovery import AGAIN

LABELS = "labels.json"


def save_labels(run):
    """Keeps the names of the labels that a run has learned beside its model."""
    config = run.config()
    batches = LabelledBatches.load(run.tokens_file, config.tokens_per_batch)
    labels = {"names": batches.names, "several": batches.several}
    labels["checksum"] = zlib.crc32(json.dumps(labels).encode())
    with whole(run.path / LABELS) as draft:
        draft.write_text(json.dumps(labels) + "\n")


def labels_of(run):
    run.config()  # says so if the folder holds no run
    path = run.path / LABELS
    if not path.exists():
        raise ValueError(f"{run.path} holds no finished run: there is no {path.name}.")
    try:
        kept = json.loads(path.read_text())
        labels = {name: kept[name] for name in ("names", "several")}
        if kept.get("checksum") not in (None, zlib.crc32(json.dumps(labels).encode())):
            raise ValueError("its checksum is another one")
        return labels
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{path} is damaged: {error}. {AGAIN}") from None


def has_several(text):
    """Whether there are texts with several labels, or none."""
    return any(len(labels) != 1 for labels in text.labels)


def check_number(text, several):
    """Raises ValueError if a text has not one label where the model gives each text one."""
    if not several and has_several(text):
        wrong = next(i for i, labels in enumerate(text.labels) if len(labels) != 1)
        raise ValueError(
            "This model gives each text one label: evaluation texts must each have exactly one. "
            f"Received: {len(text.labels[wrong])} labels of {text.texts[wrong][:80]!r}."
        )


def check_names(names, text):
    """Raises ValueError if a run has learned other labels than those of today's text."""
    if names != text.names:
        raise ValueError(
            f"This run has learned the labels {names}. Give it texts with these, or choose "
            f"another --run. Received: {text.names}."
        )
