"""AdamOffload: Adam whose states live and whose updates happen on the host.

``host_adam.py`` has the formula, ``host_transfer.py`` how gradients and weights travel; ``optimizer.py`` puts them
together and reads what a user passes.
"""
