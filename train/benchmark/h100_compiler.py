"""Compiles a program for an H100 on a machine without one, and prints XLA's figures as JSON.

python h100_compiler.py PROGRAM [TEXT]

PROGRAM is serialised StableHLO; TEXT is a file for the compiled program. Run it with the Python of
a separate environment that holds only `jax[cuda12]==0.10.2` (5.5 GB, with NVIDIA's compiler), and
nothing else from this repository.
"""

import json
import os
import pathlib
import re
import sys

os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is no driver to agree with

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

TARGET = pathlib.Path(__file__).with_name("h100.textproto")
FUSED_ATTENTION = "__cudnn$fmha"


def compiled(program):
    """Serialised StableHLO, compiled for one H100."""
    [device] = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", target_config=TARGET.read_text(), topology="1x1x1"
    ).devices
    options = compiler.get_compile_options(1, 1, device_assignment=np.zeros((1, 1), int))
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, program)
        _drop_copies(module)
        return device.client.compile(module, _jax.DeviceList((device,)), options)


def _drop_copies(module):
    """Removes an operation with which TensorFlow marks its results, unknown to JAX."""
    copies = []

    def see(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(see)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def figures(executable):
    """The cost of one run: operations, bytes by XLA's own count, and the kinds of operations."""
    [module] = executable.hlo_modules()
    text = module.to_string()
    cost = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    results = re.findall(r"= \(?(\w+\[[\d,]*\])\S* scatter\(", text)
    return {
        "gflop": cost["flops"] / 1e9,
        "gib_moved": cost["bytes accessed"] / 2**30,
        "temporary_mib": executable.get_compiled_memory_stats().temp_size_in_bytes / 2**20,
        "fusions": len(re.findall(r" fusion\(", text[text.index("ENTRY") :])),
        "scatters": results,
        "fused_attention": len(
            re.findall(rf'custom_call_target="{re.escape(FUSED_ATTENTION)}', text)
        ),
    }, text


def main(program, output=None):
    found, text = figures(compiled(pathlib.Path(program).read_bytes()))
    if output:
        pathlib.Path(output).write_text(text)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
