"""Server side: a task-aware Flower strategy, and one file per aggregation rule."""
