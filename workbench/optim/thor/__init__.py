"""THOR: second-order training with Kronecker factors that are refreshed now and then."""
