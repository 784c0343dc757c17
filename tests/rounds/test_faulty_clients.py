"""Clients that fail, lie or send rubbish cost their own reply and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.roster import FederationError
from support.clock import poll_clock  # noqa: F401  (a fixture)
from support.killing import serve_here
from support.local_grid import LocalGrid
from support.runs import Notes, play, strategy_for

RunConfig = dict[str, Any]
Mutation = Callable[[Message], Message | None]


class FaultyGrid(LocalGrid):
    """`mutate` gets the training reply of client `faulty` (of everybody, if None) and may drop it."""

    def __init__(self, run_config: RunConfig, mutate: Mutation, faulty: int | None = None) -> None:
        super().__init__(4, run_config)
        self.mutate = mutate
        self.faulty = faulty

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = []
        for reply in super().pull_messages(message_ids):
            partition = self.contexts[reply.metadata.src_node_id].node_config["partition-id"]
            trained = reply.metadata.message_type == "train"
            mutated = self.mutate(reply) if trained and self.faulty in (None, partition) else reply
            replies += [mutated] if mutated is not None else []
        return replies


def change(name: str, how: Callable[[np.ndarray], np.ndarray], target: str = "") -> Mutation:
    def mutate(reply: Message) -> Message:
        arrays = reply.content.array_records["arrays"]
        arrays[target or name] = Array(np.ascontiguousarray(how(arrays[name].numpy().copy())))
        return reply

    return mutate


def figure(name: str, value: Any) -> Mutation:
    def mutate(reply: Message) -> Message:
        reply.content.metric_records["metrics"][name] = value
        return reply

    return mutate


def drop(name: str) -> Mutation:
    def mutate(reply: Message) -> Message:
        arrays = dict(reply.content.array_records["arrays"])
        arrays.pop(name)
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return mutate


def spoil(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def how(array: np.ndarray) -> np.ndarray:
        array.flat[0] = value
        return array

    return how


FAULTS: dict[str, tuple[Mutation, str]] = {
    "missing array": (drop("general"), "array 'general' is missing"),
    "extra array": (change("general", lambda a: a, "head.5.bias"), "array 'head.5.bias' was not asked for"),
    "wrong shape": (change("general", lambda a: a[..., :-1]), "general has shape"),
    "wrong dtype": (change("general", lambda a: a.astype(np.float64)), "general is float64 instead of"),
    "NaN": (change("general", spoil(np.nan)), "general has NaN or infinity"),
    "infinity": (change("prototype.mean", spoil(np.inf)), "prototype.mean has NaN or infinity"),
    "absurd norm": (change("head.0.weight", lambda a: a * 1e9), "head.0.weight has a norm of"),
    "foreign class": (change("prototype.classes", lambda a: a + 6), "which the task does not have"),
    "negative variance": (change("prototype.variance", spoil(-1e-3)), "prototype.variance is negative"),
    "no sample": (figure("num-examples", 0), "it claims 0 samples"),
    "a lie": (figure("num-examples", 10**12), "it claims 1000000000000 samples, above 1000000"),
    "count beyond samples": (change("prototype.count", lambda a: a * 1000), "adds up to more than the"),
    "metric": (figure("last_epoch_loss", float("nan")), "metric 'last_epoch_loss' is nan"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_is_not_valid_is_rejected_as_a_whole(small_run: RunConfig, fault: str) -> None:
    mutate, reason = FAULTS[fault]
    run_config = one_round(small_run)
    drawn = strategy_for(run_config).draw_clients(1)
    notes = play(run_config, FaultyGrid(run_config, mutate, faulty=drawn[0]))
    without = play(run_config, FaultyGrid(run_config, broken, faulty=drawn[0]))
    record = notes.rounds[0]
    assert (record.failed, record.clients) == (1, drawn[1:])
    assert [(failure.client, failure.attempt) for failure in record.failures] == [(drawn[0], 0)]
    assert reason in record.failures[0].reason
    assert model(notes) == model(without)


def one_round(small_run: RunConfig) -> RunConfig:
    short = "dataset.classes=6 schedule.tasks=1 schedule.rounds=1 training.epochs=1"
    return small_run | {"overrides": f"{small_run['overrides']} {short}"}


def broken(reply: Message) -> Message:
    reply.content.metric_records["metrics"]["num-examples"] = -1
    return reply


def model(notes: Notes) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in notes.final.items()}


class Once:
    """Ruins the replies of the first so many trainings."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, reply: Message) -> Message:
        self.left -= 1
        return broken(reply) if self.left >= 0 else reply


def test_a_round_with_too_few_replies_is_repeated_with_other_clients(small_run: RunConfig) -> None:
    needs_two = changed(small_run, "federation.min_clients=2 training.epochs=1")
    strategy = strategy_for(needs_two)
    notes = play(needs_two, FaultyGrid(needs_two, Once(1)))
    first = notes.rounds[0]
    assert first.attempts == 2
    assert first.clients == strategy.draw_clients(1, attempt=1)
    assert [(f.client, f.attempt) for f in first.failures] == [(strategy.draw_clients(1)[0], 0)]
    assert [record.attempts for record in notes.rounds[1:]] == [1] * 5
    # What came of the first attempt is not used: the round is the one of a federation that drew so at once.
    assert first.samples == sum(
        len(strategy.method.samples(0, client, 1)) for client in strategy.draw_clients(1, attempt=1)
    )


def test_a_client_that_is_always_rejected_cannot_stop_a_method_that_asks_each_client_once(
    small_run: RunConfig,
) -> None:
    everybody = changed(small_run, "federation.clients_per_round=4") | {"method": "ncm"}
    notes = play(everybody, FaultyGrid(everybody, broken, faulty=2))
    assert [record.clients for record in notes.rounds] == [[0, 1, 3], []] * 3
    assert [record.failed for record in notes.rounds] == [1] * 6


def test_the_first_attempt_draws_as_it_always_did(small_run: RunConfig) -> None:
    strategy = strategy_for(changed(small_run, "schedule.rounds=30"))
    drawn = {attempt: [strategy.draw_clients(r, attempt) for r in range(1, 30)] for attempt in range(3)}
    assert drawn[0] == [strategy.draw_clients(r) for r in range(1, 30)]
    assert drawn[0] != drawn[1] != drawn[2]


def test_a_run_that_stops_can_be_resumed_once_its_clients_are_well(
    small_run: RunConfig, tmp_path: Path
) -> None:
    run_config = changed(small_run, "training.epochs=1") | {"out-dir": str(tmp_path / "ill")}
    whole = serve_here(run_config | {"out-dir": str(tmp_path / "whole")})

    def ill(reply: Message) -> Message:
        return broken(reply) if reply.metadata.group_id == "4" else reply

    with pytest.raises(FederationError, match=r"round 4: no client finished in 3 attempts .*claims -1 sampl"):
        serve_here(run_config, FaultyGrid(run_config, ill))
    (path,) = (tmp_path / "ill").iterdir()
    last = RunDirectory(path).lines()[-1]
    assert (last["kind"], last["round"], len(last["failures"])) == ("stopped", 4, 6)
    serve_here(run_config | {"resume": str(path)})
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert all(line["kind"] != "stopped" for line in RunDirectory(path).lines())


@pytest.mark.usefixtures("poll_clock")
def test_a_client_that_never_replies_is_not_waited_for_beyond_the_timeout(small_run: RunConfig) -> None:
    run_config = changed(one_round(small_run), "federation.round_timeout=2")
    silent = strategy_for(run_config).draw_clients(1)[0]
    notes = play(run_config, FaultyGrid(run_config, lambda _: None, faulty=silent))
    assert [(f.client, f.reason) for f in notes.rounds[0].failures] == [(silent, "no reply in time")]


def test_a_lie_about_tested_samples_does_not_count(small_run: RunConfig) -> None:
    run_config = changed(small_run, "evaluation.where=clients schedule.rounds=3 training.epochs=1")
    grid = LocalGrid(4, run_config)
    replying = grid.reply_to

    def lie(message: Message) -> Message:
        reply = replying(message)
        partition = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if message.metadata.message_type == "evaluate" and partition == 1:
            reply.content.metric_records["metrics"]["correct.0"] = 10**6
        return reply

    grid.reply_to = lie  # type: ignore[method-assign]
    notes = play(run_config, grid)
    for record in notes.evaluations:
        assert [failure.client for failure in record.failures] == [1]
        assert all(0 <= accuracy <= 100 for accuracy in record.accuracies)


def test_failures_are_written_with_their_reasons(small_run: RunConfig, tmp_path: Path) -> None:
    run_config = one_round(small_run) | {"out-dir": str(tmp_path)}
    faulty = strategy_for(run_config).draw_clients(1)[1]
    path = serve_here(run_config, FaultyGrid(run_config, change("general", spoil(np.nan)), faulty))
    line = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["failures"] == [
        {"client": faulty, "attempt": 0, "reason": "general has NaN or infinity in it"}
    ]


def changed(run_config: RunConfig, overrides: str) -> RunConfig:
    return run_config | {"overrides": f"{run_config['overrides']} {overrides}"}
