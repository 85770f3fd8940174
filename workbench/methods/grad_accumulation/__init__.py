"""Gradient accumulation: one update for the mean gradient of several micro-batches."""
