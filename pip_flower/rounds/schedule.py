"""Arithmetic between rounds and tasks; rounds count from 1 as in Flower, tasks from 0."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pip_flower.config.sections import ScheduleConfig
from pip_flower.method.round import Round


@dataclass(frozen=True)
class Schedule:
    """`lengths[t]` rounds train task t: R / T each, unless a resumed run was given more rounds."""

    lengths: tuple[int, ...]

    @classmethod
    def from_config(cls, config: ScheduleConfig) -> "Schedule":
        """The schedule of a checked configuration."""
        return cls((config.rounds // config.tasks,) * config.tasks)

    @property
    def tasks(self) -> int:
        """T."""
        return len(self.lengths)

    @property
    def rounds(self) -> int:
        """R."""
        return self._ends[-1]

    def round(self, number: int) -> Round:
        """Round `number`, as it begins now."""
        return Round(number, self.task_of(number), self.starts_task(number), self.ends_task(number))

    def task_of(self, round_: int) -> int:
        """The task that `round_` trains."""
        return bisect_left(self._ends, round_)

    def starts_task(self, round_: int) -> bool:
        """True in a task's first round."""
        return round_ == 1 or round_ - 1 in self._ends

    def ends_task(self, round_: int) -> bool:
        """True in a task's last round."""
        return round_ in self._ends

    def finished_tasks(self, rounds: int) -> int:
        """How many tasks are over after `rounds` rounds."""
        return sum(end <= rounds for end in self._ends)

    def lengthened(self, config: ScheduleConfig, done: int) -> "Schedule":
        """Tasks that are over after `done` rounds stay as long as they were; the others take R / T rounds of
        the new configuration."""
        over = self.finished_tasks(done)
        return Schedule(self.lengths[:over] + Schedule.from_config(config).lengths[over:])

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The last round of each task."""
        return tuple(accumulate(self.lengths))
