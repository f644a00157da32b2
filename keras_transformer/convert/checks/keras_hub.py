"""Compares a preset of KerasHub with the answers that its model must give.

python -P keras_hub.py FOLDER EXAMPLE.npz
"""

import json
import pathlib
import sys

TOLERANCE = 1e-4  # of answers up to 30; of larger ones in proportion


def main(folder, example):
    import keras
    import keras_hub
    import numpy as np

    arrays = np.load(example)
    inputs = {name.removeprefix("input."): arrays[name] for name in arrays if "input." in name}
    if pathlib.Path(folder, "task.json").exists():
        model = keras_hub.models.TextClassifier.from_preset(folder)
    elif "output.logits" in arrays:
        model = keras_hub.models.CausalLM.from_preset(folder)
    else:
        model = keras_hub.models.Backbone.from_preset(folder)
    found = model(inputs)
    found = found if isinstance(found, dict) else {"logits": found}
    for key in arrays:
        if key.startswith("output."):
            expected = arrays[key]
            answer = keras.ops.convert_to_numpy(found[key.removeprefix("output.")])
            difference = np.abs(answer - expected).max()
            if not difference <= TOLERANCE * max(1.0, np.abs(expected).max() / 30):
                sys.exit(f"{key.removeprefix('output.')} differs by {difference:.1e}")
    texts, ids = json.loads(str(arrays["texts"]))
    tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(folder)
    found = [[int(i) for i in row] for row in tokenizer(texts)]
    if found != ids:
        sys.exit(f"the ids of {texts} must be {ids}. Received: {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
