"""Training methods, one folder each; each is pure PyTorch and knows nothing of the others."""

import workbench.config  # noqa: F401  # takes up each method's section, so that any of their modules may be imported first
