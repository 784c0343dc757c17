"""The configuration as frozen dataclasses; conf/base.yaml explains every key."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pip_flower.config.schema import Bounds, as_mapping


@dataclass(frozen=True)
class BackboneConfig:
    """The frozen ViT."""

    name: str
    pretrained: bool
    weights: str
    image_size: Annotated[int, Bounds(0)]


@dataclass(frozen=True)
class KeepConfig:
    """Part of a data set: its first classes, and the first images of each; 0 keeps all."""

    classes: Annotated[int, Bounds(0)]
    train: Annotated[int, Bounds(0)]
    test: Annotated[int, Bounds(0)]


@dataclass(frozen=True)
class DatasetConfig:
    """Where images come from and how a training view is made."""

    source: str
    data_dir: str
    classes: Annotated[int, Bounds(0)]
    class_names: tuple[str, ...]
    class_order: Literal["label", "seed", "given"]
    given_order: Annotated[tuple[int, ...], Bounds(0)]
    stored_size: Annotated[int, Bounds(0)]
    test_fraction: Annotated[float, Bounds(0, 0.9, exclusive_minimum=True)]
    validation_fraction: Annotated[float, Bounds(0, 0.9)]
    on_corrupt: Literal["refuse", "skip"]
    keep: KeepConfig
    crop_scale: Annotated[tuple[float, float], Bounds(0, 1, exclusive_minimum=True)]
    crop_ratio: Annotated[tuple[float, float], Bounds(0, exclusive_minimum=True)]
    flip: bool
    test_resize: Annotated[int, Bounds(0)]
    test_interpolation: Literal["bilinear", "bicubic"]
    normalize: Literal["none", "backbone"]


@dataclass(frozen=True)
class PartitionConfig:
    """How a task's training samples are spread over the clients."""

    scheme: Literal["classes", "dirichlet", "quantity", "iid", "local"]
    class_fraction: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]
    samples: Literal["disjoint", "shared"]
    alpha: Annotated[float, Bounds(1e-3)]
    sigma: Annotated[float, Bounds(0)]
    empty: Literal["refuse", "allow"]


@dataclass(frozen=True)
class PopulationConfig:
    """How the pool of clients changes from task to task."""

    initial: Annotated[int, Bounds(0)]
    retire: Annotated[float, Bounds(0, 0.99)]


@dataclass(frozen=True)
class FederationConfig:
    """Who takes part, and how long the server waits for them."""

    clients: Annotated[int, Bounds(1)]
    clients_per_round: Annotated[int, Bounds(1)]
    wait_seconds: Annotated[float, Bounds(0)]
    min_nodes: Annotated[int, Bounds(0)]
    round_timeout: Annotated[float, Bounds(0, exclusive_minimum=True)]
    min_clients: Annotated[int, Bounds(1)]
    round_retries: Annotated[int, Bounds(0)]


@dataclass(frozen=True)
class ValidationConfig:
    """Limits beyond which the server takes a reply for an error or a lie."""

    max_samples: Annotated[int, Bounds(1)]
    max_norm: Annotated[float, Bounds(0, exclusive_minimum=True)]


@dataclass(frozen=True)
class AggregationConfig:
    """How replies are merged; everything but the plain mean bounds what a bad one can do."""

    rule: Literal["mean", "median", "trimmed-mean"]
    trim: Annotated[float, Bounds(0, 0.49)]
    clip_norm: Annotated[float, Bounds(0)]
    clip_prototypes: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints stay on disk beside the two newest."""

    keep: Literal["last", "all", "every"]
    every: Annotated[int, Bounds(1)]


@dataclass(frozen=True)
class ScheduleConfig:
    """T tasks in R rounds."""

    tasks: Annotated[int, Bounds(1)]
    base_classes: Annotated[int, Bounds(0)]
    rounds: Annotated[int, Bounds(1)]


@dataclass(frozen=True)
class TrainingConfig:
    """A client's local training."""

    learning_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]
    epochs: Annotated[int, Bounds(1)]
    batch_size: Annotated[int, Bounds(1)]
    clip_norm: Annotated[float, Bounds(0, exclusive_minimum=True)]
    query: Literal["cached", "augmented"]


@dataclass(frozen=True)
class EvaluationConfig:
    """Where and how accuracy is measured."""

    where: Literal["server", "clients"]
    split: Literal["test", "validation"]
    batch_size: Annotated[int, Bounds(1)]


@dataclass(frozen=True)
class WireConfig:
    """What messages carry."""

    full: bool


@dataclass(frozen=True)
class RuntimeConfig:
    """Device and processor use; changes speed, and results only by rounding."""

    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    compile: bool
    cache_dir: str
    state_dir: str
    threads: Annotated[int, Bounds(1)]
    client_cpus: Annotated[int, Bounds(1)]
    client_gpus: Annotated[float, Bounds(0)]
    worker_idle: Annotated[float, Bounds(0, exclusive_minimum=True)]
    worker_memory: Annotated[int, Bounds(0)]


@dataclass(frozen=True)
class MethodConfig:
    """A registered method, the file in conf/method that configured it (`label`), and its own options (a
    dataclass that the method defines)."""

    label: str
    name: str
    options: Any


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes."""

    experiment: str
    seed: int
    fidelity: Literal["paper", "released"]
    method: MethodConfig
    backbone: BackboneConfig
    dataset: DatasetConfig
    partition: PartitionConfig
    population: PopulationConfig
    federation: FederationConfig
    validation: ValidationConfig
    aggregation: AggregationConfig
    checkpoint: CheckpointConfig
    schedule: ScheduleConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    wire: WireConfig
    runtime: RuntimeConfig

    def as_mapping(self) -> dict[str, Any]:
        """Plain values, in the shape the YAML files have."""
        plain: dict[str, Any] = as_mapping(self)
        options = plain["method"].pop("options")
        plain["method"] |= options
        return plain

    def digest(self) -> str:
        """Identifies all that results depend on, whatever the machine's paths and speed settings are."""
        plain = {key: value for key, value in flat(self.as_mapping()) if not is_neutral(key)}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# Keys, or whole sections, that no result depends on.
_NEUTRAL = (
    "experiment",
    "method.label",
    "checkpoint",
    "backbone.weights",
    "dataset.data_dir",
    "federation.wait_seconds",
    "federation.min_nodes",
    "federation.round_timeout",
    "federation.round_retries",
    "runtime",
)


def is_neutral(key: str) -> bool:
    """Whether no result depends on the key."""
    return any(key == known or key.startswith(f"{known}.") for known in _NEUTRAL)


def flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, and their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
