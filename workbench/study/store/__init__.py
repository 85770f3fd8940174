"""How a study is kept: trials, claims and results in an Optuna storage."""
