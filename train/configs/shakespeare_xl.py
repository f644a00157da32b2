"""Bytes of Shakespeare with a memory: Transformer-XL in the size of `shakespeare_cpu`.

    python -m train.language_model --config shakespeare_xl --text shakespeare.txt \
        --run runs/shakespeare_xl

Hardware, minutes and score, with the memory and without: see docs/results.md.
"""

from train.language_model import LanguageModelConfig

CONFIG = LanguageModelConfig(
    hold_out=0.1,
    tokens="bytes",
    model="transformer_xl",
    size="small",
    memory_length=64,
    dropout=0.0,
    activation="relu",
    context=64,
    batch_size=12,
    steps=2000,
    peak_rate=0.003,
    warmup_steps=100,
    clip_norm=1.0,
    checkpoint_every=50,
    average=4,
)
