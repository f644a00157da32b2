"""How these layers refuse Keras's `quantize`, which supports only Dense and Embedding layers."""

from keras_transformer.layers.dropout import ReproducibleDropout


class NotQuantized:
    """A mixin for layers without sublayers, the only ones that `Model.quantize` calls."""

    def quantize(self, mode=None, type_check=True, config=None):
        raise ValueError(
            "Keras cannot quantize layers of keras_transformer, which hold most of the weights. "
            "Export the model for a runtime that computes in int8, with `python -m train.convert "
            "--to ctranslate2`, or leave them out with `filters`. "
            f"Received: mode={mode!r} for {self.name}."
        )


class InnerDropout(NotQuantized, ReproducibleDropout):
    """A sublayer that makes a layer with projections refuse to be quantized."""
