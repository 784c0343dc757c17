"""Writes a checkpoint after every round."""

from pip_flower.config.sections import Config
from pip_flower.reporting.run_log import RunLog
from pip_flower.rounds.observer import Observer
from pip_flower.rounds.schedule import Schedule
from pip_flower.storage.checkpoints import Checkpoint, CheckpointStore, RunState


class Checkpointer(Observer):
    """Comes after the log among the observers: a checkpoint holds what the log holds."""

    def __init__(
        self, store: CheckpointStore, run: str, config: Config, schedule: Schedule, log: RunLog
    ) -> None:
        self.store = store
        self.run = run
        self.config = config
        self.schedule = schedule
        self.log = log

    def round_closed(self, state: RunState) -> None:
        """One file."""
        plain = self.config.as_mapping()
        self.store.save(Checkpoint(self.run, plain, self.schedule.lengths, state, self.log.position))
