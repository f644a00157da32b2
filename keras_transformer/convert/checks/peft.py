"""Compares a folder for PEFT with what its LoRA must add to each layer.

python -P peft.py FOLDER EXAMPLE.npz
"""

import sys

TOLERANCE = 1e-5  # of the largest number


def main(folder, example):
    import numpy as np
    import peft
    import torch
    from transformers.pytorch_utils import Conv1D

    arrays = np.load(example)
    is_conv = peft.PeftConfig.from_pretrained(folder).fan_in_fan_out
    model = torch.nn.Module()
    for key in arrays:  # layers of these names and shapes, whose weights are zero
        kind, _, name = key.partition(":")
        rows, columns = arrays[key].shape
        if is_conv and kind == "added":
            layer = Conv1D(rows, columns)
        else:
            layer = torch.nn.Linear(columns, rows)
        torch.nn.init.zeros_(layer.weight)
        parent = model
        *path, last = name.split(".")
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, torch.nn.Module())
            parent = getattr(parent, part)
        parent.add_module(last, layer)
    tuned = peft.PeftModel.from_pretrained(model, folder)
    weights = tuned.merge_and_unload().state_dict()
    for key in arrays:
        kind, _, name = key.partition(":")
        weight = weights[f"{name}.weight"].numpy()
        found = weight.T if is_conv and kind == "added" else weight
        difference = np.abs(found - arrays[key]).max()
        if not difference <= TOLERANCE * max(1.0, np.abs(arrays[key]).max()):
            sys.exit(f"{name} differs by {difference:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
