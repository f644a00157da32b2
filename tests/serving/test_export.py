import importlib
import os
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import files
from keras_transformer.serving import Translator
from keras_transformer.serving.publishing import c_api
from keras_transformer.serving.publishing.export import (
    BATCHING_FILE,
    HARD_TEXTS,
    WARM_UP_FILE,
    _publish,
)

from .conftest import SENTENCES, SETTINGS
from .exporting import Echo
from .test_warmup import read_log

pytestmark = pytest.mark.slow


def table_translator(tokenizer, scores=None):
    """A model of one table: the next token depends on the last one only."""
    table = tf.Variable(tf.random.stateless_normal([307, 307], [2, 3]))
    scores = scores or (lambda token_ids: tf.gather(table, token_ids))

    def step(memory, token_ids, parents, position, cache):
        newest = tf.cast(token_ids, tf.float32)[:, :, None]  # the cache: all earlier tokens
        past = tf.gather(cache, parents, batch_dims=1)
        return scores(token_ids), tf.concat([past, newest], axis=2)

    def start_cache(memory, num_beams):
        return tf.zeros([tf.shape(memory)[0], num_beams, 0])

    model = types.SimpleNamespace(
        weights=[table],
        encode=lambda source_ids: source_ids > 0,
        start_cache=start_cache,
        step=step,
        logits=lambda source_ids, target_ids: scores(target_ids),
    )
    return Translator(model, tokenizer, settings=SETTINGS)


def test_an_export_is_a_version_with_all_that_serving_reads(exported_translator):
    exported = exported_translator
    assert exported.endswith(os.path.join("tiny", "1"))
    for file in ("saved_model.pb", "variables/variables.index", BATCHING_FILE, WARM_UP_FILE):
        assert os.path.isfile(os.path.join(exported, file)), file
    root = os.path.dirname(os.path.dirname(exported))
    assert os.listdir(root) == ["tiny"], "a temporary folder was left behind"
    with open(os.path.join(exported, BATCHING_FILE)) as file:
        assert "max_batch_size { value: 32 }" in file.read()


def test_a_fresh_process_answers_hard_texts_and_warm_up_requests_as_the_model_does(
    exported_translator, translator
):
    long = b"A dog runs in the park. " * 50_000  # which is cut before it is tokenised
    texts = [SENTENCES[2].encode(), b"A dog.", *HARD_TEXTS, long]
    outputs = translator.signatures["serving_default"](tf.constant(texts))
    requests = [{"inputs": {"text": texts}}, *warm_up_requests(exported_translator)]
    answer, *others = c_api.ask(exported_translator, requests)
    translations = [text.decode() for text in outputs["translation"].numpy()]
    assert answer["outputs"]["translation"] == translations
    assert answer["outputs"]["translation"][1:2] == translator(["A dog."])
    assert answer["outputs"]["truncated"] == outputs["truncated"].numpy().tolist()
    assert answer["outputs"]["truncated"][-2:] == [True, True]
    np.testing.assert_allclose(answer["outputs"]["score"], outputs["score"], rtol=1e-4)
    assert len(others) == 3
    assert all("outputs" in each for each in others)


def warm_up_requests(exported):
    """As the bare process takes them, those that TensorFlow Serving would replay."""
    records = tf.data.TFRecordDataset(os.path.join(exported, WARM_UP_FILE))
    requests = []
    for record in records:
        name, signature, inputs = read_log(record.numpy())
        assert name == "tiny"
        inputs = {key: values.tolist() for key, values in inputs.items()}
        requests.append({"signature_name": signature, "inputs": inputs})
    return requests


def test_bfloat16_weights_take_half_the_room(exported_translator, half_translator, tmp_path):
    path = half_translator.export(tmp_path, "half", SENTENCES[:1])
    data = "variables/variables.data-00000-of-00001"
    sizes = [os.path.getsize(os.path.join(folder, data)) for folder in (path, exported_translator)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("kind", ["mounted disk", "link to an empty folder"])
def test_the_folder_of_a_model_may_be_a(kind, tmp_path):
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    if kind == "mounted disk":
        mount = ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", folder]
        if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a disk")
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    try:
        for version in ("1", "2"):
            path = Echo().export(tmp_path / "models", "tiny")
            assert path == str(folder / version)
        assert sorted(os.listdir(folder)) == ["1", "2"], "no draft is left"
    finally:
        if kind == "mounted disk":
            subprocess.run(["umount", folder], check=True)


def test_versions_count_up_and_are_never_replaced(tmp_path):
    target = tmp_path / "demo"

    def draft(content):
        folder = tmp_path / "draft" / "demo" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "saved_model.pb").write_text(content)
        return folder

    for expected in ("1", "2"):
        assert _publish(draft(expected), target) == str(target / expected)
    (target / "9").mkdir()
    (target / "notes").mkdir()
    assert _publish(draft("10"), target) == str(target / "10")
    for version in ("1", "2", "10"):
        assert (target / version / "saved_model.pb").read_text() == version
    (tmp_path / "empty").mkdir()
    assert _publish(draft("1"), tmp_path / "empty") == str(tmp_path / "empty" / "1")


def test_an_export_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    module = importlib.import_module("keras_transformer.serving.publishing.export")
    calls, flush, rename = [], files.flush, os.rename
    for place in (files, module):
        monkeypatch.setattr(place, "flush", lambda path: calls.append(str(path)) or flush(path))
    monkeypatch.setattr(module, "validate", lambda draft, *_: calls.append(str(draft)))
    monkeypatch.setattr(os, "rename", lambda *paths: rename(*paths) or calls.append("named"))
    for version in "12":
        calls.clear()
        assert Echo().export(tmp_path, "echo").endswith(f"echo/{version}")
        draft, before = calls[0], calls[: calls.index("named")]
        published = tmp_path / "echo" / version
        for file in published.rglob("*"):
            path = os.path.join(draft, file.relative_to(published))
            assert {path, f"{path}/."} & set(before), "each file and each folder"
        assert {f"{draft}/.", f"{os.path.dirname(draft)}/."} <= set(before)
        assert set(calls[calls.index("named") + 1 :]) == {str(tmp_path), str(tmp_path / "echo")}


def test_a_failed_check_publishes_nothing_and_gives_the_reason(tokenizer, tmp_path):
    def with_python(token_ids):
        scores = tf.py_function(lambda ids: tf.one_hot(ids, 307), [token_ids], tf.float32)
        return tf.ensure_shape(scores, [*token_ids.shape, 307])

    with pytest.raises(
        RuntimeError, match=r"demo was not published. .*EagerPyFunc .* calls Python"
    ):
        table_translator(tokenizer, with_python).export(tmp_path, "demo")
    assert os.listdir(tmp_path) == []


def test_a_model_of_any_functions_can_be_exported(tokenizer, tmp_path):
    path = table_translator(tokenizer).export(tmp_path, "demo")
    assert path == str(tmp_path / "demo" / "1")


def test_invalid_names_and_examples_are_refused(translator, tmp_path):
    for name in ("", "../demo", ".hidden", "a b"):
        with pytest.raises(ValueError, match="name must be a plain folder name"):
            translator.export(tmp_path, name)
    for examples in ([], "one text"):
        with pytest.raises(ValueError, match="examples must be a list"):
            translator.export(tmp_path, "demo", examples)
    for hostile in "[]*?\\":
        with pytest.raises(ValueError, match=r"directory must be a path without \[, \], \*, \?"):
            translator.export(tmp_path / f"a{hostile}b" / "models", "demo")
    assert os.listdir(tmp_path) == []
