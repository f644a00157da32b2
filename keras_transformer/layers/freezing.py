"""Which parts of a layer are frozen, kept in its config."""

from keras_transformer.layers.internals import parts_of


class FrozenPartsMixin:
    """For layers with parts: a part that is frozen stays so in every copy of the layer.

    Keras keeps `trainable` of a layer, but not that of the parts that its constructor creates. If
    any differs from that of the layer, or if it has LoRA, whose constructor freezes the others, the
    config has `frozen`, the paths of those that are frozen. Only `from_config` reads it.
    """

    _frozen = None

    def get_config(self):
        config = super().get_config()
        flags = {path: part.trainable for path, part in parts_of(self)}
        if not config.get("lora") and all(flag == self.trainable for flag in flags.values()):
            return config
        return {**config, "frozen": sorted(path for path, flag in flags.items() if not flag)}

    @classmethod
    def from_config(cls, config):
        frozen = config.get("frozen")
        layer = super().from_config({k: v for k, v in config.items() if k != "frozen"})
        if frozen is not None:
            layer._frozen, layer._restored = frozen, []
            layer.restore_frozen()
        return layer

    def restore_frozen(self):
        """Call at the end of a `build` that creates parts; those of the constructor are restored.

        Each part is restored once: later changes by the user stay.
        """
        if self._frozen is None:
            return
        for path, part in parts_of(self):  # a part after what it is in, which sets it too
            if path not in self._restored:
                part.trainable = path not in self._frozen
                self._restored.append(path)
