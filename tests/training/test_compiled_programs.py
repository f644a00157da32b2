"""What a compiled training has XLA compile, by what the compiler was given."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from . import compiled_training

REPOSITORY = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.slow


KINDS = [  # translation has all that is asked here
    pytest.param(kind, marks=[pytest.mark.soak] * (kind != "translation"))
    for kind in compiled_training.KINDS
]


@pytest.fixture(params=KINDS)
def trained(request, tmp_path):
    """The texts of the programs with products, what the training printed, and loops of its loss."""
    environment = {
        **os.environ,
        "XLA_FLAGS": " ".join(
            [os.environ["XLA_FLAGS"], f"--xla_dump_to={tmp_path}", "--xla_dump_hlo_as_text"]
        ),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "tests.training.compiled_training", request.param]
    run = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    programs = [path.read_text() for path in tmp_path.glob("*before_optimizations.txt")]
    programs = [program for program in programs if " dot(" in program]
    is_projected = request.param in ("translation", "packed translation", "documents")
    return programs, json.loads(run.stdout.splitlines()[-1]), int(is_projected)


def test_three_epochs_compile_one_program_a_shape_and_long_ones_attend_in_chunks(trained):
    programs, (in_training, in_validation, steps), of_loss = trained
    assert steps > len(in_training), "batches share shapes"
    shapes = in_training + in_validation
    assert len(programs) == len(shapes)
    long = sum(length >= compiled_training.LONG for _, length in shapes)
    loops = [program.count(" while(") - of_loss for program in programs]
    assert long and sum(count > 0 for count in loops) == long
