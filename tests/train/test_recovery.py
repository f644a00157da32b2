"""Runs that are damaged, killed, started twice or out of room: they end right, or in one line."""

import pathlib
import random
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.data import ParallelText
from keras_transformer.serving import RunFolder
from keras_transformer.tokenizers import SymbolTokenizer
from keras_transformer.tokenizers.sentencepiece import train_sentencepiece
from train import loop, progress, translation
from train.loop import train_run
from train.progress import EpochLog, read_log
from train.run import Run
from train.translation import TranslationConfig, TranslationExperiment

from .conftest import run_eagerly

# Most trainings here take two steps; test_killed_command.py has those of a graph.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]

ROOT = pathlib.Path(__file__).parents[2]
STEPS, EVERY, AVERAGE = 11, 3, 3
CONFIG = TranslationConfig(
    vocabulary_size=280, num_layers=1, hidden_dim=16, intermediate_dim=32, num_heads=2,
    dropout=0.1, tokens_per_batch=300, max_length=24, warmup_steps=5, steps=STEPS,
    checkpoint_every=EVERY, average=AVERAGE, patience=50, shapes=16,
)  # fmt: skip


class Break(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            raise KeyboardInterrupt


def words(seed):
    draw = random.Random(seed)
    sources = ["".join(draw.choices("abcdef", k=draw.randint(1, 7))) for _ in range(211)]
    return ParallelText(sources, [word[::-1] for word in sources])


def train_small(path, break_at=None, text=3, **settings):
    config = CONFIG.replace(**settings)
    experiment = TranslationExperiment(config, (words(text), words(5)))
    if break_at:
        experiment.callbacks = lambda run, tokenizer: [Break(break_at)]
    return train_run(Run(path, TranslationConfig), experiment)


def weights_of(path):
    return RunFolder(path).model().get_weights()


def assert_same_model(path, expected, what):
    for value, weight in zip(weights_of(path), expected, strict=True):
        np.testing.assert_array_equal(value, weight, err_msg=what)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run that is finished and of one that was broken off at step 10."""
    folder = tmp_path_factory.mktemp("runs")
    with run_eagerly(True):
        train_small(folder / "finished")
        with pytest.raises(KeyboardInterrupt):
            train_small(folder / "broken", break_at=10)
    return folder


@pytest.fixture(scope="module")
def expected(runs):
    return weights_of(runs / "finished")


def test_a_broken_run_ends_with_the_weights_of_a_whole_one(runs, expected, tmp_path, capsys):
    run = shutil.copytree(runs / "broken", tmp_path / "run")
    train_small(run)
    assert "Resuming from step 9 of 11." in capsys.readouterr().out
    assert_same_model(run, expected, "bit for bit")
    ours, theirs = (Run(path, TranslationConfig).history() for path in (run, runs / "finished"))
    assert ours["val_loss"] == theirs["val_loss"] and len(ours["loss"]) == len(theirs["loss"])
    ours, theirs = (Run(path, TranslationConfig).losses() for path in (run, runs / "finished"))
    assert ours[2.2] == theirs[2.2] and len(ours) == 11, "one row for each of the 11 steps"


def test_a_run_and_its_parents_may_have_any_name_and_it_may_be_a_link_to_an_empty_folder(
    expected, tmp_path
):
    names = "a[b]c", "* ?\\ \n'\"%{}[]"
    run = tmp_path.joinpath(*names, *names)
    run.parent.mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    run.symlink_to(tmp_path / "disk")
    with pytest.raises(KeyboardInterrupt):
        train_small(run, break_at=4)
    train_small(run)
    assert_same_model(tmp_path / "disk", expected, "bit for bit")


FILES = {
    "broken": [
        "config.json", "tokenizer.model", "checksums.npz", "history.csv",
        "data/manifest.json", "data/source.ids.npy", "data/target.lengths.npy",
        "data/checksums.npz", "plan/order.npy", "plan/plan.json",
        "checkpoints/step-3.npz", "checkpoints/step-6.npz", "checkpoints/step-9.npz",
    ],
    "finished": ["model.keras", "tokenizer.model", "checksums.npz"],
}  # fmt: skip
CASES = [(kind, file) for kind, files in FILES.items() for file in files]
LIKE_OTHERS = (  # damaged only by the soak, which damages all files in all ways
    "data/target.lengths.npy", "data/checksums.npz", "plan/plan.json", "checkpoints/step-3.npz",
    "checkpoints/step-6.npz",
)  # fmt: skip
DAMAGES = ["empty", "cut off", "a bit", "another bit", "a byte", "missing"]


def damage(path, how, draw):
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    if how == "missing":
        return path.unlink()
    if how == "empty":
        content = b""
    elif how == "cut off":
        content = content[:place]
    else:
        content[place] ^= draw.randrange(1, 256) if how == "a byte" else 1 << draw.randrange(8)
    return path.write_bytes(content)


def check_that_it_ends_well(runs, expected, run, kind, file, how, capsys):
    """Ends in the right model, at once or once the file is deleted that a line names."""
    shutil.copytree(runs / kind, run)
    damage(run / file, how, random.Random(f"{kind} {file} {how}"))
    capsys.readouterr()
    try:
        train_small(run)
    except (ValueError, OSError) as error:
        assert "\n" not in str(error)
        place = run / file.partition("/")[0]
        assert str(run if file == "config.json" else place) in str(error)
        if file == "config.json":
            return
        assert place.name in ("data", "plan", "tokenizer.model") and "Delete" in str(error)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        train_small(run)
    printed = capsys.readouterr().out
    averaged = [3, 6, 9, 11][-AVERAGE:]
    mean = ", ".join(map(str, averaged))
    if f"steps {mean}." in printed or "already trained" in printed:
        assert_same_model(run, expected, f"{file} {how}")
    else:  # one of those to be averaged could not be had again
        assert file.startswith("checkpoints/") and file != "checkpoints/step-3.npz"
        if how == "missing":  # so that an older one is still kept
            averaged = [step for step in (3, 6, 9, 11) if str(step) not in file][-AVERAGE:]
        left = [step for step in averaged if str(step) not in file]
        assert f"mean of the checkpoints at steps {', '.join(map(str, left))}." in printed


@pytest.mark.parametrize(("kind", "file"), [case for case in CASES if case[1] not in LIKE_OTHERS])
def test_a_run_with_a_damaged_file_ends_well(runs, expected, tmp_path, kind, file, capsys):
    how = random.Random(file).choice(DAMAGES)
    check_that_it_ends_well(runs, expected, tmp_path / "run", kind, file, how, capsys)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "file"), CASES)
def test_a_run_damaged_in_any_way_ends_well(runs, expected, tmp_path, kind, file, capsys):
    for how in [*DAMAGES, "a third bit", "a fourth bit"]:
        check_that_it_ends_well(runs, expected, tmp_path / how, kind, file, how, capsys)


def test_tokens_are_made_again_only_from_the_same_text(runs, tmp_path):
    for name in ("data", "tokenizer.model"):
        run = shutil.copytree(runs / "broken", tmp_path / name)
        (run / name).rename(tmp_path / f"{name} of before")
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        with pytest.raises(
            ValueError,
            match=rf"{name} is missing.*cannot be made again, because the text is no longer",
        ):
            train_small(run, text=7)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_a_run_is_used_for_needs_its_files_whole(runs, tmp_path, capsys):
    for file in ("model.keras", "tokenizer.model", "config.json"):
        run = shutil.copytree(runs / "finished", tmp_path / file)
        damage(run / file, "cut off", random.Random(3))
        for command in (
            ["translate"],
            ["evaluate", "--source", __file__, "--target", __file__],
            ["export", "--name", "none", "--directory", str(tmp_path / "served")],
        ):
            with pytest.raises(SystemExit):
                translation.main([*command, "--run", str(run)])
            message = capsys.readouterr().err
            assert f"{file} is damaged" in message and message.count("\n") == 1
            assert "again" in message or "restore it" in message, "what to do"


def test_a_damaged_model_without_checkpoints_is_not_trained_anew(runs, tmp_path):
    run = shutil.copytree(runs / "finished", tmp_path / "run")
    damage(run / "model.keras", "cut off", random.Random(3))
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match=r"no checkpoint to rebuild it from. Delete it to"):
        train_small(run)


@pytest.mark.parametrize(
    ("make", "load"),
    [
        (lambda: SymbolTokenizer("abc"), None),
        (lambda: train_sentencepiece(["a b", "b a"], 264), None),
    ],
)
def test_a_damaged_tokenizer_of_any_kind_is_named(tmp_path, make, load):
    from keras_transformer.tokenizers import load_tokenizer

    make().save(tmp_path / "tokenizer.model")
    content = (tmp_path / "tokenizer.model").read_bytes()
    for length in (0, 1, 7, len(content) // 2):
        (tmp_path / "tokenizer.model").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"tokenizer.model is damaged, or holds no tokenizer"):
            load_tokenizer(tmp_path / "tokenizer.model")


def test_an_update_that_is_not_finite_ends_the_run_without_a_model(runs, expected, tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == STEPS:
                weight = self.model.trainable_variables[3]
                weight.assign(weight.value * np.nan)

    experiment = TranslationExperiment(CONFIG, (words(3), words(5)))
    experiment.callbacks = lambda run, tokenizer: [Spoil()]
    run = Run(shutil.copytree(runs / "broken", tmp_path / "run"), TranslationConfig)
    for _ in range(2):  # the same again when it is started again
        with pytest.raises(FloatingPointError, match=r"not finite after step 11, so nothing is"):
            train_run(run, experiment)
        assert not run.model_file.exists()
        assert max(path.name for path in run.checkpoints.iterdir()) == "step-9.npz"
    train_small(run.path)
    assert_same_model(run.path, expected, "as if it had been finite")


def test_the_best_score_outlasts_the_process(tmp_path):
    """A later process measures lower scores: the best model stays."""
    from keras_transformer.training.callbacks import BestScore

    run, scores = Run(tmp_path / "run", TranslationConfig), iter([5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    experiment = TranslationExperiment(CONFIG, (words(3), None))

    def callbacks(break_at):
        best = BestScore(lambda model: next(scores), run.best_model_file, name="val_bleu")
        return lambda run, tokenizer: [best, Break(break_at)]

    experiment.callbacks = callbacks(10)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, experiment)
    before = run.best_model_file.read_bytes()
    experiment.callbacks = callbacks(0)
    train_run(run, experiment)
    assert run.best_model_file.read_bytes() == before
    assert next(scores, None) is not None


def test_a_log_of_epochs_has_each_epoch_once_and_leaves_out_what_it_cannot_read(tmp_path, caplog):
    log = EpochLog(tmp_path / "history.csv")
    for epoch, loss in [(0, 3.0), (1, 2.0), (1, 2.5)]:
        log.on_epoch_end(epoch, {"loss": loss, "rate": 7})
    assert (tmp_path / "history.csv").read_text() == ("epoch,loss,rate\n0,3.0,7.0\n1,2.5,7\n")
    with open(tmp_path / "history.csv", "ab") as file:
        file.write(b"2,1.\xff5,7\n3,1.0\n\x00\n4,0.5,8\n")
    assert read_log(tmp_path / "history.csv") == {
        0: {"loss": 3.0, "rate": 7.0}, 1: {"loss": 2.5, "rate": 7.0}, 4: {"loss": 0.5, "rate": 8.0}
    }  # fmt: skip
    assert "history.csv is damaged: 3 of its rows cannot be read" in caplog.text


def test_rows_of_the_losses_without_a_loss_are_left_out(tmp_path):
    (tmp_path / "losses.csv").write_text("step,epochs,loss\n1,0.2,3.0\n2,0.4,NA\n3,0.6,2.5\n")
    assert Run(tmp_path, TranslationConfig).losses() == {0.2: 3.0, 0.6: 2.5}


def test_a_run_that_cannot_be_made_is_named_before_the_text_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("text")
    flags = ["--tsv=nowhere.tsv", "--run", str(tmp_path / "file" / "run")]
    with pytest.raises(SystemExit):
        translation.main(flags)
    assert "file is not a folder." in capsys.readouterr().err


class FillDisk(keras.callbacks.Callback):
    """Leaves no room from a step on, at the moment that is named."""

    def __init__(self, disk, step, moment):
        super().__init__()
        self.disk, self.step, self.moment = disk, step, moment

    def fill(self):
        with open(self.disk / "fill", "wb") as file:
            file.write(b"0" * shutil.disk_usage(self.disk).free)

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step and self.moment == "batch":
            self.fill()

    def on_epoch_end(self, epoch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) >= self.step and self.moment == "epoch":
            self.fill()


def check_a_full_disk(run, fill, file):
    """Training ends in a line about the file, and leaves no half one."""
    experiment = TranslationExperiment(CONFIG, (words(3), words(5)))
    experiment.callbacks = lambda run, tokenizer: [fill]
    with pytest.raises(OSError, match=rf"{file} could not be written: No space left on device\.$"):
        train_run(Run(run, TranslationConfig), experiment)
    (fill.disk / "fill").unlink()
    assert not list(run.rglob(".draft*"))


def test_a_run_may_be_a_mounted_disk_and_goes_on_once_there_is_room(
    expected, small_disk, monkeypatch
):
    check_a_full_disk(small_disk, FillDisk(small_disk, 4, "batch"), "losses.csv")
    monkeypatch.setattr(progress, "ROWS_OF_A_RUN", 1)
    check_a_full_disk(small_disk, FillDisk(small_disk, 7, "batch"), "step-9.npz")
    train_small(small_disk)
    assert_same_model(small_disk, expected, "as in a folder on a disk that was never full")


def test_a_run_ends_well_on_a_disk_that_is_full_at_its_end(runs, expected, small_disk, monkeypatch):
    run = shutil.copytree(runs / "broken", small_disk / "run")
    check_a_full_disk(run, FillDisk(small_disk, 9, "epoch"), "history.csv")
    fill, average = FillDisk(small_disk, 11, "model"), loop.average_checkpoints
    monkeypatch.setattr(loop, "average_checkpoints", lambda *args: (average(*args), fill.fill())[0])
    check_a_full_disk(run, fill, "model.keras")
    monkeypatch.undo()
    train_small(run)
    assert_same_model(run, expected, "as on a disk that was never full")
