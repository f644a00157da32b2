"""What comes out has as many rows as what goes in, none included, and the other axes it should."""

import pytest
import tensorflow as tf

from keras_transformer.serving.publishing.checks import check_shapes

from .conftest import SMALL_MODULES


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_MODULES)
def test_every_signature_gives_its_shapes_for_any_rows_and_columns(name):
    module = SMALL_MODULES[name]()
    assert module.row_shapes.keys() == module.signatures.keys()
    for signature, endpoint in module.signatures.items():
        specs = endpoint.input_signature
        for rows in (0, 1, 2):
            for columns in (0, 5) if any(spec.shape.rank > 1 for spec in specs) else (0,):
                inputs = {
                    spec.name: tf.zeros(
                        [rows, *(columns if size is None else size for size in spec.shape[1:])],
                        spec.dtype,
                    )
                    for spec in specs
                }
                outputs = endpoint(**inputs)
                check_shapes([(signature, inputs)], [outputs], module.row_shapes)


def test_shapes_are_those_of_the_docstrings():
    shapes = SMALL_MODULES["translator"]().row_shapes
    assert shapes["translate_nbest"]["translation"] == (2,)
    assert shapes["tokenize"]["token_ids"] == (None,)
    assert SMALL_MODULES["classifier"]().row_shapes["logits"] == {"logits": (3,)}
