"""`python -m train.benchmark` prints the speed of one model on this machine; in no wheel."""
