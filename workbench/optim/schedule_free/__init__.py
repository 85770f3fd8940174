"""Schedule-Free AdamW: an average of the weights in place of a falling learning rate."""
