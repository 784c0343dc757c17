"""The server side of a round: the task-aware Flower strategy and what it is made of."""
