"""What a run sent, from the lines of its metrics: per message, per client and task, and in all."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pip_flower.rounds.observer import Traffic


@dataclass(frozen=True)
class RunTraffic:
    """Messages of training and of the work at the end of tasks, and apart from these those of testing; a
    client counts in `client_tasks` once for each task that it took part in."""

    up: Traffic
    down: Traffic
    client_tasks: int
    testing_up: Traffic
    testing_down: Traffic

    @classmethod
    def of(cls, lines: Iterable[dict[str, Any]]) -> "RunTraffic":
        """From the records of metrics.jsonl."""
        listed = list(lines)
        work = [line for line in listed if line["kind"] in ("round", "conclusion")]
        testing = [line for line in listed if line["kind"] == "evaluation"]
        took_part = {(client, line["task"]) for line in work for client in line["clients"]}
        up, down = _summed(work, "traffic_up"), _summed(work, "traffic_down")
        return cls(up, down, len(took_part), _summed(testing, "traffic_up"), _summed(testing, "traffic_down"))

    def per_client_task(self, direction: Traffic) -> float:
        """Bytes that a client sends (`up`) or gets (`down`) for a task that it takes part in, on average."""
        return direction.bytes / self.client_tasks if self.client_tasks else 0.0

    def as_mapping(self) -> dict[str, Any]:
        """Plain values, in bytes."""
        directions = {"up": (self.up, self.testing_up), "down": (self.down, self.testing_down)}
        return {
            name: {
                "messages": sent.messages,
                "per_message": sent.per_message,
                "per_client_and_task": self.per_client_task(sent),
                "per_run": sent.bytes,
                "testing": testing.bytes,
            }
            for name, (sent, testing) in directions.items()
        }


def _summed(lines: Iterable[dict[str, Any]], direction: str) -> Traffic:
    return sum((Traffic(**line[direction]) for line in lines), Traffic())
