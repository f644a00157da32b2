"""A command end to end: it is killed, resumes, exports, and the export answers."""

import os
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.serving import RunFolder, Translator
from keras_transformer.serving.publishing.c_api import ask
from train import translation
from train.progress import read_epochs

from .conftest import SETTINGS


def test_a_killed_command_resumes_to_the_same_weights_and_is_exported(text, tmp_path, capsys):
    trained = tmp_path / "whole"
    translation.main([*text, *SETTINGS, "--steps=11", "--bleu-every=2", "--run", str(trained)])
    run = tmp_path / "interrupted"
    command = [sys.executable, "-m", "train.translation", *text, *SETTINGS, "--steps=11"]
    command += ["--bleu-every=2", "--run", str(run)]
    # The second process is killed once it has saved step 6 and gone on.
    code = (
        "import os, sys, time, keras\n"
        "from train import translation\n"
        "class Kill(keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n"
        "        if int(self.model.optimizer.iterations.numpy()) != 7: return\n"
        "        saved = sys.argv[-1] + '/checkpoints/step-6.npz'\n"
        "        while not os.path.exists(saved): time.sleep(0.01)\n"
        "        os.kill(os.getpid(), 9)\n"
        "import train.loop\n"
        "train.loop.StopOnNonFiniteLoss = Kill\n"
        "translation.main(sys.argv[1:])\n"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    killed = subprocess.run(
        [sys.executable, "-c", code, *command[3:]], env=environment, timeout=900, check=False
    )
    assert killed.returncode == -9
    done = subprocess.run(command, env=environment, timeout=900, capture_output=True, check=True)
    assert b"Resuming from step 6 of 11." in done.stdout
    models = RunFolder(run).model(), RunFolder(trained).model()
    for one, other in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    # An epoch that was interrupted counts as a whole.
    ours, theirs = (read_epochs(path / "history.csv") for path in (run, trained))
    assert len(ours) == len(theirs) > 1
    for epoch, row in ours.items():
        row.pop("tokens_per_second")
        assert row == pytest.approx({name: theirs[epoch][name] for name in row}, rel=1e-6)
    capsys.readouterr()
    place = ["--directory", str(tmp_path), "--name=reverser"]
    translation.main(["export", "--run", str(run), *place])  # checked by a process of its own
    assert capsys.readouterr().out == f"Published {tmp_path}/reverser/1.\n"
    [answer] = ask(tmp_path / "reverser" / "1", [{"inputs": {"text": ["abc", "fe"]}}])
    expected = Translator.load(run)(["abc", "fe"])
    assert answer["outputs"]["translation"] == expected and all(expected)
