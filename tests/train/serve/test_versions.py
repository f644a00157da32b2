"""Which versions are served while folders come and go, without a server."""

import gc
import shutil
import weakref

import numpy as np
import pytest
import tensorflow as tf

from train.serve import versions
from train.serve.versions import Models


class Times(tf.Module):
    """Multiplies by a number."""

    def __init__(self, number):
        super().__init__()
        self.number = tf.Variable(number)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "value")])
    def times(self, value):
        return {"product": self.number * value}


def publish(folder, version, number):
    module = Times(number)
    draft = folder.parent / "draft"
    tf.saved_model.save(module, str(draft), {"serving_default": module.times})
    (folder / "times").mkdir(exist_ok=True)
    draft.rename(folder / "times" / version)


def product(models, version=None):
    inputs = {"value": np.array([2, 3], np.float32)}
    return models.find("times", version).run("serving_default", inputs)["product"].tolist()


def states(models):
    found = models.status("times")["model_version_status"]
    return [(entry["version"], entry["state"]) for entry in found]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "saved_models").mkdir()
    publish(tmp_path / "saved_models", "1", 5.0)
    return tmp_path / "saved_models"


@pytest.fixture
def no_chance():
    """Python itself frees no cycles meanwhile."""
    gc.disable()
    yield
    gc.enable()


def test_the_highest_version_answers_and_the_one_before_is_freed(folder, no_chance):
    models = Models(folder)
    old = models.find("times")
    weight = weakref.ref(old._loaded.number.handle)
    publish(folder, "10", 7.0)
    publish(folder, "9", 11.0)
    models.update()
    assert product(models) == [14.0, 21.0] and states(models) == [("10", "AVAILABLE"), ("1", "END")]
    with pytest.raises(LookupError, match=r"Servable not found for request: Specific\(times, 1\)"):
        models.find("times", 1)
    inputs = {"value": np.array([2], np.float32)}
    assert old.run("serving_default", inputs)["product"] == [10.0]  # a request that began with it
    del old
    models.update()
    assert weight() is None


def test_models_answer_while_the_folder_is_gone(folder):
    models = Models(folder)
    folder.rename(folder.parent / "elsewhere")
    with pytest.raises(FileNotFoundError):
        models.update()
    assert product(models) == [10.0, 15.0] and states(models) == [("1", "AVAILABLE")]
    (folder.parent / "elsewhere").rename(folder)
    publish(folder, "2", 7.0)
    models.update()
    assert product(models) == [14.0, 21.0]


def test_several_versions_answer_where_asked_for(folder):
    publish(folder, "2", 7.0)
    publish(folder, "3", 11.0)
    models = Models(folder, num_versions=2)
    assert product(models, 3) == [22.0, 33.0] and product(models, 2) == [14.0, 21.0]
    with pytest.raises(LookupError):
        models.find("times", 1)
    shutil.rmtree(folder / "times" / "3")
    models.update()
    assert product(models) == [14.0, 21.0] and product(models, 1) == [10.0, 15.0]


def test_a_damaged_version_leaves_the_others_alone_until_it_is_mended(folder):
    models = Models(folder)
    publish(folder, "2", 7.0)
    graph = folder / "times" / "2" / "saved_model.pb"
    content = graph.read_bytes()
    graph.write_bytes(content[:99])
    for _ in range(2):
        models.update()
        assert product(models) == [10.0, 15.0]
        assert states(models) == [("2", "END"), ("1", "AVAILABLE")]
    [damaged] = models.status("times", 2)["model_version_status"]
    assert damaged["status"]["error_code"] == "UNKNOWN" and damaged["status"]["error_message"]
    graph.write_bytes(content)
    models.update()
    assert product(models) == [14.0, 21.0]


def test_what_is_no_version_is_not_served(folder):
    for name in ("times/x", "times/-1", "times/.2", ".hidden/1", "a b/1"):
        shutil.copytree(folder / "times" / "1", folder / name)
    models = Models(folder)
    assert models.names() == ["times"] and states(models) == [("1", "AVAILABLE")]
    shutil.rmtree(folder / "times")
    models.update()
    assert models.names() == [] and states(models) == [("1", "END")]


@pytest.mark.parametrize("good", ["1", "2"])
def test_in_place_of_a_damaged_version_the_next_older_one_is_served(folder, good):
    """Also at the start, and where the older one is as new to the server."""
    models = Models(folder) if good == "2" else None
    publish(folder, "2", 7.0)
    publish(folder, "3", 11.0)
    for version in {"2", "3"} - {good}:
        (folder / "times" / version / "saved_model.pb").write_bytes(b"x")
    if models is None:
        models = Models(folder)
    models.update()
    assert product(models) == ([14.0, 21.0] if good == "2" else [10.0, 15.0])
    assert ("3", "END") in states(models)


def test_a_version_whose_files_cannot_be_seen_leaves_the_others_alone(folder, monkeypatch, caplog):
    publish(folder, "2", 7.0)
    seen = versions.fingerprint

    def fingerprint(path):
        if path.name == "2":
            raise PermissionError(f"{path} may not be searched")
        return seen(path)

    monkeypatch.setattr(versions, "fingerprint", fingerprint)
    models = Models(folder)
    assert product(models) == [10.0, 15.0] and ("2", "END") in states(models)
    assert "may not be searched" in caplog.text
    monkeypatch.undo()
    models.update()
    assert product(models) == [14.0, 21.0]
