"""Checks what was written with the foreign library; a script that imports none of our code.

python -P checks.py FORMAT FOLDER EXAMPLE.npz
"""

import json
import pathlib
import sys

# How far answers up to 30 may be off; larger ones in proportion.
TOLERANCE, LARGEST = 1e-4, 30
PEFT_TOLERANCE = 1e-5  # of the largest number
TOLERANCE_IN_NATS = 1e-3  # of the sum of a text, where weights are float32
# Of smaller weights: how far the mean log-probabilities of texts may be off, as a share of how much
# they differ from text to text (standard deviations). Random models with weights so large that
# rounding shows most reached 0.21 in int8, 0.05 in int16, 0.02 in bfloat16 and 0.01 in float16;
# arrays in reverse order gave 0.63 and more.
SHARES = {"int8": 0.3, "int16": 0.1, "bfloat16": 0.2, "float16": 0.1}


def part(arrays, start):
    """The arrays whose names begin with `start`, by the rest of their names."""
    return {name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)}


def compare(name, answer, expected, tolerance):
    difference = abs(answer - expected).max() if answer.shape == expected.shape else float("inf")
    if not difference <= tolerance:
        sys.exit(f"{name} differs by {difference:.1e}")


def compare_answers(answers, arrays):
    """Compares the answers of a library with those that must be, {"output.NAME": array}."""
    for name, expected in part(arrays, "output.").items():
        compare(name, answers[name], expected, TOLERANCE * max(1.0, abs(expected).max() / LARGEST))


def compare_ids(tokenize, arrays):
    """Compares the ids of texts, a list of lists."""
    texts, expected = json.loads(str(arrays["texts"]))
    ids = tokenize(texts)
    if ids != expected:
        sys.exit(f"the ids of {texts} must be {expected}. Received: {ids}")


def huggingface(folder, arrays):
    import torch
    import transformers

    [name] = json.loads(pathlib.Path(folder, "config.json").read_text())["architectures"]
    model, unused = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    # Sines are not weights, although old versions stored them.
    missing = [key for key in unused["missing_keys"] if "embed_positions" not in key]
    if missing or unused["unexpected_keys"]:
        sys.exit(f"the weights must be those of a {name}. Received: {unused}")
    inputs = part(arrays, "input.")
    inputs = {name: torch.tensor(ids.astype("int64")) for name, ids in inputs.items()}
    with torch.no_grad():
        answers = model.eval()(**inputs)
    compare_answers({name: answers[name].numpy() for name in part(arrays, "output.")}, arrays)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    compare_ids(lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"], arrays)


def keras_hub(folder, arrays):
    import keras
    import keras_hub

    if pathlib.Path(folder, "task.json").exists():
        kind = keras_hub.models.TextClassifier
    elif "output.logits" in arrays:
        kind = keras_hub.models.CausalLM
    else:
        kind = keras_hub.models.Backbone
    answers = kind.from_preset(str(folder))(part(arrays, "input."))
    answers = answers if isinstance(answers, dict) else {"logits": answers}
    convert = keras.ops.convert_to_numpy
    compare_answers({name: convert(answer) for name, answer in answers.items()}, arrays)
    tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(str(folder))
    compare_ids(lambda texts: [[int(i) for i in row] for row in tokenizer(texts)], arrays)


def ctranslate2(folder, arrays):
    import ctranslate2
    import numpy as np

    dtype = str(arrays["dtype"])
    pieces, expected = json.loads(str(arrays["pieces"])), arrays["scores"]
    kind = ctranslate2.Translator if len(pieces) == 2 else ctranslate2.Generator
    engine = kind(str(folder), device="cpu", compute_type="default")
    results = engine.score_batch(*pieces)
    scores = np.array([sum(result.log_probs) for result in results])
    if not np.isfinite(scores).all():
        sys.exit(f"log-probabilities must be finite. Received: {scores.tolist()}")
    difference = np.abs(scores - expected).max()
    if dtype == "float32":
        if difference > TOLERANCE_IN_NATS:
            sys.exit(f"log-probabilities differ by {difference:.1e} nats")
        return
    lengths = np.array([len(result.log_probs) for result in results])
    error = np.sqrt(np.mean(((scores - expected) / lengths) ** 2))
    share = error / np.std(expected / lengths)
    # Processors that lack the products of 16 bits have them computed in 8.
    most = SHARES["int8" if engine.compute_type.startswith("int8") else dtype]
    if not share <= most:
        sys.exit(
            f"log-probabilities of {dtype} differ by up to {difference:.1e} nats, "
            f"{share:.2f} of how much texts differ: more than {most}"
        )


def peft(folder, arrays):
    """Compares what LoRA adds to layers of zeros, "added:LAYER", and saves, "saved:PARAMETER"."""
    import peft
    import torch
    from transformers.pytorch_utils import Conv1D

    is_conv = peft.PeftConfig.from_pretrained(folder).fan_in_fan_out
    model = torch.nn.Module()
    for key, array in arrays.items():
        kind, _, name = key.partition(":")
        parent = model
        *path, last = name.split(".")
        for step in path:
            if not hasattr(parent, step):
                parent.add_module(step, torch.nn.Module())
            parent = getattr(parent, step)
        if kind == "saved":
            parent.register_parameter(last, torch.nn.Parameter(torch.zeros(array.shape)))
            continue
        rows, columns = array.shape
        layer = Conv1D(rows, columns) if is_conv else torch.nn.Linear(columns, rows)
        torch.nn.init.zeros_(layer.weight)
        parent.add_module(last, layer)
    weights = peft.PeftModel.from_pretrained(model, folder).merge_and_unload().state_dict()
    for key, array in arrays.items():
        kind, _, name = key.partition(":")
        weight = weights[name if kind == "saved" else f"{name}.weight"].numpy()
        weight = weight.T if is_conv and kind == "added" else weight
        compare(name, weight, array, PEFT_TOLERANCE * max(1.0, abs(array).max()))


def onnx(folder, arrays):
    import onnxruntime

    def runner(name):
        session = onnxruntime.InferenceSession(folder / f"{name}.onnx")
        outputs = [output.name for output in session.get_outputs()]
        return lambda **inputs: dict(zip(outputs, session.run(None, inputs), strict=True))

    compare_graphs(runner, (folder / "decoder.onnx").exists(), arrays)


def litert(folder, arrays):
    from ai_edge_litert.interpreter import Interpreter

    def runner(name):
        return Interpreter(str(folder / f"{name}.tflite")).get_signature_runner()

    compare_graphs(runner, (folder / "decoder.tflite").exists(), arrays)


def openvino(folder, arrays):
    import openvino

    def runner(name):
        # By default it computes in bfloat16 where the processor can: off by 0.06 in GPT-2.
        options = {"INFERENCE_PRECISION_HINT": "f32"}
        model = openvino.Core().compile_model(folder / f"{name}.xml", "CPU", options)

        def run(**inputs):
            answers = model(inputs)  # several names may share an output
            return {name: answers[output] for output in model.outputs for name in output.names}

        return run

    compare_graphs(runner, (folder / "decoder.xml").exists(), arrays)


def compare_graphs(runner, has_decoder, arrays):
    """Compares a model and, token by token, its encoder and decoder.

    Args:
        runner: from the name of a graph to a function from inputs to outputs, by name.
        has_decoder: whether there are an encoder and a decoder.
        arrays: of the example.
    """
    import numpy as np

    tolerance, inputs = arrays["tolerance"], part(arrays, "input.")
    answers = runner("model")(**inputs)
    for name, expected in part(arrays, "output.").items():
        compare(name, answers[name], expected, tolerance)
    if not has_decoder:
        return
    decoder, state = runner("decoder"), runner("encoder")(source_ids=inputs["source_ids"])
    for position, tokens in enumerate(inputs["target_ids"].T):
        answers = dict(decoder(**state, token_ids=tokens, position=np.array(position, "int32")))
        logits = answers.pop("logits")[1:]  # without the row of two pairs
        expected = arrays["output.logits"][1:, position]
        compare(f"step {position}", logits, expected, tolerance)
        state |= {name.removeprefix("next_"): array for name, array in answers.items()}


if __name__ == "__main__":
    import numpy

    name, folder, example = sys.argv[1:]
    globals()[name](pathlib.Path(folder), dict(numpy.load(example)))
