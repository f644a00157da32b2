"""The sentiment of film reviews, from a BERT pretrained on the text of the others.

    python -m train.classification --config imdb_bert --pretrained runs/bert \
        --folder aclImdb/train --run runs/imdb_bert

Hardware, minutes and score, also without the pretraining: see docs/results.md.
"""

from train.classification import ClassificationConfig

CONFIG = ClassificationConfig(
    hold_out=5000,
    max_length=512,
    pooling="mean",
    token_dropout=0.3,
    dropout=0.2,
    attention_dropout=0.0,
    tokens_per_batch=8192,
    steps=1200,
    peak_rate=0.0006,
    warmup_steps=100,
    schedule="cosine",
    weight_decay=0.01,
    clip_norm=1.0,
    checkpoint_every=100,
    average=1,
)
