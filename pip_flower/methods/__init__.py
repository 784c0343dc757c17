"""One file per method; `registry` finds them by name."""
