"""The embedded corpus: English dates, times, prices and quantities into German.

    python -m train

Hardware, minutes and score: see train/README.md.
"""

from train.config import TranslationConfig

CONFIG = TranslationConfig(
    vocabulary_size=2000,
    num_layers=2,
    hidden_dim=128,
    intermediate_dim=512,
    num_heads=4,
    dropout=0.0,
    tokens_per_batch=2048,
    max_length=64,
    steps=1600,
    peak_rate=0.003,
    warmup_steps=200,
    label_smoothing=0.0,
    checkpoint_every=100,
    average=3,
    num_beams=4,
)
