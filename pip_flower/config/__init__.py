"""The configuration: its sections as dataclasses, the YAML files, the checks."""
