"""A grid inside the test process: real messages, the real ClientApp, no Ray; replies in any order."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import client_app


class LocalGrid(Grid):
    """Nodes with random ids; `order` rearranges the messages that wait for a reply."""

    def __init__(
        self,
        nodes: int,
        run_config: dict[str, Any],
        order: Callable[[list[Message]], list[Message]] = lambda waiting: waiting,
        id_seed: int = 0,
    ) -> None:
        # Flower's own processes set this before an app starts; messages cannot be made without.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        ids = random.Random(id_seed).sample(range(10**6), nodes)
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": partition, "num-partitions": nodes},
                state=RecordDict(),
                run_config=run_config,
            )
            for partition, node in enumerate(ids)
        }
        self.order = order
        self.waiting: list[Message] = []
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.broken: set[int] = set()

    def get_node_ids(self) -> Iterable[int]:
        return set(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            ids.append(message.metadata.message_id)
            self.sent.append(message)
            self.waiting.append(message)
        self.waiting = self.order(self.waiting)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        for message in self.waiting:
            if message.metadata.message_id in wanted:
                self.waiting.remove(message)
                return [self.reply_to(message_from_proto(message_to_proto(message)))]
        return []

    def reply_to(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.broken:
            return Message(Error(code=2, reason="the disk is on fire"), reply_to=message)
        reply = client_app.app(message, self.contexts[node])
        self.replies.append(reply)
        return reply

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise AssertionError("the strategy's own grid waits for replies")

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Any:
        raise AssertionError("not used")

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("deprecated in Flower")
