"""A grid inside the test process whose replies may come in any order; what is sent and replied is kept."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Error, Message

import client_app
from pip_flower.server.in_process import InProcessGrid


class LocalGrid(InProcessGrid):
    """`order` rearranges the messages that wait for a reply; the nodes in `broken` fail."""

    def __init__(
        self,
        nodes: int,
        run_config: dict[str, Any],
        order: Callable[[list[Message]], list[Message]] = lambda waiting: waiting,
        id_seed: int = 0,
    ) -> None:
        super().__init__(nodes, run_config, id_seed)
        self.order = order
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.broken: set[int] = set()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        listed = list(messages)
        ids = super().push_messages(listed)
        self.sent += listed
        self.waiting = self.order(self.waiting)
        return ids

    def reply_to(self, message: Message) -> Message:
        """Through the ClientApp itself."""
        node = message.metadata.dst_node_id
        if node in self.broken:
            return Message(Error(code=2, reason="the disk is on fire"), reply_to=message)
        reply = client_app.app(message, self.contexts[node])
        self.replies.append(reply)
        return reply
