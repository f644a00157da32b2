"""Compares files for onnxruntime, LiteRT or OpenVINO with the answers that their model must give.

python -P graphs.py FOLDER EXAMPLE.npz
"""

import pathlib
import sys


def onnx(file):
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    outputs = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(outputs, session.run(None, inputs), strict=True))


def litert(file):
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(file)).get_signature_runner()


def openvino(file):
    import openvino

    # By default it computes in bfloat16 where the processor can: off by 0.06 in GPT-2.
    model = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(**inputs):
        found = model(inputs)  # several names may share an output
        return {name: found[output] for output in model.outputs for name in output.names}

    return run


ENGINES = {".onnx": onnx, ".tflite": litert, ".xml": openvino}


def main(folder, example):
    import numpy as np

    def runner(name):
        return ENGINES[suffix](pathlib.Path(folder, f"{name}{suffix}"))

    def compare(name, found, expected):
        difference = np.abs(found - expected).max()
        if found.shape != expected.shape or not difference <= arrays["tolerance"]:
            sys.exit(f"{name} differs by {difference:.1e}")

    [suffix] = {file.suffix for file in pathlib.Path(folder).glob("model.*")} & set(ENGINES)
    arrays = np.load(example)
    inputs = {key.removeprefix("input."): arrays[key] for key in arrays if key[:6] == "input."}
    found = runner("model")(**inputs)
    for key in arrays:
        if key.startswith("output."):
            compare(key.removeprefix("output."), found[key.removeprefix("output.")], arrays[key])
    if not pathlib.Path(folder, f"decoder{suffix}").exists():
        return
    decoder, state = runner("decoder"), runner("encoder")(source_ids=inputs["source_ids"])
    for position, tokens in enumerate(inputs["target_ids"].T):
        found = dict(decoder(**state, token_ids=tokens, position=np.array(position, "int32")))
        logits = found.pop("logits")[1:]  # without the row of two pairs
        compare(f"step {position}", logits, arrays["output.logits"][1:, position])
        state |= {name.removeprefix("next_"): array for name, array in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
