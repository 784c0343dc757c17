"""The operator's side of a running SuperLink: admit nodes, run the app."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pip_flower.config.schema import ConfigError
from pip_flower.deployment.plan import CONNECTION
from pip_flower.deployment.texts import PLACE
from pip_flower.flower.launch import Launch, interruptible
from pip_flower.flower.launcher import FlowerRunner, LaunchError
from pip_flower.flower.programs import program

_PATIENCE = 180


class DeploymentRunner(FlowerRunner):
    """Runs the app on the SuperLink that a server's bundle belongs to; started and stopped by others."""

    connection = CONNECTION

    def __init__(self, bundle: Path, launch: Launch | None = None) -> None:
        config = bundle / "config.toml"
        if not config.is_file():
            raise ConfigError(
                "SERVER_BUNDLE", f"{bundle} has no config.toml", "Give the server's bundle of `deploy init`"
            )
        super().__init__(launch)
        if self._ends_launch:
            self.resume_options = ("--deployment", str(bundle))
        # The certificate is beside it, wherever that is.
        text = config.read_text(encoding="utf-8").replace(PLACE, str(bundle.resolve()))
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def register(self, public_key: Path) -> bool:
        """Admit a node; whether it is new. The SuperLink may only just have been started."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            said = self.flwr("supernode", "register", str(public_key), self.connection)
            if "registered successfully" in said:
                return True
            if "already" in said:
                return False
            if time.monotonic() > deadline:
                raise LaunchError(f"{public_key.name} could not be registered:\n{said.strip()}")
            time.sleep(1)

    def _run_started(self, run_id: int) -> None:
        """The SuperLink goes on without us: the run has to be stopped there."""
        if self._ends_launch:
            stop = [program("flwr"), "stop", str(run_id), self.connection]
            self.launch.farewell(stop, self.environment)

    def _run_ended(self) -> None:
        if self._ends_launch:
            self.launch.farewell([], {})


@contextmanager
def deployment_runner(bundle: Path, launch: Launch | None = None) -> Iterator[DeploymentRunner]:
    """A runner for the SuperLink of `bundle`; the run is stopped, whatever ends this process."""
    with interruptible():
        runner = DeploymentRunner(bundle, launch)
        try:
            yield runner
        finally:
            runner.stop()


def register_all(bundle: Path) -> dict[str, bool]:
    """Admit every node whose public key is in the server's bundle; by name, whether it is new."""
    with deployment_runner(bundle) as runner:
        return {key.stem: runner.register(key) for key in sorted((bundle / "nodes").glob("*.pub"))}
