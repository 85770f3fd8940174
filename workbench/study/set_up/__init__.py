"""The fastest training set-up: plans with a known total time, searched for the quality that the task reaches today."""
