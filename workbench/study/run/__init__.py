"""How a study runs its trials: in this process, in workers, on several ranks, on Ray."""
