"""Device and precision, named random streams, what a process and a machine keep."""
