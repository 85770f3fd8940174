"""Other people's training loops: what of a set-up their own arguments carry, and what goes in through a class of ours.

Nothing is imported here: each framework is an extra of its own.
"""
