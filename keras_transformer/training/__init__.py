"""Training: the exact train step, its loss and metrics, the schedule, Adam, checkpoints."""

import keras

from keras_transformer.training.losses import PretrainingLoss, TokenCrossentropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.model import FunctionalModel, Model
from keras_transformer.training.optimizers import Adam, InverseSqrtWarmup
from keras_transformer.training.optional_inputs import OptionalInput

__all__ = [
    "Adam",
    "FunctionalModel",
    "InverseSqrtWarmup",
    "Model",
    "OptionalInput",
    "Perplexity",
    "PretrainingLoss",
    "TokenAccuracy",
    "TokenCrossentropy",
]

if keras.backend.backend() == "tensorflow":
    from keras_transformer.training.distribution import choose_strategy, split_cpu

    __all__ += ["choose_strategy", "split_cpu"]
