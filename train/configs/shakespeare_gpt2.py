"""Characters of Shakespeare with a GPT-2 of the sizes, batches and steps of shakespeare_cpu.

    python -m train.language_model --config shakespeare_gpt2 --text shakespeare.txt \
        --run runs/shakespeare_gpt2

Hardware, minutes and score: see docs/results.md.
"""

import dataclasses

from train.configs import shakespeare_cpu

CONFIG = dataclasses.replace(
    shakespeare_cpu.CONFIG,
    model="gpt2",
    size="124M",
    num_layers=4,
    hidden_dim=128,
    num_heads=4,
    dropout=0.0,
    attention_dropout=0.0,
)
