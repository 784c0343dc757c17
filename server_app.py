"""Flower ServerApp: runs the configured experiment."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pip_flower.server.serving import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run."""
    serve(grid, context)
