"""Translators and generators whose searches XLA compiles, for use from Python on GPUs.

They are never exported, because TensorFlow Serving disables XLA by default.
"""

import tensorflow as tf

from keras_transformer.decoding.compiling import bucket, compiled, fill, first_rows, row_bucket
from keras_transformer.serving.generator_module import GeneratorModule
from keras_transformer.serving.translator_module import TranslatorModule

# The limit of a translation is twice its source plus 8 tokens, so each bucket of sources has one
# bucket of limits.
EXTRA, SMALLEST = 8, 16


class CompiledTranslatorModule(TranslatorModule):
    """A `TranslatorModule` with a static cache, one program for each bucket of its inputs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._compiled = compiled(self._search_from)

    def _search(self, source_ids, limits, num_best, prefix=None):
        rows, columns = tf.unstack(tf.shape(source_ids))
        filled = row_bucket(rows)
        source = tf.minimum(bucket(columns), self.settings.max_source_length)
        longest = tf.reduce_max(tf.concat([limits, [0]], axis=0))
        capacity = tf.minimum(bucket(longest - EXTRA, SMALLEST) + EXTRA, self._longest_target)
        if prefix is not None:
            prefix = fill(prefix, filled, capacity)
        source_ids, limits = fill(source_ids, filled, source), fill(limits, filled)
        found = self._compiled(source_ids, limits, num_best, prefix, tf.range(capacity))
        return first_rows(found, rows)

    def _search_from(self, source_ids, limits, num_best, prefix, steps):
        return super()._search(source_ids, limits, num_best, prefix, tf.size(steps))

    @property
    def _longest_target(self):
        return self.settings.max_target_length


class CompiledGeneratorModule(GeneratorModule):
    """A `GeneratorModule` with a static cache, one program for each bucket of its limits."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._compiled = compiled(self._sample_from)

    def _sample(self, ids, limits, seeds, temperature, top_k, top_p):
        rows = tf.shape(ids)[0]
        filled = row_bucket(rows)
        longest = tf.reduce_max(tf.concat([limits, [0]], axis=0))
        capacity = tf.minimum(bucket(longest), self.settings.context)
        given = [fill(each, filled) for each in (limits, seeds, temperature, top_k, top_p)]
        drawn = self._compiled(fill(ids, filled, capacity), *given, tf.range(capacity))
        return first_rows(drawn, rows)

    def _sample_from(self, *given):
        *given, steps = given
        return super()._sample(*given, tf.size(steps))
