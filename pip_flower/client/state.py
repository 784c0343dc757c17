"""What a client keeps between rounds, on its own disk: private heads, exemplars, optimizer state.

It never travels. The server names the run and the last round in which it merged this client's reply; the
client goes on from its state after that very round, so that a server that went back to a checkpoint takes its
clients along.
"""

import re
from pathlib import Path

from pip_flower.arrays import Arrays
from pip_flower.storage.checksummed import TornFileError, read_checksummed, write_checksummed
from pip_flower.storage.files import sweep

# The server keeps at least two checkpoints, and a client has at most one state that belongs to each.
_KEPT = 2
_NAME = re.compile(r"round-(\d+)\.state")
_RUN = re.compile(r"[0-9a-f]{32}")


class LostStateError(RuntimeError):
    """The state that the server wants this client to go on from is not there."""


class ClientStates:
    """The states of one client in one run: `<root>/<run>/client-<partition>/round-000012.state`."""

    def __init__(self, root: Path, run: str, partition: int) -> None:
        if not _RUN.fullmatch(run):
            raise ValueError(f"{run!r} does not identify a run")
        self.directory = root / run / f"client-{partition}"

    def load(self, round_: int) -> Arrays:
        """The state after `round_`; round 0 is before any."""
        if round_ == 0:
            return {}
        try:
            return read_checksummed(self._path(round_)).arrays
        except (FileNotFoundError, TornFileError) as error:
            raise LostStateError(
                f"this client's own state after round {round_} is lost ({error}); it cannot go on without"
            ) from None

    def save(self, round_: int, since: int, memory: Arrays) -> None:
        """Keep the state after `round_`, which went on from the one after `since`.

        States between the two are of rounds that the server never merged or has gone back behind.
        """
        # Nobody else's business, whoever may read the directory above.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(self.directory)
        before = [known for known in self._rounds() if known <= since]
        for known in self._rounds():
            if known not in before[-_KEPT:]:
                self._path(known).unlink()
        write_checksummed(self._path(round_), memory, {"round": round_})

    def intact(self) -> list[int]:
        """Rounds whose states can be gone on from."""
        whole = []
        for round_ in self._rounds():
            try:
                self.load(round_)
            except LostStateError:
                continue
            whole.append(round_)
        return whole

    def _rounds(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _path(self, round_: int) -> Path:
        return self.directory / f"round-{round_:06}.state"
