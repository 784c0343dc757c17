"""Groups of `pip-flower` subcommands, one file each."""
