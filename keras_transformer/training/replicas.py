"""What differs between replicas: dropout's noise, carried memories, their share of the data."""

import tensorflow as tf

from keras_transformer.training.distribution import has_workers, this_worker
from keras_transformer.training.internals import has_unseeded_shuffle
from keras_transformer.training.stored import stored

SEED_STRIDE = 1_000_003  # between the seeds of two replicas; prime, so that sums do not meet


class DropoutSeeds:
    """The random state of a model's dropout, different on each replica.

    Keras mirrors the state, so all replicas would drop the same units. A state is a pair of seed
    and counter; here the replica that gets part i of each batch adds i times a stride to its
    seed. Checkpoints hold the state for part 0, which is that of a single device.

    Args:
        model: the model whose dropout to spread.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = model.distribute_strategy
        self._first_seeds = None

    @property
    def variables(self):
        """TensorFlow variables of the states; looked up each time, as a model may be built late."""
        return [v.value for v in self._model.variables if "seed_generator" in v.path]

    def spread(self):
        """Sets the seeds of this worker's replicas. Idempotent."""
        if self._strategy.num_replicas_in_sync == 1:
            return
        if self._first_seeds is None:
            self._first_seeds = [int(_copies(v)[0].numpy()[0]) for v in self.variables]
        worker = this_worker(self._strategy)
        for variable, seed in zip(self.variables, self._first_seeds, strict=True):
            for place, copy in enumerate(_copies(variable)):
                part = place * worker.count + worker.index  # TensorFlow deals parts in turn
                counter = copy.numpy()[1]
                copy.assign(tf.constant([seed + part * SEED_STRIDE, counter], copy.dtype))

    def restored(self):
        """Call after restoring a checkpoint, which sets all replicas to the first one's state."""
        self._first_seeds = None
        self.spread()


def carried_variables(model):
    """The variables in which a model carries state from batch to batch, such as a memory.

    Each replica has its own, for its own rows.

    Returns:
        List of the TensorFlow variables on all of this worker's devices.
    """
    carried = stored([v for v in model.variables if v.synchronization == "on_read"])
    return [copy for variable in carried for copy in _copies(variable)]


def check_carried(model, accumulation_steps):
    """Raises if batches would be split for a model that carries state for each of their rows.

    Raises:
        ValueError: if `accumulation_steps` is above 1 and the model carries state.
    """
    if accumulation_steps > 1 and carried_variables(model):
        raise ValueError(
            "accumulation_steps must be 1 for a model that carries a memory, because the memory "
            "belongs to all rows of a batch. "
            f"Received: accumulation_steps={accumulation_steps}."
        )


def check_data(data, strategy):
    """Raises for data that several workers could not divide among themselves.

    Raises:
        ValueError: with several workers, unless the data is a `tf.data.Dataset` that is sharded
            by examples and has the same order on all workers.
    """
    if not has_workers(strategy) or isinstance(data, tf.distribute.DistributedDataset):
        return
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


def _copies(variable):
    """The copies of a mirrored variable on this worker's devices."""
    return getattr(variable, "values", [variable])
