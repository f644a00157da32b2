"""Resuming a run: its lock, its data, and its model if it is finished.

A damaged file is rebuilt from the others if the result is the same; otherwise an error names it.
"""

import contextlib
import logging

import filelock

from keras_transformer.files import DamagedFile, remove_drafts
from keras_transformer.serving.run_folder import AGAIN
from keras_transformer.training.checkpoint_files import steps_in
from keras_transformer.training.distribution import from_all_workers, this_worker

from .run import ORDER

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
            remove_drafts(run.path)
            remove_drafts(run.checkpoints)
            remove_drafts(run.path.parent, of=run.path.name)
        yield
    finally:
        lock.release()


def finished_model(run, experiment, is_chief):
    """The model of a finished run; None if it has more steps to go, or is damaged but rebuildable.

    Raises:
        DamagedFile: if it is damaged and there is no checkpoint.
    """
    if not run.is_finished(experiment.config):
        return None
    try:
        model = run.model()
    except DamagedFile as error:
        if not steps_in(run.checkpoints):
            raise DamagedFile(
                f"{_problem(error)} There is no checkpoint to rebuild it from. Delete it to "
                "train again, from step 0."
            ) from None
        LOG.warning("%s Rebuilding it from the checkpoints.", _problem(error))
        return None
    try:
        run.tokenizer()
        run.target_tokenizer()
    except (DamagedFile, FileNotFoundError) as error:
        _rebuild(run, experiment, is_chief, error)
    if is_chief:
        print(f"{run.path} is already trained: nothing to do.")
    return model


def load_data(run, experiment, strategy):
    """The tokenizer and batches that a run began with, rebuilt if a file is damaged."""
    is_chief = this_worker(strategy).index == 0
    try:
        tokenizer = run.tokenizer()
        run.target_tokenizer()
        if experiment.prepared is None:
            batches = experiment.load_batches(run.tokens_file, tokenizer)
        else:
            batches = planned(experiment, tokenizer, run.plan, strategy)
            if batches.checksum() != run.checksums().get("tokens"):
                raise ValueError(
                    f"--prepared must be the folder that {run.path} began with, which may have "
                    f"moved. Received: {experiment.prepared.path}, which holds another text."
                )
    except (DamagedFile, FileNotFoundError) as error:
        tokenizer, batches = _rebuild(run, experiment, is_chief, error)
    known = run.checksums()
    if known and known.get("order", 1) != ORDER:
        raise ValueError(
            f"{run.path} was begun by version 0.2, whose batches come in another order. Finish it "
            "with that version, or choose another --run."
        )
    if is_chief and not known:
        run.save_data(tokenizer, batches, experiment.target_tokenizer)
    return tokenizer, batches


def planned(experiment, tokenizer, folder, strategy):
    """Batches of a prepared folder, whose order the chief keeps in a folder for all workers."""
    is_chief = this_worker(strategy).index == 0
    batches = experiment.prepared_batches(tokenizer, folder) if is_chief else None
    from_all_workers(strategy, 0)  # the chief has written it
    return batches if is_chief else experiment.prepared_batches(tokenizer, folder)


def _rebuild(run, experiment, is_chief, error):
    """Tokenizer and batches rebuilt from the text, provided they are the same as before."""
    if experiment.prepared is not None:
        raise error  # there is no text
    tokenizer, batches = experiment.make_data()
    target = experiment.target_tokenizer
    known, now = run.checksums(), run.checksums_of(tokenizer, batches, target)
    # The order of batches is no matter of files.
    if {**known, "order": 0} != {**now, "order": 0}:
        raise DamagedFile(
            f"{_problem(error)} It cannot be rebuilt, because the text is no longer the one that "
            "the run began with. Choose another --run."
        )
    LOG.warning("%s Rebuilding it from the text.", _problem(error))
    if is_chief:
        run.save_data(tokenizer, batches, target)
    return tokenizer, batches


def _problem(error):
    return str(error).removesuffix(" " + AGAIN)
