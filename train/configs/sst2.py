"""The sentiment of film-review sentences, from scratch.

    python -m train.classification --config sst2 --tsv train.tsv --valid-tsv dev.tsv --run runs/sst2

Hardware, minutes and score: see docs/results.md.
"""

from train.classification import ClassificationConfig

CONFIG = ClassificationConfig(
    tokens="words",
    vocabulary_size=12_000,
    max_length=64,
    pooling="mean",
    token_dropout=0.3,
    dropout=0.4,
    tokens_per_batch=2048,
    steps=1500,
    peak_rate=0.001,
    warmup_steps=100,
    checkpoint_every=50,
    average=10,
)
