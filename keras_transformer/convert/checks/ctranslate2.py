"""Compares a folder for CTranslate2 with the log-probabilities that it must give.

python -P ctranslate2.py FOLDER EXAMPLE.npz
"""

import json
import sys

TOLERANCE = {"float32": 1e-3}  # of the sum of a text, in nats; quantised weights differ by more


def main(folder, example):
    import ctranslate2
    import numpy as np

    arrays = np.load(example)
    pieces, expected = json.loads(str(arrays["pieces"])), arrays["scores"]
    kind = ctranslate2.Translator if len(pieces) == 2 else ctranslate2.Generator
    engine = kind(folder, device="cpu", compute_type="default")
    scores = [sum(result.log_probs) for result in engine.score_batch(*pieces)]
    if not np.isfinite(scores).all():
        sys.exit(f"log-probabilities must be finite. Received: {scores}")
    difference = float(np.max(np.abs(np.array(scores) - expected), initial=0.0))
    if difference > TOLERANCE.get(engine.compute_type, np.inf):
        sys.exit(f"log-probabilities differ by {difference:.1e} nats: {scores}, not {expected}")


if __name__ == "__main__":
    main(*sys.argv[1:])
