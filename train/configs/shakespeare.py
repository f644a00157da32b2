"""Characters of Shakespeare with the best model that two cores train in 90 minutes.

    python -m train.language_model --config shakespeare --text shakespeare.txt \
        --run runs/shakespeare

Hardware, minutes and score: see docs/results.md.
"""

from train.language_model import LanguageModelConfig

CONFIG = LanguageModelConfig(
    hold_out=0.1,
    size="medium",
    num_heads=4,
    activation="relu",  # the exact GELU takes a third more time here
    dropout=0.2,
    context=256,
    batch_size=16,
    dtype="mixed_bfloat16",
    steps=4000,
    peak_rate=0.0015,
    warmup_steps=200,
    weight_decay=0.1,
    clip_norm=1.0,
    evaluate_every=500,
    checkpoint_every=100,
    average=5,
)
