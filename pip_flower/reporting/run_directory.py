"""One run, one directory: where each file is, how it is written and read back."""

import fcntl
import json
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from pip_flower import __version__
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.flower.revision import revision
from pip_flower.method.base import Method
from pip_flower.reporting.holder import Holder
from pip_flower.storage.files import write_json, write_text

_PACKAGES = ("flwr", "torch", "torchvision", "timm", "numpy", "ray")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, revision, device, and what was asked for; written once, when the run starts."""
        return self.path / "environment.json"

    @property
    def resumptions(self) -> Path:
        """A line for each time that the run was taken up again."""
        return self.path / "resumed.jsonl"

    @property
    def metrics(self) -> Path:
        """One line per round and per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def metrics_copy(self) -> Path:
        """The same lines, should a power cut cost one of the files its end."""
        return self.checkpoints / "metrics.jsonl"

    @property
    def matrix(self) -> Path:
        """The accuracy matrix and what is derived from it."""
        return self.path / "accuracy.json"

    @property
    def model(self) -> Path:
        """The final global arrays."""
        return self.path / "model.safetensors"

    @property
    def plot(self) -> Path:
        """Accuracy after each task."""
        return self.path / "accuracy.png"

    @property
    def checkpoints(self) -> Path:
        """Where the run can be taken up again."""
        return self.path / "checkpoints"

    @property
    def flower_log(self) -> Path:
        """What Flower said, of `pip-flower run` only."""
        return self.path / "flower.log"

    @property
    def holder(self) -> Path:
        """Who plays the run, while it is played."""
        return self.path / "running.json"

    @property
    def progress(self) -> Path:
        """Where the run is now."""
        return self.path / "progress.json"

    @classmethod
    def create(
        cls,
        parent: Path,
        config: Config,
        flower_run: int,
        method: Method,
        selection: Mapping[str, Any] | None = None,
        run: str = "",
        data: str = "",
    ) -> "RunDirectory":
        """Make `<experiment>-<method>-<seed>-<time>/` and save configuration and environment.

        `selection` is what was asked for, so that `pip-flower run --resume` can ask for the same; `run` is
        what clients know the run by, and `data` identifies the images it is tested on.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{config.experiment}-{config.method.label}-{config.seed}-{stamp}"
        parent.mkdir(parents=True, exist_ok=True)
        # Under its own name only once it can be resumed, whenever the process dies.
        draft = cls(Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}.")))
        draft.path.chmod(0o755)
        draft.write_config(config)
        identity = {"run": run or uuid.uuid4().hex, "selection": dict(selection or {}), "data": data}
        write_json(draft.environment, identity | environment(flower_run, method))
        return cls(_renamed(draft.path, parent / name))

    @contextmanager
    def locked(self, flower_run: int) -> Iterator[None]:
        """Nobody else plays this run meanwhile; a process that dies lets go."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(handle)
            write_json(self.holder, asdict(Holder.this_process(flower_run)))
            try:
                yield
            finally:
                self.holder.unlink(missing_ok=True)
        finally:
            os.close(handle)

    def require_free(self) -> None:
        """Refuse a run that is still played."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(handle)
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who, remedy = self._held_by()
            raise ConfigError(
                "resume", f"{self.path} belongs to a run that is still going on{who}", remedy
            ) from None

    def _held_by(self) -> tuple[str, str]:
        try:
            holder = Holder(**json.loads(self.holder.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            # It has only just begun.
            return "", "Stop that one first"
        return f" ({holder})", holder.remedy()

    def write_config(self, config: Config) -> None:
        """Save the resolved configuration, unless it is there: what is not written cannot be torn."""
        text = yaml.safe_dump(config.as_mapping(), sort_keys=False)
        if not self.config.is_file() or self.config.read_text(encoding="utf-8") != text:
            write_text(self.config, text)

    def note_resumption(self, flower_run: int, selection: Mapping[str, Any]) -> None:
        """Save which Flower run goes on with this one, and what was asked for."""
        records = [*self._resumed(), {"flower_run_id": flower_run, "selection": dict(selection)}]
        write_text(self.resumptions, "".join(f"{json.dumps(record)}\n" for record in records))

    def read_environment(self) -> dict[str, Any]:
        """What `create` saved, as of the last resumption; `earlier_runs` are the Flower runs before it."""
        try:
            first: dict[str, Any] = json.loads(self.environment.read_text(encoding="utf-8"))
            records = [first, *self._resumed()]
            runs = [record["flower_run_id"] for record in records]
            return first | records[-1] | {"earlier_runs": runs[:-1]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            problem = f"cannot be read: {type(error).__name__}: {error}"
            raise ConfigError(str(self.environment), problem, "Restore it, or start another run") from None

    def finished(self) -> bool:
        """Whether all rounds are played and the model is there."""
        return self.model.is_file() and self.matrix.is_file()

    def lines(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl."""
        return _whole_lines(self.metrics)

    def _resumed(self) -> list[dict[str, Any]]:
        return _whole_lines(self.resumptions) if self.resumptions.is_file() else []


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file with one in each line, less one that a power cut left half written."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def environment(flower_run: int, method: Method) -> dict[str, Any]:
    """What the metrics of a run were measured on."""
    workspace = method.workspace
    return {
        "flower_run_id": flower_run,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {"pip-flower": __version__} | {name: version(name) for name in _PACKAGES},
        "revision": revision(),
        "device": str(workspace.device),
        "threads": workspace.config.runtime.threads,
        "backbone": method.fingerprint(),
        "config": workspace.config.digest(),
    }


def _renamed(draft: Path, wanted: Path) -> Path:
    """`draft` under the name that is wanted, or the first free one after it."""
    for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
        path = wanted.with_name(f"{wanted.name}{suffix}")
        try:
            return draft.rename(path)
        except OSError:
            if not path.exists():
                raise
    raise FileExistsError(wanted)
