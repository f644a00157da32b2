"""The sentiment of film-review sentences, from a BERT fine-tuned on reviews.

    python -m train.classification --config sst2_bert --pretrained runs/imdb_bert \
        --tsv train.tsv --valid-tsv dev.tsv --run runs/sst2_bert

Hardware, minutes and score, also without those labels: see docs/results.md.
"""

from train.classification import ClassificationConfig

CONFIG = ClassificationConfig(
    max_length=64,
    pooling="mean",
    dropout=0.2,
    attention_dropout=0.1,
    tokens_per_batch=2048,
    steps=400,
    peak_rate=0.0003,
    warmup_steps=50,
    schedule="cosine",
    weight_decay=0.01,
    clip_norm=1.0,
    checkpoint_every=25,
    average=4,
)
