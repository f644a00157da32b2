"""Compares a folder for CTranslate2 with the log-probabilities that it must give.

python -P ctranslate2.py FOLDER EXAMPLE.npz
"""

import json
import sys

TOLERANCE = 1e-3  # of the sum of a text, in nats, where weights are float32
# Of smaller weights: how far the mean log-probabilities of texts may be off, as a share of how much
# they differ from text to text (standard deviations). Random models with weights so large that
# rounding shows most reached 0.21 in int8, 0.05 in int16, 0.02 in bfloat16 and 0.01 in float16;
# arrays in reverse order gave 0.63 and more.
SHARES = {"int8": 0.3, "int16": 0.1, "bfloat16": 0.2, "float16": 0.1}


def main(folder, example):
    import ctranslate2
    import numpy as np

    arrays = np.load(example)
    dtype = str(arrays["dtype"])
    pieces, expected = json.loads(str(arrays["pieces"])), arrays["scores"]
    kind = ctranslate2.Translator if len(pieces) == 2 else ctranslate2.Generator
    engine = kind(folder, device="cpu", compute_type="default")
    results = engine.score_batch(*pieces)
    scores = np.array([sum(result.log_probs) for result in results])
    if not np.isfinite(scores).all():
        sys.exit(f"log-probabilities must be finite. Received: {scores.tolist()}")
    difference = np.abs(scores - expected).max()
    if dtype == "float32":
        if difference > TOLERANCE:
            sys.exit(f"log-probabilities differ by {difference:.1e} nats")
        return
    lengths = np.array([len(result.log_probs) for result in results])
    error = np.sqrt(np.mean(((scores - expected) / lengths) ** 2))
    share = error / np.std(expected / lengths)
    if not share <= SHARES[dtype]:
        sys.exit(
            f"log-probabilities of {dtype} differ by up to {difference:.1e} nats, "
            f"{share:.2f} of how much texts differ: more than {SHARES[dtype]}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
