from typing import Any

import pytest

from pip_flower.client.node_settings import check_node_config, config_on_node, partition_of
from pip_flower.config.schema import ConfigError

RunConfig = dict[str, Any]


def test_a_node_has_its_own_places_and_the_same_run(small_run: RunConfig) -> None:
    everywhere = config_on_node(small_run, {"partition-id": 0})
    own = {"data-dir": "/data/mine", "weights": "/data/vit.safetensors", "state-dir": "/s", "device": "cpu"}
    here = config_on_node(small_run, {"partition-id": 0, **own})
    assert here.dataset.data_dir == "/data/mine"
    assert here.backbone.weights == "/data/vit.safetensors"
    assert here.runtime.state_dir == "/s"
    assert here.runtime.device == "cpu"
    assert here.digest() == everywhere.digest()


def test_what_a_node_cannot_mean_is_refused(small_run: RunConfig) -> None:
    with pytest.raises(ConfigError, match="node-config data-dir: 'mine' is a relative path"):
        config_on_node(small_run, {"data-dir": "mine"})
    with pytest.raises(ConfigError, match="node-config datadir: is not known. Known are: partition-id"):
        check_node_config({"datadir": "/data"})
    with pytest.raises(ConfigError, match="this node does not know which client it is"):
        partition_of({})
