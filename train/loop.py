"""Trains a run to its end, from wherever it was stopped, on one device or many."""

import contextlib
import logging

import keras
import tensorflow as tf

from keras_transformer.layers.block import registered_attention
from keras_transformer.training.callbacks import StopOnNonFiniteLoss, TokensPerSecond
from keras_transformer.training.checkpoints import (
    Checkpoints,
    SaveOnTerminate,
    average_checkpoints,
)
from keras_transformer.training.distribution import (
    check_workers_agree,
    from_all_workers,
    this_worker,
)

from .devices import choose_devices, exit_when_a_worker_is_lost, make_deterministic
from .progress import (
    EpochLog,
    EpochSums,
    StepLog,
    StopWithoutProgress,
    check_log,
    line_files,
    opened_log,
    progress,
)
from .recovery import begun, finished_model, load_data, locked
from .run import Run
from .settings import flag_of
from .training_config import CHOSEN_AT_START

LOG = logging.getLogger(__name__)
MUCH_PADDING = 1 / 3  # of the batches


def train_on_devices(experiment_class, config, options):
    """Trains the run named by `TrainOptions`; then the chief shows the result."""
    if config.attention is not None:
        name = keras.saving.get_registered_name(registered_attention(config.attention))
        config = config.model_copy(update={"attention": name})  # knows what was given
    run = Run(options.run, type(config))
    on_jax = keras.backend.backend() == "jax"
    if options.deterministic:
        make_deterministic()
    strategy = choose_devices(config, options)
    before = run.config() if run.exists() else None
    given = config
    if before is not None:
        config = experiment_class.completed(config, before)
    config = with_plan(config, run, strategy)
    exists = run.holds(config)  # checked before a long text is read
    check_log(options.log_file)
    with exit_when_a_worker_is_lost(strategy):
        experiment = experiment_class(config, run=run if exists else None)
        if this_worker(strategy).index == 0:
            warn_of_no_effect(experiment.config, given)
        train_run(run, experiment, strategy, options.log_file)
        if on_jax:
            print("To evaluate and use the run, repeat the command with KERAS_BACKEND=tensorflow.")
        elif this_worker(strategy).index == 0:
            # It reads the model again, because one trained on several devices is bound to them.
            experiment.show_result(run)
        from_all_workers(strategy, 0)  # the others stay until the chief is done


def with_plan(config, run, strategy):
    """The settings, with `CHOSEN_AT_START` taken from the run or chosen for the devices."""
    if run.exists():
        before = run.config()
        chosen = {name: getattr(before, name) for name in CHOSEN_AT_START}
    else:
        compiled = keras.backend.backend() == "jax" or tf.config.list_logical_devices("GPU")
        replicas = strategy.num_replicas_in_sync
        few = 0 if config.is_packed else 16
        chosen = {"shapes": few if compiled else 0, "row_multiple": replicas}
    return config.replace(**{**chosen, **config.given(CHOSEN_AT_START)})


def warn_of_no_effect(config, given):
    """Warns of each given setting that has no effect, now that the config is complete."""
    for name, words in config.without_effect().items():
        if getattr(given, name) == getattr(config, name):
            LOG.warning("%s has no effect: it needs %s.", flag_of(name), words)


def check_shares(batches, replicas):
    """Raises ValueError if batches cannot be divided among the replicas."""
    has_any_shape = hasattr(batches, "shapes") and batches.shapes.min() < 0
    if has_any_shape and replicas > 1 and keras.backend.backend() == "jax":
        raise ValueError(
            "On JAX, several devices share only batches of equal rows. Give --shapes 16, or train "
            f"on one device. Received: --shapes 0, {replicas} devices."
        )
    batches.dataset(0, replicas)  # segments refuse what does not divide


def warn_of_padding(config, batches):
    """Warns if few shapes make much of the batches padding."""
    if config.shapes and getattr(batches, "padding", 0) > MUCH_PADDING:
        LOG.warning(
            "%.0f %% of the batches is padding with at most %d shape%s. Allow more --shapes, or "
            "leave out the longest rows with a lower --max-length.",
            100 * batches.padding, config.shapes, "" if config.shapes == 1 else "s",
        )  # fmt: skip


def train_run(run, experiment, strategy=None, log_file=""):
    """Trains a run to its end, from its last checkpoint if it has one.

    With several workers, only the chief reads the training text, and writes; all read the run's
    folder.

    Args:
        run: a `Run`; its folder is created after everything it needs has been checked.
        experiment: an `Experiment`.
        strategy: from `keras_transformer.training.choose_strategy`; None for one device.
        log_file: path of a file to which the progress is appended, too, in plain lines; "" for
            none. It may lie in the run's folder.

    Returns:
        The model; the chief's has the mean of the weights in the newest checkpoints.

    Raises:
        ValueError: if a setting, the text or the folder is invalid; nothing is written.
        RuntimeError: if the workers see different folders or texts.
    """
    config, strategy = experiment.config, strategy or tf.distribute.get_strategy()
    is_chief = this_worker(strategy).index == 0
    with contextlib.ExitStack() as lock:
        exists = run.holds(config)
        check_workers_agree(strategy, int(exists), f"what {run.path} holds")
        model = None
        if exists:
            lock.enter_context(locked(run, strategy))
            model = finished_model(run, experiment, is_chief)
            check_workers_agree(strategy, int(model is not None), f"what {run.path} holds")
        if model is None:
            model = _train(run, experiment, strategy, exists, lock, log_file)
        if is_chief:
            experiment.finish(run)
    return model


def _train(run, experiment, strategy, exists, lock, log_file):
    """Begins a run or resumes it; returns the model once it is saved."""
    config, is_chief = experiment.config, this_worker(strategy).index == 0
    keras.utils.set_random_seed(config.seed)
    # The text of a run is not read again, and may have changed.
    folder = run if exists else begun(run, experiment, strategy, lock)
    tokenizer, batches = load_data(folder, experiment, strategy)
    replicas = strategy.num_replicas_in_sync
    check_shares(batches, replicas)
    check_workers_agree(strategy, batches.checksum(), "the checksum of the tokenised text")
    validation = experiment.validation(tokenizer, replicas)
    with strategy.scope():
        model = experiment.compiled_model(tokenizer, batches)
    checkpoints = Checkpoints(run.checkpoints, model, config.checkpoint_every, config.average)
    if is_chief:
        warn_of_padding(config, batches)
        if exists:
            run.record(config)
        else:
            run.create()
        _introduce(experiment, model, batches, strategy)
    from_all_workers(strategy, 0)  # the chief has created the folder
    if not exists:
        if experiment.has_own_data:
            experiment.prepared.path = run.data
        lock.enter_context(locked(run, strategy))
    callbacks = [StopOnNonFiniteLoss(), TokensPerSecond()]
    if validation is not None:
        callbacks.append(StopWithoutProgress(config.patience))
    if is_chief:
        callbacks += [*experiment.callbacks(run, tokenizer), EpochLog(run.history_file)]
        if this_worker(strategy).count == 1 and keras.backend.backend() != "jax":
            callbacks.append(StepLog(run.losses_file, config.steps, batches.steps_per_epoch))
        if config.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(str(run.path / "tensorboard")))
        log = lock.enter_context(opened_log(log_file))
        callbacks += progress(config.steps, batches.steps_per_epoch, log)
        checkpoints.log_files = line_files(log)
    try:
        _fit(model, config, batches, replicas, validation, [*callbacks, checkpoints])
    finally:
        checkpoints.wait()  # while the log is open and the run locked
    if is_chief:
        averaged = average_checkpoints(run.checkpoints, model, config.average)
        steps = ", ".join(map(str, averaged))
        print(f"The model is the mean of the checkpoints at steps {steps}.")
        run.save(model)
    return model


def _introduce(experiment, model, batches, strategy):
    """Prints what will be trained, and on which devices."""
    workers, replicas = this_worker(strategy).count, strategy.num_replicas_in_sync
    if replicas > 1:
        print(f"{replicas} replicas on {workers} worker{'s' if workers > 1 else ''}.")
    print(
        f"{experiment.describe(batches)}; {model.count_params():,} parameters; "
        f"{experiment.config.steps:,} steps, {batches.steps_per_epoch:,} per epoch."
    )


def _fit(model, config, batches, replicas, validation, callbacks):
    """Calls `fit` from the last checkpoint on, so that epochs end where they would have ended.

    Args:
        model: a compiled model.
        config: its training settings.
        batches: an object with `dataset(step, replicas)` and `steps_per_epoch`.
        replicas: that share each batch.
        validation: a dataset, or None.
        callbacks: a list that ends with the `Checkpoints`.
    """
    checkpoints = callbacks[-1]
    is_chief = this_worker(model.distribute_strategy).index == 0
    step = checkpoints.restore()
    for callback in callbacks:
        if hasattr(callback, "saved_state"):  # from the epochs of an earlier process
            name = type(callback).__name__
            callback.saved_state[:] = checkpoints.notes.get(name, callback.saved_state)
            checkpoints.notes[name] = callback.saved_state
    per_epoch = batches.steps_per_epoch
    epoch_sums = EpochSums(model, checkpoints.notes["metrics"] if step % per_epoch else ())
    checkpoints.notes["metrics"] = epoch_sums.sums
    callbacks = [epoch_sums, *callbacks]
    if step and is_chief:
        print(f"Resuming from step {step} of {config.steps}.")
    stops = [callback for callback in callbacks if isinstance(callback, StopWithoutProgress)]
    model.stop_training = any(stop.is_due(step // per_epoch) for stop in stops)
    while step < config.steps and not model.stop_training:
        epoch, done = divmod(step, per_epoch)
        # An interrupted epoch is finished first; all later ones are whole, except the last.
        epochs = 1 if done else max(1, (config.steps - step) // per_epoch)
        steps = min(per_epoch - done, config.steps - step)
        model.fit(
            batches.dataset(step, replicas),
            initial_epoch=epoch,
            epochs=epoch + epochs,
            steps_per_epoch=steps,
            validation_data=validation,
            callbacks=[*callbacks, SaveOnTerminate(checkpoints)],
            verbose=0,  # `progress` is among the callbacks
            shuffle=False,  # the batches are already shuffled
        )
        step += steps * epochs
    checkpoints.save()
