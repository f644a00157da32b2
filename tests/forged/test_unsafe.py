"""Nothing in a file is run: neither a pickle nor a function in a model of Keras."""

import pathlib
import pickle

import keras
import numpy as np
import pytest

from keras_transformer.convert import ConversionError
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.files import DamagedFile, load_arrays
from keras_transformer.serving import RunFolder


class Touch:
    """Makes a file as soon as it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_a_pickle_in_an_archive_is_not_unpickled(tmp_path):
    objects = np.array([Touch(tmp_path / "made")], object)
    np.savez(tmp_path / "arrays.npz", ids=objects, allow_pickle=True)
    with pytest.raises(DamagedFile, match=r"arrays of type object are never written"):
        load_arrays(tmp_path / "arrays.npz")
    assert not (tmp_path / "made").exists()


def test_a_function_in_a_model_file_is_not_run(tmp_path):
    inputs, made = keras.Input((3,)), tmp_path / "made"
    touch = keras.layers.Lambda(
        lambda x, path=str(made): (__import__("pathlib").Path(path).touch(), x)[1],
        output_shape=(3,),
    )
    keras.Model(inputs, touch(inputs)).save(tmp_path / "model.keras")
    made.unlink(missing_ok=True)
    (tmp_path / "config.json").write_text('{"format": 1}')
    with pytest.raises(
        DamagedFile, match=r"model.keras holds no model that can be loaded: .*[Ll]ambda"
    ):
        RunFolder(tmp_path).model()
    assert not made.exists()


@pytest.mark.oracle
def test_a_pickle_in_weights_of_torch_is_not_unpickled(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text("{}")
    content = pickle.dumps({"weight": Touch(tmp_path / "made")})
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ConversionError, match=r"pytorch_model.bin is damaged"):
        ModelFolder(tmp_path).arrays()
    assert not (tmp_path / "made").exists()
