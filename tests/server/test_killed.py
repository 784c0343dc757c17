"""A run killed at any moment and resumed ends as one that was never stopped: the same bytes."""

import random
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from support.killing import cut_newest, finished_within, outcome, serve_here, start

RunConfig = dict[str, Any]
KILLS = 25
# Private heads, tested by the clients; optimizers and heads kept on the clients; sums, a client once a task.
KINDS = (
    ("ablation-d", "training.epochs=1"),
    ("pip-dualprompt", "training.epochs=1 fidelity=released"),
    ("ncm", ""),
)


def run_config_of(small_run: RunConfig, kind: tuple[str, str], out: Path, states: Path) -> RunConfig:
    method, overrides = kind
    return small_run | {
        "method": method,
        "overrides": f"{small_run['overrides']} {overrides} runtime.state_dir={states}",
        "out-dir": str(out),
    }


def test_25_kills_at_random_moments_change_nothing(small_run: RunConfig, tmp_path: Path) -> None:
    rng = random.Random(int(time.time()))
    states = tmp_path / "states"
    expected, seconds = {}, {}
    # Twice: what a process loads once is loaded by then, for the children too.
    for kind in KINDS * 2:
        run_config = run_config_of(small_run, kind, tmp_path / "whole", states)
        began = time.monotonic()
        expected[kind] = outcome(serve_here(run_config))
        seconds[kind] = time.monotonic() - began
    kills, cuts = 0, []
    for number, kind in enumerate(cycle(KINDS)):
        if kills >= KILLS:
            break
        out, log = tmp_path / f"run-{number}", tmp_path / f"log-{number}"
        run_config = run_config_of(small_run, kind, out, states)
        while True:
            found = [path for path in out.glob("[!.]*") if path.is_dir()]
            resumed = run_config | {"resume": str(found[0]) if found else ""}
            began = time.time()
            patience = rng.uniform(0, 0.6 * seconds[kind]) if kills < KILLS else 600
            if finished_within(start(resumed, log), patience, log):
                break
            kills += 1
            if kills % 3 == 0:
                cuts.append(cut_newest([*found, states], began, rng.random()))
        (path,) = (path for path in out.glob("[!.]*") if path.is_dir())
        assert outcome(path) == expected[kind], f"after {kills} kills; cut: {cuts}\n{log.read_text()}"
    assert kills == KILLS


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    small_run: RunConfig, tmp_path: Path, keep: float, capsys: pytest.CaptureFixture[str]
) -> None:
    run_config = run_config_of(small_run, KINDS[2], tmp_path / "out", tmp_path / "states")
    path = serve_here(run_config)
    expected = outcome(path)
    newest = max((path / "checkpoints").iterdir())
    assert newest.name == "round-000006.ckpt"
    newest.write_bytes(newest.read_bytes()[: int(newest.stat().st_size * keep)])
    (path / "model.safetensors").unlink()
    assert serve_here(run_config | {"resume": str(path)}) == path
    told = capsys.readouterr().out
    assert "round-000006.ckpt is cut short" in told
    assert "going on after round 5 of 6" in told
    assert outcome(path) == expected
