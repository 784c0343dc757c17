"""The same work asked of several clients: the messages, and what becomes of the replies.

Every reply is used as a whole or counted as a failure. Who replies is told by the message that is replied to:
an error that Flower reports in place of a lost node does not come from that node.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode

from pip_flower.arrays import Arrays
from pip_flower.flower.failures import reason_of
from pip_flower.flower.records import LACKS, content, said, to_record
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.round import Failure

# What a node reports of its own app; other errors are Flower's, in place of a node that is not heard of.
_OWN_ERRORS = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION)
_LONGEST_REASON = 300
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What clients are asked to do: Flower's message type, arrays for all of them, what each is told, the
    group of messages, and arrays that only those get that do not have them yet (`once`)."""

    kind: str
    arrays: Arrays
    tell: Callable[[int], dict[str, Any]]
    group: str
    once: Arrays = field(default_factory=dict)


class Requests:
    """`work` for the clients of `nodes` (node ids by partition), in messages that live `ttl` seconds;
    `informed` of them have its constant arrays."""

    def __init__(
        self, work: Work, nodes: Mapping[int, int], ttl: float, informed: Iterable[int] = ()
    ) -> None:
        self.work = work
        self.nodes = dict(nodes)
        self.ttl = ttl
        known = set(informed)
        # Serialised once, not for every client.
        brief = to_record(work.arrays)
        full = to_record({**work.arrays, **work.once}) if work.once else brief
        self._asked = {
            partition: Message(
                content(brief if partition in known else full, config=work.tell(partition)),
                node,
                work.kind,
                ttl=ttl,
                group_id=work.group,
            )
            for partition, node in self.nodes.items()
        }

    def __len__(self) -> int:
        return len(self._asked)

    def messages(self) -> list[Message]:
        """To be sent."""
        return list(self._asked.values())

    def again_in_full(self, replies: Iterable[Message]) -> "Requests | None":
        """The same work for clients that do not have what they were taken to have; None if all do."""
        arrived = _by_request(replies)
        lacking = {
            partition: self.nodes[partition]
            for partition, message in self._asked.items()
            if LACKS in said(arrived.get(message.metadata.message_id))
        }
        return Requests(self.work, lacking, self.ttl) if lacking else None

    def replaced_by(self, others: "Requests") -> None:
        """Clients that were asked again reply to `others`."""
        self._asked |= others._asked

    def read(
        self, replies: Iterable[Message], read: Callable[[RecordDict], T], attempt: int = 0
    ) -> tuple[dict[int, T], list[Failure]]:
        """What each client replied, in partition order, and who failed."""
        arrived = _by_request(replies)
        found: dict[int, T] = {}
        failures: list[Failure] = []
        for partition, message in sorted(self._asked.items()):
            reply = arrived.get(message.metadata.message_id)
            try:
                if reply is None:
                    raise RejectedError("no reply in time")
                if reply.has_error():
                    raise RejectedError(reason_of(str(reply.error.reason), _LONGEST_REASON))
                found[partition] = read(reply.content)
            except RejectedError as error:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                failures.append(Failure(partition, attempt, reason))
        return found, failures

    def silent(self, replies: Iterable[Message]) -> list[int]:
        """Clients that did not reply themselves, be it with an error."""
        own = {
            reply.metadata.reply_to_message_id
            for reply in replies
            if not reply.has_error() or reply.error.code in _OWN_ERRORS
        }
        return sorted(p for p, message in self._asked.items() if message.metadata.message_id not in own)


def _by_request(replies: Iterable[Message]) -> dict[str, Message]:
    return {reply.metadata.reply_to_message_id: reply for reply in replies}
