"""Compares a folder for Hugging Face's library with the answers that its model must give.

python -P huggingface.py FOLDER EXAMPLE.npz
"""

import json
import pathlib
import sys

TOLERANCE = 1e-4  # of answers up to 30; of larger ones in proportion


def main(folder, example):
    import numpy as np
    import torch
    import transformers

    arrays = np.load(example)
    [name] = json.loads(pathlib.Path(folder, "config.json").read_text())["architectures"]
    model, unused = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    # Sines are not weights, although old versions stored them.
    missing = [key for key in unused["missing_keys"] if "embed_positions" not in key]
    if missing or unused["unexpected_keys"]:
        sys.exit(f"the weights must be those of a {name}. Received: {unused}")
    inputs = {
        name.removeprefix("input."): torch.tensor(arrays[name].astype("int64"))
        for name in arrays if name.startswith("input.")
    }  # fmt: skip
    with torch.no_grad():
        found = model.eval()(**inputs)
    for key in arrays:
        if key.startswith("output."):
            expected, answer = arrays[key], found[key.removeprefix("output.")].numpy()
            difference = np.abs(answer - expected).max()
            if not difference <= TOLERANCE * max(1.0, np.abs(expected).max() / 30):
                sys.exit(f"{key.removeprefix('output.')} differs by {difference:.1e}")
    texts, ids = json.loads(str(arrays["texts"]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = tokenizer(texts, add_special_tokens=False)["input_ids"]
    if found != ids:
        sys.exit(f"the ids of {texts} must be {ids}. Received: {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
