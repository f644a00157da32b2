"""What comes out has as many rows as what goes in, none included, and the other axes it should."""

import pathlib
import re

import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving.publishing.checks import check_shapes

from .conftest import SMALL, SMALL_MODULES, small_module
from .test_answerer import SIZES
from .test_hostile import KINDS

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "serving.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL_MODULES if name not in KINDS])
def test_every_signature_gives_its_shapes_for_any_rows_and_columns(name):
    """Those of the other kinds are sent any number of both in test_hostile.py."""
    module = small_module(name)
    assert module.row_shapes.keys() == module.signatures.keys()
    for signature, endpoint in module.signatures.items():
        if signature == "serving_default" and "generate" in module.signatures:
            continue  # the same with settings of its own
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


def small_answerer():
    tokenizer = kt.tokenizers.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    backbone = kt.bert(tokenizer.vocabulary_size, "tiny", max_sequence_length=18, **SMALL)
    return kt.serving.Answerer(kt.bert_question_answering(backbone), tokenizer, **SIZES)


def ranks_in(cell):
    """{name: rank} of "`one`, `other`, each (batch, n); `third` (batch,)"."""
    ranks, names = {}, []
    for name, axes in re.findall(r"`(\w+)`|\((batch,[^)]*)\)", cell):
        names += [name] if name else []
        if axes:
            ranks |= dict.fromkeys(names, len(re.findall(r"\w+", axes)))
            names = []
    assert not names, f"without a shape: {names}"
    return ranks


def documented(title):
    """{signature: the ranks of its inputs and of its outputs}, as a section of the guide has it."""
    section = GUIDE.read_text("utf-8").partition(f"\n### {title}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", section, re.MULTILINE)
    return {name: (ranks_in(inputs), ranks_in(outputs)) for name, inputs, outputs in rows}


@pytest.mark.parametrize(
    ("title", "make"),
    [
        ("Translation models", SMALL_MODULES["translator"]),
        ("Classifiers", SMALL_MODULES["classifier"]),
        ("Answers to questions", small_answerer),
        ("Language models", SMALL_MODULES["generator"]),
    ],
)
def test_signatures_are_those_of_the_guide(title, make):
    served = make()
    assert documented(title) == {
        name: (
            {spec.name: spec.shape.rank for spec in function.input_signature},
            {output: 1 + len(shape) for output, shape in served.row_shapes[name].items()},
        )
        for name, function in served.signatures.items()
    }
