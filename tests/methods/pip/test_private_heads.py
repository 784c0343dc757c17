from pathlib import Path
from typing import Any

import numpy as np

from support.local_grid import LocalGrid
from support.runs import kept_by_clients, play


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
    assert [sum(e.samples) for e in notes.evaluations] == [12, 24, 36]
    assert notes.evaluations[0].accuracies[0] > 60


def test_a_private_head_is_taken_up_where_it_was_left(small_run: dict[str, Any]) -> None:
    """With one client, keeping the head private or averaging it is the same training."""
    alone = f"{small_run['overrides']} federation.clients=1 federation.clients_per_round=1"
    results = [play(small_run | {"method": m, "overrides": alone}) for m in ("ablation-d", "pip-dualprompt")]
    private, shared = (notes.final["general"] for notes in results)
    assert np.array_equal(private, shared)
