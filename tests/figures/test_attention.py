"""Attention of one text as a figure."""

import numpy as np
import pytest

from keras_transformer.figures import Attention

LAYERS = [np.full((5, 2, 3), 1 / 3, "float32")] * 3
CROSS = Attention({"cross": LAYERS}, {"cross": ["ein", "Hund"]}, {"cross": ["a", "dog", "."]})


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (-1, "Last decoder layer"),
        (2, "Last decoder layer"),
        (-2, "Decoder layer 2 of 3"),
        (0, "Decoder layer 1 of 3"),
    ],
)
def test_the_title_names_the_layer(layer, name):
    title = CROSS.figure(layer=layer).get_suptitle()
    assert title == f"{name}: where each target token looks in the source"


@pytest.mark.parametrize(("kind", "layer"), [("encoder", -1), ("cross", 3), ("cross", -4)])
def test_a_kind_or_layer_that_the_model_lacks_is_refused(kind, layer):
    with pytest.raises(
        ValueError, match=rf"these layers: .*'cross': 3.* kind='{kind}', layer={layer}"
    ):
        CROSS.figure(kind, layer)
