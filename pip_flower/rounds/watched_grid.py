"""A Flower grid that reports each reply as it arrives and counts the bytes of both directions."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from pip_flower.flower.polling import hasten_pulls
from pip_flower.flower.records import content_bytes

# Told after each reply: how many have arrived, and how many are expected.
OnReply = Callable[[int, int], None]


def ignore_reply(done: int, expected: int) -> None:
    """Nobody is interested."""


class WatchedGrid(Grid):
    """Everything is delegated to the grid inside, except waiting for replies."""

    def __init__(self, inner: Grid, poll_seconds: float = 0.1) -> None:
        hasten_pulls()
        self.inner = inner
        self.poll_seconds = poll_seconds
        self._bytes_down: list[int] = []
        self._bytes_up: list[int] = []

    def take_counts(self) -> tuple[list[int], list[int]]:
        """The bytes of each message down and up since they were last taken."""
        counts = self._bytes_down, self._bytes_up
        self._bytes_down, self._bytes_up = [], []
        return counts

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        on_reply: OnReply = ignore_reply,
    ) -> list[Message]:
        """Send all messages and collect replies until all are there or `timeout` seconds passed."""
        outgoing = list(messages)
        self._bytes_down += [content_bytes(message) for message in outgoing]
        # A message that could not be sent has no id.
        waiting = {sent for sent in self.inner.push_messages(outgoing) if sent}
        expected = len(waiting)
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            arrived = list(self.inner.pull_messages(waiting))
            waiting -= {message.metadata.reply_to_message_id for message in arrived}
            replies += arrived
            self._bytes_up += [content_bytes(m) for m in arrived if m.has_content()]
            if arrived:
                on_reply(len(replies), expected)
            elif waiting:
                time.sleep(self.poll_seconds)
        return replies

    def set_run(self, run: Any) -> None:
        """Which run the grid serves."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        """The run that the grid serves."""
        return self.inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's deprecated way to make a message."""
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are there."""
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send without waiting; an id for each message."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have arrived to these messages."""
        return self.inner.pull_messages(message_ids)
