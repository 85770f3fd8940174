"""LessBN: remove the BatchNorms that fold into a neighbouring layer, and normalise the classifier instead."""
