"""Multi30k English to German with the Tiny model of Wu et al. 2021.

    python -m train.translation --config multi30k --run runs/multi30k \
        --source train.en.gz --target train.de.gz --valid-source val.en.gz --valid-target val.de.gz

Hardware, minutes and score: see docs/results.md.
"""

from train.translation import TranslationConfig

CONFIG = TranslationConfig(
    size="tiny",
    vocabulary_size=6000,
    dropout=0.2,
    tokens_per_batch=2048,
    max_length=128,
    steps=12_500,
    peak_rate=0.003,
    warmup_steps=1000,
    label_smoothing=0.1,
    checkpoint_every=250,
    average=10,
    num_beams=5,
    length_penalty=1.4,
)
