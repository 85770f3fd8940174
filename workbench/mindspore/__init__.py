"""The reference's names and ways to train: cells, Model, callbacks; thin shells around the packages below."""
