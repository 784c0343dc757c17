"""Taking a run up again: the same configuration, the newest checkpoint that everybody can go back to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pip_flower.config.compose import Selection
from pip_flower.config.paths import absolute_path
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config, flat, is_neutral
from pip_flower.method.base import Method
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.rounds.roster import FederationError, Roster
from pip_flower.rounds.schedule import Schedule
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.storage.checkpoints import Checkpoint, CheckpointStore
from pip_flower.storage.checksummed import TornFileError
from pip_flower.storage.files import sweep
from pip_flower.storage.twin_lines import LinesPosition

# Keys that no result depends on, but for the last digits.
_NUMERIC = ("runtime.device", "runtime.precision", "runtime.compile", "runtime.threads")
_ROUNDS = "schedule.rounds"


def run_directory(given: str) -> RunDirectory:
    """The directory of a run to go on with."""
    directory = RunDirectory(absolute_path("resume", given))
    if not (directory.config.is_file() and directory.environment.is_file()):
        raise ConfigError("resume", f"{given!r} is not a run directory", "Give one that a run made")
    return directory


def reopen(
    directory: RunDirectory, config: Config, flower_run: int, method: Method, selection: Mapping[str, Any]
) -> None:
    """Make sure that `config` is what the run was started with, and note that it goes on."""
    about = directory.read_environment()
    before = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
    for warning in compare(before, config.as_mapping()):
        print(f"pip-flower: warning: {warning}", flush=True)
    if about["backbone"] != method.fingerprint():
        raise ConfigError(
            "resume", "the frozen backbone has other weights than before", "Give the weights it had"
        )
    sweep(directory.path)
    directory.note_resumption(flower_run, selection)
    directory.write_config(config)


def resumed(path: Path, given: Selection) -> Selection:
    """What the run in `path` was started with, and what is given now on top of it."""
    before = Selection.from_run_config(run_directory(str(path)).read_environment()["selection"])
    return Selection(
        experiment=given.experiment or before.experiment,
        method=given.method or before.method,
        dataset=given.dataset or before.dataset,
        overrides=f"{before.overrides} {given.overrides}".strip(),
        data_dir=given.data_dir or before.data_dir,
        seed=before.seed if given.seed < 0 else given.seed,
    )


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Refuse a configuration that would not continue the same run, listing what changed; returns warnings
    about changes that may show in the last digits."""
    old, new = dict(flat(before)), dict(flat(now))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    serious = [key for key in changed if not _harmless(key, old, new)]
    if serious:
        lines = "; ".join(f"{key}: {_shown(old, key)} -> {_shown(new, key)}" for key in serious)
        raise ConfigError("resume", f"the configuration has changed ({lines})", "Give the one it had")
    return [
        f"{key} has changed ({_shown(old, key)} -> {_shown(new, key)}): the last digits may differ"
        for key in changed
        if key in _NUMERIC
    ]


def go_back(strategy: TaskStrategy, store: CheckpointStore, log: RunLog, roster: Roster) -> int:
    """Stand where the newest usable checkpoint stood; returns the rounds that are done.

    A checkpoint is usable if it is whole, and if all clients still have the state that belongs to it. A run
    that died before its first one was whole starts again.
    """
    passed_over = []
    for checkpoint in store.intact():
        lost = roster.without_state(checkpoint.state.last_rounds) if strategy.method.keeps_memory() else []
        if lost:
            passed_over.append(f"round {checkpoint.state.round}: clients {lost} have lost their own state")
            print(f"pip-flower: warning: checkpoint of {passed_over[-1]}", flush=True)
            continue
        done = checkpoint.state.round
        try:
            log.go_back(checkpoint.metrics)
        except TornFileError as error:
            passed_over.append(f"round {done}: {error}")
            print(f"pip-flower: warning: checkpoint of {passed_over[-1]}", flush=True)
            continue
        strategy.restore(checkpoint.state, _schedule(checkpoint, strategy))
        store.forget_after(done)
        return done
    if any(round_ > 1 for round_ in store.rounds()):
        reasons = "; ".join(passed_over) or "all of them are torn"
        raise FederationError(f"no checkpoint in {store.directory} can be used: {reasons}")
    store.forget_after(0)
    log.go_back(LinesPosition())
    return 0


def _schedule(checkpoint: Checkpoint, strategy: TaskStrategy) -> Schedule:
    before, wanted, done = Schedule(checkpoint.lengths), strategy.config.schedule, checkpoint.state.round
    if done == before.rounds and wanted.rounds > checkpoint.config["schedule"]["rounds"]:
        raise ConfigError(
            _ROUNDS,
            f"all {before.rounds} rounds are played and the last task is tested",
            "More rounds can be given only to tasks that are not over",
        )
    return before.lengthened(wanted, done)


def _harmless(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if key == _ROUNDS:
        return bool(new[key] > old[key])
    return is_neutral(key)


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"
