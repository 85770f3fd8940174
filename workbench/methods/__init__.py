"""Training methods, one folder each; each is pure PyTorch and knows nothing of the others."""
