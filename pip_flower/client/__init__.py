"""The client side of a round: the NumPyClient, what it keeps on disk, how a node drives it."""
