"""What goes wrong with a task: one exception, always one sentence."""

from __future__ import annotations


class TaskError(ValueError):
    """A task cannot be found, loaded or used as written; the message names the part, the rule and what came."""
