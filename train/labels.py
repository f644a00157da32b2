"""The names of the labels that a run has learned, and texts that must have them."""

import json
import zlib

from keras_transformer.data import LabelledBatches
from keras_transformer.files import whole
from keras_transformer.serving import RunFolder

LABELS = "labels.json"


def save_labels(run):
    """Keeps the names of the labels that a run has learned beside its model."""
    config = run.config()
    batches = LabelledBatches.load(run.tokens_file, config.tokens_per_batch)
    labels = {"names": batches.names, "multi_label": batches.multi_label}
    labels["checksum"] = zlib.crc32(json.dumps(labels).encode())
    with whole(run.path / LABELS) as draft:
        draft.write_text(json.dumps(labels) + "\n")


def labels_of(run):
    names, multi_label = RunFolder(run.path).labels()
    return {"names": names, "several": multi_label}


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
