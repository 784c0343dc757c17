from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.local_grid import LocalGrid
from support.runs import kept_by_clients, play, strategy_for


def test_private_heads_stay_on_their_clients_and_are_tested_there(
    small_run: dict[str, Any], tmp_path: Path
) -> None:
    overrides = f"{small_run['overrides']} federation.clients_per_round=4 runtime.state_dir={tmp_path}"
    run_config = small_run | {"method": "ablation-d", "overrides": overrides}
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    assert not any(name.startswith("head.") for name in notes.final)
    for reply in grid.replies:
        assert not any(name.startswith("head.") for r in reply.content.array_records.values() for name in r)
    heads = kept_by_clients(tmp_path)
    assert len(heads) == 4
    for kept in heads:
        assert set(kept) == {f"head.{task}.{kind}" for task in range(3) for kind in ("weight", "bias")}
    weights = [kept["head.0.weight"] for kept in heads]
    assert not any(np.array_equal(weights[0], other) for other in weights[1:])


def test_private_heads_are_tested_on_all_classes_seen(small_run: dict[str, Any], tmp_path: Path) -> None:
    """Every client on the whole test set, beside it on its own classes; recomputed from what clients keep."""
    overrides = f"{small_run['overrides']} federation.clients_per_round=4 runtime.state_dir={tmp_path}"
    run_config = small_run | {"method": "ablation-a", "overrides": overrides}
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    # Six test images of each of two, four and six classes, by each of four clients.
    assert [e.samples for e in notes.evaluations] == [[48], [48, 48], [48, 48, 48]]
    assert sum(m.metadata.message_type == "evaluate" for m in grid.sent) == 3 * 4

    method = strategy_for(run_config).method
    everywhere, own = [], []
    for partition, kept in enumerate(kept_by_clients(tmp_path)):
        state = {name: torch.from_numpy(np.array(value)) for name, value in {**notes.final, **kept}.items()}
        held = list(method.workspace.holdings(partition))
        rows = [method.workspace.test_samples(task) for task in range(3)]
        hits = [method.scores(state, samples, 3).argmax(dim=1).numpy() == samples.labels for samples in rows]
        everywhere.append([100 * found.mean() for found in hits])
        known = [np.isin(samples.labels, held) for samples in rows]
        own.append([100 * found[mask].mean() for found, mask in zip(hits, known, strict=True)])
    assert notes.evaluations[2].accuracies == pytest.approx(np.mean(everywhere, axis=0))
    assert notes.evaluations[2].own_accuracies == pytest.approx(np.mean(own, axis=0))
    # Most clients hold one of a task's two classes, and know no other.
    assert notes.evaluations[0].own_accuracies[0] > notes.evaluations[0].accuracies[0] + 10


def test_shared_heads_have_no_own_classes(small_run: dict[str, Any]) -> None:
    overrides = f"{small_run['overrides']} evaluation.where=clients schedule.rounds=3 training.epochs=1"
    notes = play(small_run | {"method": "ablation-e", "overrides": overrides})
    assert [e.own_accuracies for e in notes.evaluations] == [[]] * 3
    assert [e.samples for e in notes.evaluations] == [[12], [12, 12], [12, 12, 12]]


def test_a_private_head_is_taken_up_where_it_was_left(small_run: dict[str, Any]) -> None:
    """With one client, keeping the head private or averaging it is the same training."""
    alone = f"{small_run['overrides']} federation.clients=1 federation.clients_per_round=1"
    results = [play(small_run | {"method": m, "overrides": alone}) for m in ("ablation-d", "pip-dualprompt")]
    private, shared = (notes.final["general"] for notes in results)
    assert np.array_equal(private, shared)
