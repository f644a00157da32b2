"""Resuming a run: its lock, its data, and its model if it is finished.

A damaged model is made again from the checkpoints, and what is missing of the data from the same
text. Another damaged file is named, with what to delete.
"""

import contextlib
import logging
import shutil

import filelock

from keras_transformer.data import Prepared
from keras_transformer.data.plan_arrays import PLAN
from keras_transformer.data.prepared import AGAIN as PREPARE_AGAIN
from keras_transformer.files import DamagedFile, draft_of, remove_drafts, this_process
from keras_transformer.serving.run_folder import AGAIN
from keras_transformer.training.checkpoint_files import steps_in
from keras_transformer.training.distribution import from_all_workers, this_worker

from .run import Run

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(run, strategy):
    """Keeps other processes from training in a run's folder; removes drafts of killed processes.

    The operating system releases the lock of a process that is killed.
    """
    lock = filelock.FileLock(run.lock_file, timeout=0)
    is_chief = this_worker(strategy).index == 0
    if is_chief:
        with contextlib.suppress(filelock.Timeout):
            lock.acquire()
    if not all(from_all_workers(strategy, int(lock.is_locked or not is_chief))):
        raise ValueError(
            f"Another process is training in {run.path}. Wait until it ends, or choose "
            "another --run."
        )
    try:
        if is_chief:
            remove_drafts(run.path, of=run.names())
            remove_drafts(run.checkpoints)
            remove_drafts(run.path.parent, of=[run.path.name])
        yield
    finally:
        lock.release()


def finished_model(run, experiment, is_chief):
    """The model of a finished run; None if it has more steps to go, or is damaged but rebuildable.

    Raises:
        DamagedFile: if it is damaged and there is no checkpoint, or as `make_whole`.
    """
    if not run.is_finished(experiment.config):
        return None
    try:
        model = run.model()
    except DamagedFile as error:
        problem = str(error).removesuffix(f" {AGAIN}")
        if not steps_in(run.checkpoints):
            raise DamagedFile(
                f"{problem} There is no checkpoint to rebuild it from. Delete it to "
                "train again, from step 0."
            ) from None
        LOG.warning("%s Rebuilding it from the checkpoints.", problem)
        return None
    if is_chief:
        make_whole(run, experiment)
        print(f"{run.path} is already trained: nothing to do.")
    return model


def begun(run, experiment, strategy, stack):
    """The draft of a new run, which the chief writes; the end of a stack deletes it."""
    draft = run.draft(from_all_workers(strategy, this_process())[0])
    if this_worker(strategy).index == 0:
        stack.callback(shutil.rmtree, draft.path, ignore_errors=True)
        draft.write(experiment)
    from_all_workers(strategy, 0)  # the chief has written it
    return draft


def load_data(run, experiment, strategy):
    """The tokenizer and batches of a run, or of its draft; the chief makes it whole first."""
    is_chief = this_worker(strategy).index == 0

    def load():
        if is_chief:
            make_whole(run, experiment)
        elif experiment.has_own_data:
            experiment.prepared = Prepared(run.data)
        tokenizer = run.tokenizer()
        return tokenizer, experiment.make_batches(tokenizer, run.plan)

    loaded = load() if is_chief else None
    from_all_workers(strategy, 0)  # the chief has written the plan
    return loaded or load()


def make_whole(run, experiment):
    """Opens what a run has of its text, and makes what is missing from the text again.

    Raises:
        ValueError: if the run cannot go on with this --prepared.
        DamagedFile: if a file is damaged, or missing and the text is no longer the same.
    """
    known = run.checksums()
    needed = [run.tokenizer_file]
    needed += [run.target_tokenizer_file] * run.has_two_tokenizers()
    needed += [run.data] * experiment.has_own_data
    if missing := [path for path in needed if not path.exists()]:
        _make_again(run, experiment, known, missing[0])
    run.tokenizer()
    run.target_tokenizer()
    if experiment.has_own_data:
        _open_data(run, experiment)
    plans = {file.parent for file in run.plan.rglob(PLAN)}
    if any(file.parent not in plans for file in run.plan.rglob("*.npy")):
        raise DamagedFile(f"{run.plan} lacks a {PLAN}. Delete {run.plan}, which is made again.")
    checksum = experiment.prepared.checksum()
    if known.get("tokens", checksum) != checksum:
        what = "The data of a run" if experiment.has_own_data else "--prepared"
        raise ValueError(
            f"{what} must be the folder that {run.path} began with, which may have moved. "
            f"Received: {experiment.prepared.path}, which holds another text."
        )
    if not known:
        run.save_checksums(experiment.prepared)


def _open_data(run, experiment):
    try:
        experiment.prepared = Prepared(run.data)
        experiment.prepared.check()
    except (ValueError, FileNotFoundError) as error:
        problem = str(error).removesuffix(f" {PREPARE_AGAIN}").rstrip(".")
        raise DamagedFile(f"{problem}. Delete {run.data}, which is made again.") from None


def _make_again(run, experiment, known, missing):
    """Writes what a run has of its text again, provided that it is the same as before."""
    LOG.warning("%s is missing. Making it again from the text.", missing)
    if experiment.has_own_data:
        experiment.prepared = None  # or no text would be read
    draft = Run(draft_of(run.config_file), run.config_class)
    try:
        draft.write(experiment)
        if draft.checksums() != known:
            raise DamagedFile(
                f"{missing} is missing. It cannot be made again, because the text is no longer the "
                "one that the run began with. Choose another --run."
            )
        run.replace_data(draft)
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
