"""The content of Flower messages to calls of the NumPyClient and back."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, RecordDict

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.client.state import ClientStates
from pip_flower.runtime.process import state_directory
from pip_flower.method.registry import make_method
from pip_flower.client.node_settings import check_node_config, config_on_node, partition_of
from pip_flower.flower.records import ARRAYS, CONFIG, content
from pip_flower.runtime.process import once_per_process
from pip_flower.flower.records import SAMPLES
from pip_flower.method.workspace import shared_workspace


def client_for(context: Context) -> FederatedClient:
    """The client that this node is, by its partition id."""
    check_node_config(context.node_config)
    partition = partition_of(context.node_config)
    config = config_on_node(context.run_config, context.node_config)
    bench = shared_workspace(config)
    method = once_per_process(("method", config), lambda: make_method(bench))
    return FederatedClient(method, partition)


def answer_query(asked: RecordDict, context: Context) -> RecordDict:
    """Who this node is, and which of its states in this run it still has."""
    client = client_for(context)
    states = _states(client, _config(asked))
    properties = {**client.get_properties({}), "states": " ".join(map(str, states.intact()))}
    return content(config=properties)


def answer_train(asked: RecordDict, context: Context) -> RecordDict:
    """One round of training."""
    client = client_for(context)
    config = _config(asked)
    _recall(client, config)
    arrays, samples, metrics = client.fit(_parameters(asked), config)
    if client.method.keeps_memory():
        _states(client, config).save(int(config["round"]), int(config["since"]), client.memory)
    names = client.method.sent_up(int(config["task"]))
    named = dict(zip(names, arrays, strict=True))
    return content(named, metrics={SAMPLES: samples, **metrics})


def answer_evaluate(asked: RecordDict, context: Context) -> RecordDict:
    """Accuracy on the client's own test samples."""
    client = client_for(context)
    config = _config(asked)
    _recall(client, config)
    loss, samples, metrics = client.evaluate(_parameters(asked), config)
    return content(metrics={SAMPLES: samples, "loss": loss, **metrics})


def _recall(client: FederatedClient, config: Mapping[str, Any]) -> None:
    """Go on from the last round that the server has merged, whatever this node did since."""
    if client.method.keeps_memory():
        client.memory = _states(client, config).load(int(config["since"]))


def _states(client: FederatedClient, config: Mapping[str, Any]) -> ClientStates:
    root = state_directory(client.method.bench.config.runtime)
    return ClientStates(root, str(config["run"]), client.partition)


def _parameters(asked: RecordDict) -> Any:
    return asked.array_records[ARRAYS].to_numpy_ndarrays()


def _config(asked: RecordDict) -> dict[str, Any]:
    return dict(asked.config_records[CONFIG])


ANSWERS: dict[str, Callable[[RecordDict, Context], RecordDict]] = {
    "query": answer_query,
    "train": answer_train,
    "evaluate": answer_evaluate,
}
