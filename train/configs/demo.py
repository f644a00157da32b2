"""The embedded corpus: English dates, times, prices and quantities into German.

    python -m train

Hardware, minutes and score: see docs/results.md.
"""

from train.translation import TranslationConfig

CONFIG = TranslationConfig(
    vocabulary_size=2000,
    num_layers=2,
    hidden_dim=128,
    intermediate_dim=512,
    num_heads=4,
    dropout=0.0,
    tokens_per_batch=1024,
    max_length=64,
    steps=2300,
    peak_rate=0.003,
    warmup_steps=300,
    label_smoothing=0.0,
    checkpoint_every=100,
    average=5,
    num_beams=4,
)
