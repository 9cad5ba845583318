"""Models that score the next item from a history: `start`, `logits`, `advance`, and how they are trained and kept."""
