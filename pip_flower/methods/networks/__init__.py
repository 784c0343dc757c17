"""What methods share that train a whole network from scratch."""
