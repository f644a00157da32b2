"""A command end to end: it is killed, resumes, exports, and the export answers."""

import os
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.serving import RunFolder, Translator
from keras_transformer.serving.publishing.c_api import ask
from train import translation
from train.progress import read_log

from .conftest import SETTINGS

# The command, killed once it has saved step 6 and gone on.
KILLED = """
import os, sys, time, keras
from train import translation

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == 7:
            while not os.path.exists(sys.argv[-1] + "/checkpoints/step-6.npz"):
                time.sleep(0.01)
            os.kill(os.getpid(), 9)

import train.loop
train.loop.StopOnNonFiniteLoss = Kill
translation.main(sys.argv[1:])
"""


def test_a_killed_command_resumes_to_the_same_weights_and_is_exported(
    text, tmp_path, capsys, unchecked_exports
):
    trained, run = tmp_path / "whole", tmp_path / "interrupted"
    flags = [*text[:2], *text[4:6], *SETTINGS, "--steps=11", "--run"]
    command = [sys.executable, "-c", KILLED, *flags, str(run)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    killed = subprocess.run(command, env=environment, timeout=900, check=False)
    assert killed.returncode == -9
    translation.main([*flags, str(run)])
    assert "Resuming from step 6 of 11." in capsys.readouterr().out
    translation.main([*flags, str(trained)])
    models = RunFolder(run).model(), RunFolder(trained).model()
    for one, other in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    # An epoch that was interrupted counts as a whole.
    ours, theirs = (read_log(path / "history.csv") for path in (run, trained))
    assert len(ours) == len(theirs) > 1
    for epoch, row in ours.items():
        row.pop("tokens_per_second")
        assert row == pytest.approx({name: theirs[epoch][name] for name in row}, rel=1e-6)
    capsys.readouterr()
    place = ["--directory", str(tmp_path), "--name=reverser"]
    translation.main(["export", "--run", str(run), *place])
    assert capsys.readouterr().out == f"Published {tmp_path}/reverser/1.\n"
    [answer] = ask(tmp_path / "reverser" / "1", [{"inputs": {"text": ["abc", "fe"]}}])
    expected = Translator.load(run)(["abc", "fe"])
    assert answer["outputs"]["translation"] == expected and all(expected)
