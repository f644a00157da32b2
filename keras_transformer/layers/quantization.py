"""What these layers say to Keras's `quantize`, which knows Dense and Embedding layers only."""

from keras_transformer.layers.dropout import ReproducibleDropout


class NotQuantized:
    """Mixed into layers without sublayers, which are all that `Model.quantize` calls."""

    def quantize(self, mode=None, type_check=True, config=None):
        raise ValueError(
            "Keras cannot quantize layers of keras_transformer, which hold most of the weights. "
            "Export the model for a runtime that computes in int8, with `python -m train.convert "
            "--to ctranslate2`, or leave them out with `filters`. "
            f"Received: mode={mode!r} for {self.name}."
        )


class InnerDropout(NotQuantized, ReproducibleDropout):
    """Of a layer that has projections, which has it refuse to be quantized."""
