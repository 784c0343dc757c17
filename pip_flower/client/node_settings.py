"""What a node's operator decides for this machine alone, in `--node-config`: where its data and weights are.

The rest of the configuration comes with the run and is the same on all nodes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pip_flower.config.compose import Selection
from pip_flower.config.paths import absolute_path
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.configuration import load_config
from pip_flower.runtime.process import once_per_process

PARTITION = "partition-id"
_PARTITIONS = "num-partitions"
# Node config's name, section of the configuration, key in it.
_PLACES = {
    "data-dir": ("dataset", "data_dir"),
    "weights": ("backbone", "weights"),
    "state-dir": ("runtime", "state_dir"),
    "cache-dir": ("runtime", "cache_dir"),
}
_DEVICE = "device"


def partition_of(node_config: Mapping[str, Any]) -> int:
    """Which client this node is."""
    if PARTITION not in node_config:
        raise ConfigError(
            PARTITION,
            "this node does not know which client it is",
            'Start it with --node-config "partition-id=0"',
        )
    return int(node_config[PARTITION])


def config_on_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Config:
    """The run's configuration, with this machine's own places in it."""
    selection = Selection.from_run_config(run_config)
    own = _own(node_config)
    return once_per_process(
        ("config", selection, tuple(own.items())),
        lambda: _with_own(selection, own),
    )


def with_node_settings(selection: Selection, node_config: Mapping[str, Any]) -> Config:
    """What was selected, as a node with these settings has it."""
    check_node_config(node_config)
    return _with_own(selection, _own(node_config))


def check_node_config(node_config: Mapping[str, Any]) -> None:
    """Refuse keys that mean nothing here."""
    known = (PARTITION, _PARTITIONS, *_PLACES, _DEVICE)
    for key in node_config:
        if key not in known:
            raise ConfigError(f"node-config {key}", "is not known", f"Known are: {', '.join(known)}")


def _own(node_config: Mapping[str, Any]) -> dict[str, str]:
    """The settings that stand for keys of the configuration, in an order of their own."""
    return {key: str(node_config[key]) for key in (*_PLACES, _DEVICE) if key in node_config}


def _with_own(selection: Selection, own: Mapping[str, str]) -> Config:
    for name in own.keys() & _PLACES.keys():
        absolute_path(f"node-config {name}", own[name])
    # Where the classes are to be counted, it is in this node's data.
    config = load_config(replace(selection, data_dir=own.get("data-dir", selection.data_dir)))
    for name, value in own.items():
        section, key = _PLACES.get(name, ("runtime", _DEVICE))
        changed: Any = replace(getattr(config, section), **{key: value})
        config = replace(config, **{section: changed})
    return config
