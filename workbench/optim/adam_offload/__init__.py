"""AdamOffload: Adam whose states live and whose updates happen on the host."""
