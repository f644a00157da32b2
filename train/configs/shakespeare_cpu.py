"""Characters of Shakespeare at the CPU setting of nanoGPT: its sizes, batches and steps.

    python -m train.language_model --config shakespeare_cpu --text shakespeare.txt \
        --run runs/shakespeare_cpu

Hardware, minutes and score: see docs/results.md.
"""

from train.language_model import LanguageModelConfig

CONFIG = LanguageModelConfig(
    hold_out=0.1,
    size="small",
    context=64,
    batch_size=12,
    steps=2000,
    peak_rate=0.004,
    warmup_steps=100,
    clip_norm=1.0,
    evaluate_every=500,
    checkpoint_every=50,
    average=4,
)
