"""Arithmetic between rounds and tasks; rounds count from 1 as in Flower, tasks from 0."""

from dataclasses import dataclass

from pip_flower.config import ScheduleConfig


@dataclass(frozen=True)
class Schedule:
    """T tasks of R / T rounds each."""

    tasks: int
    rounds: int

    @classmethod
    def from_config(cls, config: ScheduleConfig) -> "Schedule":
        """The schedule of a checked configuration."""
        return cls(config.tasks, config.rounds)

    @property
    def rounds_per_task(self) -> int:
        """R_T = R / T."""
        return self.rounds // self.tasks

    def task_of(self, round_: int) -> int:
        """The task that `round_` trains."""
        return (round_ - 1) // self.rounds_per_task

    def starts_task(self, round_: int) -> bool:
        """True in a task's first round."""
        return (round_ - 1) % self.rounds_per_task == 0

    def ends_task(self, round_: int) -> bool:
        """True in a task's last round."""
        return round_ % self.rounds_per_task == 0
