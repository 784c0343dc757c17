"""Plays a short run of every method in this process and prints digests of what came out of it.

Two revisions that print the same lines on the same machine compute the same numbers. The digest of the model
is of its arrays' values, not of their names; that of the metrics leaves out times; traffic is apart, because
a message may shrink without any result changing.

    python scripts/fingerprints.py > before.txt
    python scripts/fingerprints.py --compare before.txt
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Neither the user's cache nor the states of real clients are read or written.
_SCRATCH = tempfile.TemporaryDirectory(prefix="pip-flower-fingerprints-")
os.environ["PIP_FLOWER_CACHE"] = f"{_SCRATCH.name}/cache"
os.environ["PIP_FLOWER_STATE"] = f"{_SCRATCH.name}/state"
_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

import pip_flower.runtime.torchvision_compat  # noqa: E402, F401  (before anything imports timm)
from pip_flower.config.compose import Selection  # noqa: E402
from pip_flower.config.files import available  # noqa: E402
from pip_flower.method.configuration import load_config  # noqa: E402
from support.networks import quick  # noqa: E402
from support.runs import Notes, play  # noqa: E402

_SHORT = (
    "dataset.classes=6 dataset.keep.classes=6 dataset.keep.train=16 dataset.keep.test=6 federation.clients=4 "
    "federation.clients_per_round=3 federation.wait_seconds=0 schedule.tasks=3 schedule.rounds=6 "
    "training.epochs=2 training.batch_size=8"
)
_SMALL_NETWORK = "method.network=resnet10t method.stem=imagenet method.image_size=32"
_ROBUST = "aggregation.rule=trimmed-mean aggregation.trim=0.34 aggregation.clip_norm=5"
_ROBUST_STATISTICS = f"{_ROBUST} aggregation.clip_prototypes=3"
# Beside each method as it is configured: what takes other paths through the code.
_VARIANTS = (
    ("pip-dualprompt", "fidelity=released"),
    ("pip-l2p", "fidelity=released"),
    ("pip-dualprompt", "wire.full=true"),
    ("pip-dualprompt", "evaluation.where=clients"),
    ("pip-dualprompt", _ROBUST_STATISTICS),
    ("pip-align", _ROBUST_STATISTICS),
    ("fedavg", _ROBUST),
    ("icarl", "method.memory.exemplars=6"),
    ("icarl", "method.memory.exemplars=8 method.classifier=nearest-mean"),
    ("icarl", f"method.classifier=nearest-mean {_ROBUST_STATISTICS}"),
    ("ncm", _ROBUST_STATISTICS),
    ("ranpac", f"method.features=40 {_ROBUST_STATISTICS}"),
)


def fingerprint(method: str, overrides: str) -> dict[str, str]:
    """Digests of the model, the metrics and the traffic of one run."""
    run_config: dict[str, Any] = {
        "experiment": "digits",
        "method": method,
        "dataset": "",
        "overrides": f"{_SHORT} {overrides}",
        "data-dir": "",
        "seed": 7,
        "out-dir": "",
        "resume": "",
    }
    options = load_config(Selection.from_run_config(run_config)).method.options
    if hasattr(options, "network"):
        run_config["overrides"] += f" {_SMALL_NETWORK}"
    run_config["overrides"] += f" {quick(options)}"
    notes = play(run_config)
    return {"model": _model(notes), "metrics": _metrics(notes), "traffic": _traffic(notes)}


def _model(notes: Notes) -> str:
    """Of the arrays' values, whatever they are called."""
    parts = [
        hashlib.sha256(f"{value.shape} {value.dtype}".encode() + value.tobytes()).digest()
        for value in notes.final.values()
    ]
    return _short(sorted(parts))


def _metrics(notes: Notes) -> str:
    plain = [_without(asdict(record), ("seconds", "traffic", "loads")) for record in _records(notes)]
    return _short(json.dumps(line, sort_keys=True).encode() for line in plain)


def _traffic(notes: Notes) -> str:
    sizes = [(record.traffic_down.per_message, record.traffic_up.per_message) for record in notes.rounds]
    return _short(f"{down} {up}".encode() for down, up in sizes)


def _records(notes: Notes) -> list[Any]:
    return [*notes.rounds, *notes.evaluations]


def _without(values: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: _without(value, words) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not any(word in name for word in words)
    }


def _short(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part + b"\n")
    return found.hexdigest()[:16]


def main() -> int:
    """Exit status 1 if a line differs from the list that is compared with."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default="", metavar="A,B", help="only these; default: all")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what an earlier call printed")
    options = parser.parse_args()
    wanted = options.methods.split(",") if options.methods else available("method")
    before = options.compare.read_text(encoding="utf-8").splitlines() if options.compare else []
    known = dict(line.split(" | ") for line in before if " | " in line)
    runs = [(method, "") for method in wanted] + [pair for pair in _VARIANTS if pair[0] in wanted]
    different = 0
    for method, overrides in runs:
        name = f"{method} {overrides}".strip()
        found = "  ".join(f"{what} {value}" for what, value in fingerprint(method, overrides).items())
        differs = bool(before) and known.get(name) != found
        different += differs
        print(
            f"{name} | {found}" + (f"   <- was {known.get(name, 'not there')}" if differs else ""), flush=True
        )
    if before:
        print(f"{len(runs)} runs, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
