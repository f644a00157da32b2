"""`fit`, `evaluate` and `predict` on TensorFlow: Keras's, once the data has been checked."""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.training.callbacks import LateLogs, accepts_late_logs
from keras_transformer.training.compile import check_class_weight
from keras_transformer.training.distribution import has_workers
from keras_transformer.training.id_checks import as_value_error, with_checked_ids
from keras_transformer.training.internals import has_unseeded_shuffle


class FitMixin:
    """The methods of `keras.Model` that take data, which they check first."""

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ):
        _check_compiled(self, "fit")
        check_class_weight(self._step.loss, class_weight)
        x = _divided_by_examples(x, self.distribute_strategy)
        if validation_data is not None:
            is_tuple = isinstance(validation_data, (list, tuple))
            first = validation_data[0] if is_tuple else validation_data
            first = _divided_by_examples(first, self.distribute_strategy)
            rest = validation_data[1:2] if is_tuple else ()
            first = untuned(with_checked_ids(self, self._step.loss, first, *rest))
            validation_data = validation_data if is_tuple else first
        self._step.dropout_seeds.spread()
        callback_list = keras.tree.flatten(callbacks or [])
        if steps_per_epoch and all(map(accepts_late_logs, callback_list)):
            callbacks = LateLogs(callback_list, verbose, epochs, steps_per_epoch, self)
        with self._ids_checked(x, y, self._step.loss) as x:
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )

    def evaluate(
        self,
        x=None,
        y=None,
        batch_size=None,
        verbose="auto",
        sample_weight=None,
        steps=None,
        callbacks=None,
        return_dict=False,
        **settings,  # with which Keras validates
    ):
        _check_compiled(self, "evaluate")
        x = _divided_by_examples(x, self.distribute_strategy)
        # Within `fit`, Keras takes its own iterator of the data that `fit` has checked.
        is_checked = settings.get("_use_cached_eval_dataset", False)
        loss = self._step.loss
        ids_checked = contextlib.nullcontext(x) if is_checked else self._ids_checked(x, y, loss)
        with ids_checked as x:
            data = (x, y, batch_size, verbose, sample_weight, steps)
            return super().evaluate(*data, callbacks=callbacks, return_dict=return_dict, **settings)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        with self._ids_checked(x) as x:
            return super().predict(x, batch_size, verbose, steps, callbacks)

    @contextlib.contextmanager
    def _ids_checked(self, x, y=None, loss=None):
        """Yields data for Keras; it raises ValueError for ids that the model has no vector for.

        Labels are checked if there is a loss; `predict` reads none.
        """
        try:
            yield untuned(with_checked_ids(self, loss, x, y))
        except tf.errors.InvalidArgumentError as error:
            if (value_error := as_value_error(error)) is None:
                raise
            raise value_error from error

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        _check_compiled(self, "train_on_batch")
        check_class_weight(self._step.loss, class_weight)
        _check_one_replica(self, "train_on_batch")
        with_checked_ids(self, self._step.loss, x, y)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        _check_compiled(self, "test_on_batch")
        _check_one_replica(self, "test_on_batch")
        with_checked_ids(self, self._step.loss, x, y)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        _check_one_replica(self, "predict_on_batch")
        with_checked_ids(self, None, x)
        return super().predict_on_batch(x)


def untuned(data):
    """A dataset without the thread that tunes it, unless its own options say anything of tuning.

    An iterator that is dropped waits for that thread, which sleeps twice as long each time: the end
    of `fit` took up to as long as all its steps. What is left to `AUTOTUNE` uses all cores.
    """
    if not isinstance(data, tf.data.Dataset):
        return data
    tuning = data.options().autotune
    settings = tuning.enabled, tuning.cpu_budget, tuning.ram_budget, tuning.autotune_algorithm
    if any(setting is not None for setting in settings):
        return data
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def _check_compiled(model, method):
    if model._step.whole_loss is None:  # Keras calls a loaded model compiled even if it warned
        raise ValueError(
            f"Compile the model before {method}: model.compile(optimizer, loss). "
            "Received: a model that is not compiled."
        )


def _check_one_replica(model, method):
    """Raises on several replicas, each of which would get the whole batch from Keras."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            f"{method} gives every replica the whole batch. Use fit, evaluate or predict with a "
            f"tf.data.Dataset, whose batches are divided. Received: {replicas} replicas."
        )


def _divided_by_examples(data, strategy):
    """The data, of which several workers take each their examples of every batch.

    TensorFlow's AUTO would give each worker files of its own, and other batches than one device's.

    Raises:
        ValueError: with several workers, unless the data is a `tf.data.Dataset` that may be divided
            by examples and has the same order on all workers.
    """
    if not has_workers(strategy) or isinstance(data, tf.distribute.DistributedDataset):
        return data
    if not isinstance(data, tf.data.Dataset):
        raise ValueError(
            "With several workers the data must be a tf.data.Dataset, which TensorFlow divides "
            "among them; arrays and generators would be shuffled, or repeated, by each worker. "
            f"Received: {type(data).__name__}."
        )
    sharding = tf.data.experimental.AutoShardPolicy
    policy = data.options().experimental_distribute.auto_shard_policy
    if policy not in (sharding.AUTO, sharding.DATA):
        raise ValueError(
            "With several workers the dataset's auto_shard_policy must be DATA (or AUTO), so that "
            f"each example is seen by one worker. Received: {policy.name}."
        )
    if has_unseeded_shuffle(data):
        raise ValueError(
            "With several workers a shuffled dataset needs a seed, or their shares overlap: "
            "shuffle(..., seed=1), or keras.utils.set_random_seed(1) before. "
            "Received: a shuffle without a seed."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = sharding.DATA
    return data.with_options(options)
