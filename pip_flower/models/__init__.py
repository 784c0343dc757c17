"""The frozen backbone, the prompts attached to it, and the classifier."""
