"""Gradient freezing: train only the later layers in a growing share of the steps."""
