"""One question to several clients: the messages, and what becomes of the replies.

Every reply is used as a whole or counted as a failure. Who answers is told by the message that is answered:
an error that Flower reports in place of a lost node does not come from that node.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from pip_flower.records import content
from pip_flower.strategies.observer import Failure
from pip_flower.validation import RejectedError

# What a node reports of its own app; other errors are Flower's, in place of a node that is not heard of.
_OWN_ERRORS = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION)
_LONGEST_REASON = 300
T = TypeVar("T")


class Inquiry:
    """The same arrays to every client of `nodes` (node ids by partition), with what else each is told."""

    def __init__(
        self,
        kind: str,
        nodes: Mapping[int, int],
        arrays: Mapping[str, NDArray[Any]],
        tell: Callable[[int], dict[str, Any]],
        *,
        group: str,
        ttl: float,
    ) -> None:
        self._asked = {
            partition: Message(content(arrays, config=tell(partition)), node, kind, ttl=ttl, group_id=group)
            for partition, node in nodes.items()
        }

    def __len__(self) -> int:
        return len(self._asked)

    def messages(self) -> list[Message]:
        """To be sent."""
        return list(self._asked.values())

    def read(
        self, replies: Iterable[Message], read: Callable[[RecordDict], T], attempt: int = 0
    ) -> tuple[dict[int, T], list[Failure]]:
        """What each client answered, in partition order, and who failed."""
        arrived = {reply.metadata.reply_to_message_id: reply for reply in replies}
        found: dict[int, T] = {}
        failures: list[Failure] = []
        for partition, message in sorted(self._asked.items()):
            reply = arrived.get(message.metadata.message_id)
            try:
                if reply is None:
                    raise RejectedError("no answer in time")
                if reply.has_error():
                    raise RejectedError(str(reply.error.reason))
                found[partition] = read(reply.content)
            except RejectedError as error:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                failures.append(Failure(partition, attempt, reason))
        return found, failures

    def silent(self, replies: Iterable[Message]) -> list[int]:
        """Clients that did not answer themselves, be it with an error."""
        own = {
            reply.metadata.reply_to_message_id
            for reply in replies
            if not reply.has_error() or reply.error.code in _OWN_ERRORS
        }
        return sorted(p for p, message in self._asked.items() if message.metadata.message_id not in own)
