"""Nodes come and go, bring other files than the server has, and are found by their partition."""

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message

from pip_flower.rounds.observer import Observer, Observers
from pip_flower.rounds.roster import FederationError
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.storage.checkpoints import RunState
from support.clock import poll_clock  # noqa: F401  (a fixture)
from support.local_grid import LocalGrid
from support.runs import Notes, digest, play, strategy_for

RunConfig = dict[str, Any]


def changed(run_config: RunConfig, overrides: str) -> RunConfig:
    return run_config | {"overrides": f"{run_config['overrides']} {overrides}"}


class AfterRound(Observer):
    """Does something when a round is over."""

    def __init__(self, round_: int, act: Callable[[], None]) -> None:
        self.round, self.act = round_, act

    def round_closed(self, state: RunState) -> None:
        if state.round == self.round:
            self.act()


def play_with(run_config: RunConfig, grid: LocalGrid, *watching: Observer) -> Notes:
    strategy: TaskStrategy = strategy_for(run_config)
    notes = Notes()
    strategy.observer = Observers([notes, *watching])
    strategy.run(grid)
    return notes


def leave(grid: LocalGrid, partition: int) -> Any:
    """Take a node off the grid; returns its context."""
    node = next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == partition)
    return grid.contexts.pop(node)


def everybody(run_config: RunConfig) -> RunConfig:
    return changed(run_config, "federation.clients_per_round=4 training.epochs=1")


def test_a_node_that_left_is_replaced_and_takes_part_again_under_a_new_id(small_run: RunConfig) -> None:
    run_config = everybody(small_run)
    grid = LocalGrid(4, run_config)
    kept: list[Any] = []
    notes = play_with(
        run_config,
        grid,
        AfterRound(1, lambda: kept.append(leave(grid, 2))),
        AfterRound(3, lambda: grid.contexts.update({999_999_999: kept[0]})),
    )
    took_part = [record.clients for record in notes.rounds]
    assert took_part[:3] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 3]]
    # A new node is asked without waiting for its reply: it is in by the round after the next at the latest.
    assert took_part[4:] == [[0, 1, 2, 3]] * 2
    assert sum(record.failed for record in notes.rounds) == 0


def test_others_stand_in_for_those_that_are_absent(small_run: RunConfig) -> None:
    run_config = changed(small_run, "federation.min_nodes=3")
    grid = LocalGrid(4, run_config)
    leave(grid, 1)
    notes = play(run_config, grid)
    assert all(len(record.clients) == 2 and 1 not in record.clients for record in notes.rounds)
    # Who was drawn and is there takes part, as if nobody were missing.
    strategy = strategy_for(run_config)
    for record in notes.rounds:
        assert set(strategy.draw_clients(record.round)) - {1} <= set(record.clients)


def test_known_nodes_are_asked_once(small_run: RunConfig) -> None:
    grid = LocalGrid(4, small_run)
    play(small_run, grid)
    assert sum(message.metadata.message_type == "query" for message in grid.sent) == 4


def with_backbone(grid: LocalGrid, partition: int, digest_: str) -> None:
    replying = grid.reply_to

    def lose(message: Message) -> Message:
        node = message.metadata.dst_node_id
        theirs = grid.contexts[node].node_config["partition-id"]
        reply = replying(message)
        if message.metadata.message_type == "query" and theirs == partition:
            reply.content.config_records["config"]["backbone"] = digest_
        return reply

    grid.reply_to = lose  # type: ignore[method-assign]


def test_a_node_with_another_backbone_is_refused_by_name_and_the_others_go_on(
    small_run: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    run_config = changed(small_run, "federation.min_nodes=3")
    grid = LocalGrid(4, run_config)
    with_backbone(grid, 2, "deadbeef")
    notes = play(run_config, grid)
    assert all(2 not in record.clients for record in notes.rounds)
    said = capsys.readouterr().out
    assert "(partition 2) has another backbone than the server: 'deadbeef' instead of" in said
    assert "starting without clients 2" in said


def test_where_all_nodes_are_needed_a_wrong_one_stops_the_run_at_once(small_run: RunConfig) -> None:
    patient = changed(small_run, "federation.wait_seconds=300")
    grid = LocalGrid(4, patient)
    with_backbone(grid, 2, "deadbeef")
    with pytest.raises(FederationError, match=r"\(partition 2\) has another backbone .*'deadbeef' instead"):
        play(patient, grid)


def test_a_round_without_enough_nodes_stops_the_run(small_run: RunConfig) -> None:
    run_config = changed(small_run, "federation.min_clients=2 training.epochs=1")
    grid = LocalGrid(4, run_config)

    def all_but_one_leave() -> None:
        for partition in (0, 1, 2):
            leave(grid, partition)

    with pytest.raises(FederationError, match="only 1 of at least 2 nodes are there"):
        play_with(run_config, grid, AfterRound(2, all_but_one_leave))


def test_the_server_needs_no_data_where_clients_test(small_run: RunConfig) -> None:
    run_config = changed(small_run, "evaluation.where=clients training.epochs=1")
    expected = play(run_config)
    without = run_config | {"data-dir": "/nowhere/at-all.npz"}
    grid = LocalGrid(4, without)
    for context in grid.contexts.values():
        context.node_config["data-dir"] = small_run["data-dir"]
    notes = play(without, grid)
    assert digest(notes.final) == digest(expected.final)
    assert [e.accuracies for e in notes.evaluations] == [e.accuracies for e in expected.evaluations]
    assert all(record.failed == 0 for record in notes.rounds)


@pytest.mark.usefixtures("poll_clock")
def test_a_node_that_keeps_silent_costs_one_round_and_is_back_when_it_replies(small_run: RunConfig) -> None:
    run_config = changed(everybody(small_run), "federation.round_timeout=6")
    grid = LocalGrid(4, run_config)
    pulling, deaf = grid.pull_messages, set[str]()

    def pull(message_ids: Any) -> list[Message]:
        return pulling([message for message in message_ids if message not in deaf])

    def hide(message: Message) -> bool:
        theirs = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        return bool(theirs == 1)

    grid.pull_messages = pull  # type: ignore[method-assign]
    pushing = grid.push_messages

    def push(messages: Any) -> list[str]:
        sent = list(messages)
        ids = pushing(sent)
        if 2 <= len(notes.rounds) < 4:
            deaf.update(message.metadata.message_id for message in sent if hide(message))
        return ids

    grid.push_messages = push  # type: ignore[method-assign]
    strategy = strategy_for(run_config)
    notes = Notes()
    strategy.observer = Observers([notes, AfterRound(4, deaf.clear)])
    strategy.run(grid)
    assert [record.failed for record in notes.rounds] == [0, 0, 1, 0, 0, 0]
    assert [record.clients for record in notes.rounds][2:] == [[0, 2, 3], [0, 2, 3]] + [[0, 1, 2, 3]] * 2
