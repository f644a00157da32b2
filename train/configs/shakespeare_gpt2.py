"""Byte pairs of Shakespeare with a small GPT-2.

    python -m train.language_model --config shakespeare_gpt2 --text shakespeare.txt \
        --run runs/shakespeare_gpt2

Hardware, minutes and score: see train/README.md.
"""

from train.config import LanguageModelConfig

CONFIG = LanguageModelConfig(
    hold_out=0.1,
    tokens="pieces",
    vocabulary_size=1000,
    model="gpt2",
    size="124M",
    num_layers=4,
    hidden_dim=256,
    num_heads=4,
    dropout=0.2,
    context=128,
    batch_size=16,
    dtype="mixed_bfloat16",
    steps=3000,
    peak_rate=0.001,
    warmup_steps=100,
    weight_decay=0.1,
    clip_norm=1.0,
    evaluate_every=500,
    checkpoint_every=100,
    average=4,
)
