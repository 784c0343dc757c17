"""Flower messages to calls of the NumPyClient and back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Context, Message

from pip_flower.client import FederatedClient
from pip_flower.client_state import ClientStates, state_directory
from pip_flower.config_files import Selection, load_config
from pip_flower.methods.registry import make_method, options_type
from pip_flower.records import ARRAYS, CONFIG, content
from pip_flower.runtime import once_per_process
from pip_flower.schema import ConfigError
from pip_flower.strategies.answers import SAMPLES
from pip_flower.workbench import shared_workbench


def client_for(context: Context) -> FederatedClient:
    """The client that this node is, by its partition id."""
    if "partition-id" not in context.node_config:
        raise ConfigError(
            "partition-id",
            "this node does not know which client it is",
            'Start it with --node-config "partition-id=0 num-partitions=10"',
        )
    selection = Selection.from_run_config(context.run_config)
    if own := context.node_config.get("data-dir"):
        selection = replace(selection, data_dir=str(own))
    config = once_per_process(("config", selection), lambda: load_config(selection, options_type))
    bench = shared_workbench(config)
    method = once_per_process(("method", config), lambda: make_method(bench))
    return FederatedClient(method, int(context.node_config["partition-id"]))


def answer_query(message: Message, context: Context) -> Message:
    """Who this node is, and which of its states in this run it still has."""
    client = client_for(context)
    states = _states(client, _config(message))
    properties = {**client.get_properties({}), "states": " ".join(map(str, states.intact()))}
    return Message(content(config=properties), reply_to=message)


def answer_train(message: Message, context: Context) -> Message:
    """One round of training."""
    client = client_for(context)
    config = _config(message)
    _recall(client, config)
    arrays, samples, metrics = client.fit(_parameters(message), config)
    if client.method.keeps_memory():
        _states(client, config).save(int(config["round"]), int(config["since"]), client.memory)
    names = client.method.sent_up(int(config["task"]))
    named = dict(zip(names, arrays, strict=True))
    return Message(content(named, metrics={SAMPLES: samples, **metrics}), reply_to=message)


def answer_evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test samples."""
    client = client_for(context)
    config = _config(message)
    _recall(client, config)
    loss, samples, metrics = client.evaluate(_parameters(message), config)
    figures = {SAMPLES: samples, "loss": loss, **metrics}
    return Message(content(metrics=figures), reply_to=message)


def _recall(client: FederatedClient, config: Mapping[str, Any]) -> None:
    """Go on from the last round that the server has merged, whatever this node did since."""
    if client.method.keeps_memory():
        client.memory = _states(client, config).load(int(config["since"]))


def _states(client: FederatedClient, config: Mapping[str, Any]) -> ClientStates:
    root = state_directory(client.method.bench.config.runtime)
    return ClientStates(root, str(config["run"]), client.partition)


def _parameters(message: Message) -> Any:
    return message.content.array_records[ARRAYS].to_numpy_ndarrays()


def _config(message: Message) -> dict[str, Any]:
    return dict(message.content.config_records[CONFIG])
