"""The content of Flower messages to calls of the NumPyClient and back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.common import NDArrays

from pip_flower.arrays import pick
from pip_flower.client.constants import ConstantArrays
from pip_flower.client.node_settings import check_node_config, config_on_node, partition_of
from pip_flower.client.numpy_client import FederatedClient
from pip_flower.client.state import ClientStates
from pip_flower.flower.records import (
    ARRAYS,
    CONFIG,
    CONSTANT,
    LACKS,
    PHASE,
    SAMPLES,
    content,
    from_record,
    to_record,
)
from pip_flower.method.exchange import Exchange
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import shared_workspace
from pip_flower.runtime.process import once_per_process, state_directory


def client_for(context: Context) -> FederatedClient:
    """The client that this node is, by its partition id."""
    check_node_config(context.node_config)
    partition = partition_of(context.node_config)
    config = config_on_node(context.run_config, context.node_config)
    workspace = shared_workspace(config)
    method = once_per_process(("method", config), lambda: make_method(workspace))
    return FederatedClient(method, partition)


def reply_to_query(asked: RecordDict, context: Context) -> RecordDict:
    """Who this node is, and which of its states in this run it still has."""
    client = client_for(context)
    states = _states(client, _config(asked))
    properties = {**client.get_properties({}), "states": " ".join(map(str, states.intact()))}
    return content(config=properties)


def reply_to_train(asked: RecordDict, context: Context) -> RecordDict:
    """One round of training, or the work at the end of a task."""
    client = client_for(context)
    config = _config(asked)
    task, exchange = int(config["task"]), client.exchange(str(config.get(PHASE, "")))
    parameters = _with_constants(asked, config, exchange, _state_root(client))
    if parameters is None:
        return content(config={LACKS: config[CONSTANT]})
    _recall(client, config)
    arrays, samples, metrics = client.fit(parameters, config)
    if client.method.keeps_memory():
        _states(client, config).save(int(config["round"]), int(config["since"]), client.memory)
    named = dict(zip(exchange.sent_up(task), arrays, strict=True))
    return content(to_record(named), metrics={SAMPLES: samples, **metrics})


def reply_to_evaluate(asked: RecordDict, context: Context) -> RecordDict:
    """Accuracy on the test samples that the client is to test on."""
    client = client_for(context)
    config = _config(asked)
    _recall(client, config)
    parameters = asked.array_records[ARRAYS].to_numpy_ndarrays()
    loss, samples, metrics = client.evaluate(parameters, config)
    return content(metrics={SAMPLES: samples, "loss": loss, **metrics})


def _with_constants(
    asked: RecordDict, config: Mapping[str, Any], exchange: Exchange, root: Path
) -> NDArrays | None:
    """The message's arrays and then those that travel once per task, from the message or from this machine's
    disk; None if they are in neither."""
    task = int(config["task"])
    sent = from_record(asked.array_records[ARRAYS])
    constant = exchange.constant(task)
    if constant:
        store, digest = ConstantArrays(root, str(config["run"])), str(config[CONSTANT])
        if sent.keys() >= set(constant):
            store.save(digest, pick(sent, constant))
        else:
            kept = store.load(digest)
            if kept is None or not kept.keys() >= set(constant):
                return None
            sent |= kept
    return [sent[name] for name in (*exchange.sent_down(task), *constant)]


def _recall(client: FederatedClient, config: Mapping[str, Any]) -> None:
    """Go on from the last round that the server has merged, whatever this node did since."""
    if client.method.keeps_memory():
        client.memory = _states(client, config).load(int(config["since"]))


def _states(client: FederatedClient, config: Mapping[str, Any]) -> ClientStates:
    return ClientStates(_state_root(client), str(config["run"]), client.partition)


def _state_root(client: FederatedClient) -> Path:
    return state_directory(client.method.config.runtime)


def _config(asked: RecordDict) -> dict[str, Any]:
    return dict(asked.config_records[CONFIG])


REPLIES: dict[str, Callable[[RecordDict, Context], RecordDict]] = {
    "query": reply_to_query,
    "train": reply_to_train,
    "evaluate": reply_to_evaluate,
}
