"""One file or folder per method, and the parts that several share; `method.registry` finds them by name."""
