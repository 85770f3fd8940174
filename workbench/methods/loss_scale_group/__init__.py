"""Per-group loss scales: one dynamic scale for each group of parameters."""
