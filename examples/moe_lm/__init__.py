"""A byte-level mixture-of-experts language model, and how `train_moe.py` trains it."""
