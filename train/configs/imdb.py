"""The sentiment of film reviews, from scratch; 5000 of the 25,000 labelled ones are held out.

    python -m train.classification --config imdb --folder aclImdb/train --run runs/imdb

Hardware, minutes and score: see docs/results.md.
"""

from train.classification import ClassificationConfig

CONFIG = ClassificationConfig(
    hold_out=5000,
    size="small",
    tokens="words",
    vocabulary_size=20_000,
    max_length=512,
    token_dropout=0.4,
    dropout=0.2,
    dtype="mixed_bfloat16",
    tokens_per_batch=8192,
    steps=2000,
    peak_rate=0.001,
    warmup_steps=100,
    checkpoint_every=100,
    average=5,
)
