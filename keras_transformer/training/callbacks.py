"""What to watch while a model is trained."""

import math
import time

import keras


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Stops training with a clear error at the first step whose loss is not finite.

    Raises:
        FloatingPointError: with the step and what to try.
    """

    def on_train_batch_end(self, batch, logs=None):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            step = int(self.model.optimizer.iterations.numpy())
            raise FloatingPointError(
                f"The loss is not finite at step {step}. Lower the learning rate, lengthen the "
                "warm-up, or set clip_norm; the last checkpoint is from before. "
                f"Received: loss={loss}."
            )


class TokensPerSecond(keras.callbacks.Callback):
    """Adds to the logs how many real target tokens are trained on per second of the epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        logs["tokens_per_second"] = self._rate()

    def on_epoch_end(self, epoch, logs=None):
        logs["tokens_per_second"] = self._rate()

    def _rate(self):
        # The loss is averaged over tokens, so its tracker has counted them.
        tokens = float(self.model._loss_tracker.count.numpy())
        return round(tokens / (time.perf_counter() - self._start))
