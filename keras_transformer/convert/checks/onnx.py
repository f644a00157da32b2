"""Compares a folder of ONNX files with the answers that their model must give.

python -P onnx.py FOLDER EXAMPLE.npz
"""

import pathlib
import sys


def main(folder, example):
    import numpy as np
    import onnxruntime

    def runner(name):
        session = onnxruntime.InferenceSession(pathlib.Path(folder, f"{name}.onnx"))
        outputs = [output.name for output in session.get_outputs()]
        return lambda **inputs: dict(zip(outputs, session.run(None, inputs), strict=True))

    def compare(name, found, expected):
        difference = np.abs(found - expected).max()
        if found.shape != expected.shape or not difference <= arrays["tolerance"]:
            sys.exit(f"{name} differs by {difference:.1e}")

    arrays = np.load(example)
    inputs = {key.removeprefix("input."): arrays[key] for key in arrays if key[:6] == "input."}
    found = runner("model")(**inputs)
    for key in arrays:
        if key.startswith("output."):
            compare(key.removeprefix("output."), found[key.removeprefix("output.")], arrays[key])
    if not pathlib.Path(folder, "decoder.onnx").exists():
        return
    decoder, state = runner("decoder"), runner("encoder")(source_ids=inputs["source_ids"])
    for position, tokens in enumerate(inputs["target_ids"].T):
        found = decoder(**state, token_ids=tokens, position=np.array(position, "int32"))
        logits = found.pop("logits")[1:]  # without the row of two pairs
        compare(f"step {position}", logits, arrays["output.logits"][1:, position])
        state |= {name.removeprefix("next_"): array for name, array in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
