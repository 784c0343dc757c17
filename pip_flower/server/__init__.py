"""A run on the server: configuration in, run directory out; taking it up again."""
