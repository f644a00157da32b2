"""A small BERT pretrained on the text of film reviews, except those that are held out.

    python -m train.pretraining --config bert_imdb --documents aclImdb/train --run runs/bert

Hardware, minutes and score: see docs/results.md.
"""

from train.pretraining import PretrainingConfig

CONFIG = PretrainingConfig(
    hold_out=5000,
    size="mini",
    num_layers=2,
    vocabulary_size=16_000,
    pre_norm=True,  # learns faster in a short training
    activation="relu",  # the exact GELU takes a sixth more time here
    dropout=0.0,
    attention_dropout=0.0,
    max_length=256,
    masking_rate=0.4,  # as good as 0.15 in a quarter less time
    batch_size=8,
    steps=12_000,
    peak_rate=0.001,
    warmup_steps=500,
    schedule="cosine",
    beta_2=0.999,  # with 0.98 rare pieces, far from their last gradient, drift together
    weight_decay=0.01,
    clip_norm=1.0,
    checkpoint_every=500,
    average=1,
)
