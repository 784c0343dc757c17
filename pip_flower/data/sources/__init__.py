"""Where images come from: one file per source, and the registry."""
