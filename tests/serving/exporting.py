"""Exports for processes of their own, which a test kills."""

import types

import tensorflow as tf

from keras_transformer.serving.publishing.export import draft_folder
from keras_transformer.serving.served_model import TEXT, ServedModel, Signature


class Echo(ServedModel):
    """The smallest model that can be exported; `wait` is called before it is checked."""

    def __init__(self, wait=lambda: None):
        super().__init__(types.SimpleNamespace(weights=[]), tokenizer=None)
        self.wait = wait

    def _signatures(self):
        return {"serving_default": Signature(self.echo, {"text": TEXT}, {"echo": ()})}

    def echo(self, text):
        # As all outputs, in UTF-8, which JSON needs.
        return {"echo": tf.strings.unicode_transcode(text + text, "UTF-8", "UTF-8")}

    def warm_up_requests(self, texts):
        self.wait()
        return super().warm_up_requests(texts)


def export_slowly(directory, name, has_begun, may_end):
    """One export, which waits in its middle for the event `may_end`."""

    def wait():
        has_begun.set()
        assert may_end.wait(600)

    Echo(wait).export(directory, name)


def export_for_ever(directory, name, has_begun):
    tf.constant(0)  # TensorFlow is up: from now on there are exports
    has_begun.set()
    while True:
        Echo().export(directory, name)


def work_for_ever(directory, name, has_begun):
    """Drafts that take no time, so that a kill meets the making and removing of their folders."""
    has_begun.set()
    while True:
        with draft_folder(directory, name) as folder, open(f"{folder}/draft", "w") as file:
            file.write("half")
