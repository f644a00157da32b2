"""The classic small demonstration: memorise 1000 very short English-French pairs of Tatoeba.

Many English sentences come with several translations, up to 24, and no model can know which is
meant: on the 1000 shortest pairs, that alone costs 1.2 nats per sentence. So this trains on the
first translation of each of the 1000 shortest sentences.

    python -m train.translation --config tatoeba --tsv eng-fra.tsv --run runs/tatoeba

Hardware, minutes and score: see docs/results.md.
"""

from train.translation import TranslationConfig

CONFIG = TranslationConfig(
    distinct_sources=True,
    max_pairs=1000,
    vocabulary_size=1200,
    num_layers=2,
    hidden_dim=128,
    intermediate_dim=256,
    num_heads=4,
    dropout=0.0,
    tokens_per_batch=1024,
    max_length=32,
    steps=1000,
    peak_rate=0.003,
    warmup_steps=200,
    label_smoothing=0.0,
    checkpoint_every=100,
    average=1,
    num_beams=4,
)
