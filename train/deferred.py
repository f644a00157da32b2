"""Modules that are imported when they are first used.

A command answers --help and refuses wrong flags before it imports TensorFlow, which takes seconds.
"""

import importlib


class Deferred:
    """Stands for a module, and imports it for its first attribute.

    Args:
        name: full name of the module.
    """

    def __init__(self, name):
        self.module_name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self.module_name), attribute)


keras = Deferred("keras")
kt = Deferred("keras_transformer")
tf = Deferred("tensorflow")
