import random
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from pip_flower.config.schema import ConfigError
from pip_flower.models.backbone import backbone_loads
from pip_flower.rounds.observer import EvaluationRecord, Observer
from pip_flower.rounds.roster import FederationError
from support.local_grid import LocalGrid
from support.runs import Notes, digest, play, strategy_for

RunConfig = dict[str, Any]


def changed(run_config: RunConfig, overrides: str) -> RunConfig:
    return run_config | {"overrides": f"{run_config['overrides']} {overrides}"}


def shuffled(seed: int) -> Any:
    rng = random.Random(seed)

    def order(waiting: list[Message]) -> list[Message]:
        rng.shuffle(waiting)
        return waiting

    return order


def test_results_do_not_depend_on_node_ids_or_the_order_of_replies(small_run: RunConfig) -> None:
    runs = [
        play(small_run, LocalGrid(4, small_run)),
        play(small_run, LocalGrid(4, small_run, order=shuffled(1), id_seed=5)),
        play(small_run, LocalGrid(4, small_run, order=lambda waiting: waiting[::-1], id_seed=9)),
    ]
    for other in runs[1:]:
        assert digest(other.final) == digest(runs[0].final)
        assert [e.accuracies for e in other.evaluations] == [e.accuracies for e in runs[0].evaluations]
        assert [r.clients for r in other.rounds] == [r.clients for r in runs[0].rounds]


def test_another_seed_gives_another_run(small_run: RunConfig) -> None:
    assert digest(play(small_run).final) != digest(play(small_run | {"seed": 8}).final)


def test_clients_are_drawn_by_seed_and_round_alone(small_run: RunConfig) -> None:
    longer = changed(small_run, "schedule.rounds=39")
    first, second = strategy_for(longer), strategy_for(longer)
    drawn = [first.draw_clients(r) for r in range(1, 40)]
    assert drawn == [second.draw_clients(r) for r in range(1, 40)]
    assert all(len(set(clients)) == 2 and clients == sorted(clients) for clients in drawn)
    assert {client for clients in drawn for client in clients} == {0, 1, 2, 3}


def test_a_task_changes_nothing_of_another(small_run: RunConfig) -> None:
    strategy = strategy_for(small_run)
    grid = LocalGrid(4, small_run)
    before: dict[int, dict[str, bytes]] = {}

    class Keep(Observer):
        def task_evaluated(self, record: EvaluationRecord) -> None:
            before[record.task] = digest(strategy.arrays)

    strategy.observer = Keep()
    strategy.run(grid)
    for name in ("expert.0", "key.0", "head.0.weight", "head.0.bias"):
        assert before[0][name] == before[1][name] == before[2][name]
    assert before[0]["general"] != before[1]["general"]


def test_progress_and_figures_are_told(small_run: RunConfig) -> None:
    play(small_run)
    before = backbone_loads()
    notes = play(small_run)
    assert [r.round for r in notes.rounds] == [1, 2, 3, 4, 5, 6]
    assert [r.task for r in notes.rounds] == [0, 0, 1, 1, 2, 2]
    assert [len(e.accuracies) for e in notes.evaluations] == [1, 2, 3]
    assert notes.replies[:2] == [(1, 1, 2), (1, 2, 2)]
    for record in notes.rounds:
        assert record.failed == 0
        # Other tests may have loaded others in this process; eight clients of this run loaded none.
        assert record.metrics["backbone_loads"] == before
        # 96-wide prompts and head rows of one task, prototypes of at most two classes.
        assert record.traffic_up.messages == record.traffic_down.messages == 2
        assert 20_000 < record.traffic_up.per_message < 30_000
        assert 20_000 < record.traffic_down.per_message < 30_000


def test_a_failing_client_costs_only_its_own_reply(small_run: RunConfig) -> None:
    grid = LocalGrid(4, small_run)
    drawn = strategy_for(small_run).draw_clients(1)
    replying = grid.reply_to

    def fail_in_training(message: Message) -> Message:
        partition = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if message.metadata.message_type == "train" and partition == drawn[0]:
            grid.broken = {message.metadata.dst_node_id}
        return replying(message)

    grid.reply_to = fail_in_training  # type: ignore[method-assign]
    notes = play(small_run, grid)
    assert notes.rounds[0].failed == 1
    assert notes.rounds[0].clients == drawn[1:]


def test_a_round_that_nobody_finishes_stops_the_run(small_run: RunConfig) -> None:
    grid = LocalGrid(4, small_run)
    replying = grid.reply_to

    def fail(message: Message) -> Message:
        if message.metadata.message_type == "train":
            grid.broken = set(grid.contexts)
        return replying(message)

    grid.reply_to = fail  # type: ignore[method-assign]
    with pytest.raises(FederationError, match="round 1: no client finished .*the disk is on fire"):
        play(small_run, grid)


def test_too_few_nodes_stop_the_run_with_the_command_to_use(small_run: RunConfig) -> None:
    with pytest.raises(FederationError) as error:
        play(small_run, LocalGrid(2, small_run))
    assert "only 2 SuperNodes" in str(error.value)
    assert 'flwr run . --stream --federation-config "num-supernodes=4"' in str(error.value)


def test_a_node_with_another_configuration_is_refused(small_run: RunConfig) -> None:
    grid = LocalGrid(4, changed(small_run, "training.epochs=5"))
    with pytest.raises(FederationError, match="has another config than the server"):
        play(small_run, grid)


def test_evaluation_on_the_clients_counts_the_same_samples(small_run: RunConfig) -> None:
    on_server = play(small_run)
    on_clients = play(changed(small_run, "evaluation.where=clients"))
    # The configuration differs, the streams do not: the same model, tested in pieces.
    assert digest(on_clients.final) == digest(on_server.final)
    for here, there in zip(on_clients.evaluations, on_server.evaluations, strict=True):
        assert here.samples == there.samples
        assert here.accuracies == pytest.approx(there.accuracies, abs=9)


def test_learning_beats_guessing(small_run: RunConfig) -> None:
    after_first_task = play(small_run).evaluations[0].accuracies[0]
    assert after_first_task > 60
    assert np.isfinite(after_first_task)


def test_data_that_leaves_a_client_empty_is_refused_before_the_first_round(small_run: RunConfig) -> None:
    crowded = changed(small_run, "federation.clients=40 partition.scheme=iid")
    with pytest.raises(ConfigError, match="task 1 has too few samples"):
        play(crowded, LocalGrid(4, crowded))


@pytest.mark.parametrize(
    ("method", "where"),
    [("pip-dualprompt", "server"), ("pip-dualprompt", "clients"), ("ablation-d", "server")],
)
def test_flowers_own_loop_plays_the_same_run(small_run: RunConfig, method: str, where: str) -> None:
    run_config = changed(small_run, f"evaluation.where={where} training.epochs=1") | {"method": method}
    ours = play(run_config)
    strategy, notes = strategy_for(run_config), Notes()
    strategy.observer = notes
    result = strategy.start(
        LocalGrid(4, run_config), ArrayRecord(), num_rounds=6, evaluate_fn=strategy.evaluate_fn
    )
    assert digest({name: array.numpy() for name, array in result.arrays.items()}) == digest(ours.final)
    assert [e.accuracies for e in notes.evaluations] == [e.accuracies for e in ours.evaluations]
    on_clients = where == "clients" or method == "ablation-d"
    tested = result.evaluate_metrics_clientapp if on_clients else result.evaluate_metrics_serverapp
    assert [tested[round_]["accuracy"] for round_ in (2, 4, 6)] == [e.accuracy for e in ours.evaluations]
