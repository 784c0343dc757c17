"""Traffic is what was sent, however often nobody was asked."""

from dataclasses import asdict
from typing import Any

import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.flower.records import content_bytes
from pip_flower.reporting.traffic import RunTraffic
from pip_flower.rounds.observer import Traffic
from support.local_grid import LocalGrid
from support.runs import Notes, play


def lines(notes: Notes) -> list[dict[str, Any]]:
    """As a run's log has them."""
    rounds = [{"kind": "round", **asdict(record)} for record in notes.rounds]
    return rounds + [{"kind": "evaluation", **asdict(record)} for record in notes.evaluations]


def of_kind(messages: list[Message], kind: str) -> Traffic:
    sizes = [content_bytes(message) for message in messages if message.metadata.message_type == kind]
    return Traffic(len(sizes), sum(sizes))


@pytest.mark.parametrize("method", ["ncm", "ablation-d"])
def test_what_is_reported_was_on_the_wire(small_run: dict[str, Any], method: str) -> None:
    run_config = small_run | {
        "method": method,
        "overrides": f"{small_run['overrides']} federation.clients_per_round=4 training.epochs=1",
    }
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    found = RunTraffic.of(lines(notes))
    assert found.up == of_kind(grid.replies, "train")
    assert found.down == of_kind(grid.sent, "train")
    assert found.testing_up == of_kind(grid.replies, "evaluate")
    assert found.testing_down == of_kind(grid.sent, "evaluate")
    # Four clients in three tasks of two rounds; those of `ncm` reply once.
    assert found.client_tasks == 12
    assert found.up.messages == (12 if method == "ncm" else 24)
    assert found.per_client_task(found.up) == found.up.bytes / 12


def round_line(task: int, clients: list[int], size: int) -> dict[str, Any]:
    traffic = {"messages": len(clients), "bytes": size * len(clients)}
    return {"kind": "round", "task": task, "clients": clients, "traffic_up": traffic, "traffic_down": traffic}


@given(silent=st.integers(0, 5))
def test_rounds_in_which_nobody_was_asked_change_nothing(silent: int) -> None:
    asked = [round_line(0, [0, 1], 16_000), round_line(1, [1], 16_000)]
    found = RunTraffic.of([*asked, *[round_line(1, [], 0)] * silent])
    assert found == RunTraffic.of(asked)
    assert found.up.per_message == found.per_client_task(found.up) == 16_000
    assert found.as_mapping()["up"]["per_run"] == 48_000


def test_a_client_that_is_asked_again_pays_for_its_task_twice() -> None:
    found = RunTraffic.of([round_line(0, [0, 1], 10), round_line(0, [1, 2], 10), round_line(1, [2], 30)])
    assert found.up.per_message == pytest.approx(70 / 5)
    assert found.per_client_task(found.up) == pytest.approx(70 / 4)


def test_of_nothing_there_is_nothing() -> None:
    assert RunTraffic.of([]).as_mapping()["down"]["per_client_and_task"] == 0.0
