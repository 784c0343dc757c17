"""Federated class-incremental learning with prototype-injected prompts on Flower."""

__version__ = "0.1.0"
