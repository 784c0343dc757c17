"""A whole run in this process: the real server and the real clients, one after the other, no Flower daemon.

The same numbers as in simulation and on a deployment. A debugger works in any part of it.
"""

import random
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from pip_flower.client.adapter import REPLIES
from pip_flower.server.serving import serve


class InProcessGrid(Grid):
    """`nodes` clients with random ids. A message is replied to when its reply is asked for."""

    def __init__(self, nodes: int, run_config: Mapping[str, Any], id_seed: int = 0) -> None:
        # Flower's own processes set this before an app starts; messages cannot be made without.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        ids = random.Random(id_seed).sample(range(10**6), nodes)
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": partition, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition, node in enumerate(ids)
        }
        self.waiting: list[Message] = []
        self._pushed = 0

    def get_node_ids(self) -> Iterable[int]:
        """All nodes; they are always there."""
        return set(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ids of the messages, which now wait."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{self._pushed}"
            self._pushed += 1
            ids.append(message.metadata.message_id)
            self.waiting.append(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The reply to the first of these messages that waits."""
        wanted = set(message_ids)
        for message in self.waiting:
            if message.metadata.message_id in wanted:
                self.waiting.remove(message)
                # Through the wire format, so that nobody gets to see, or to change, another's arrays.
                return [self.reply_to(message_from_proto(message_to_proto(message)))]
        return []

    def reply_to(self, message: Message) -> Message:
        """What the client replies, be it that it failed."""
        context = self.contexts[message.metadata.dst_node_id]
        try:
            content = REPLIES[message.metadata.message_type](message.content, context)
        except Exception:
            reason = traceback.format_exc()
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        return Message(content, reply_to=message)

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> list[Message]:
        """The replies to all of them; there is nothing to wait for."""
        return [reply for id_ in self.push_messages(messages) for reply in self.pull_messages([id_])]

    # Flower's grids must have these; nobody calls them here.
    def set_run(self, run: Any) -> NoReturn:
        """There is only one."""
        raise NotImplementedError("a grid in one process has one run")

    @property
    def run(self) -> NoReturn:
        """There is only one."""
        raise NotImplementedError("a grid in one process has no record of its run")

    def create_message(self, *_: Any, **__: Any) -> NoReturn:
        """Flower's deprecated way to make a message."""
        raise NotImplementedError("make messages with flwr.app.Message")


def serve_in_process(run_config: Mapping[str, Any], clients: int) -> Path:
    """One run to its end; its directory."""
    run_id = random.SystemRandom().getrandbits(62)
    context = Context(run_id, 1, {}, RecordDict(), dict(run_config))
    return serve(InProcessGrid(clients, run_config), context)
