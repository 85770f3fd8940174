"""Gradient centralization: subtract from each gradient its mean over the input dimensions."""
