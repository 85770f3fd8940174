"""AdamOffload: Adam whose states live and whose updates happen on the host.

``host_adam.py`` has the formula, ``host_transfer.py`` how gradients and weights travel, ``given_parameters.py`` what a
user may pass as parameters; ``optimizer.py`` puts them together.
"""
