"""Named arrays to and from Flower records, and what they weigh on the wire."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from pip_flower.arrays import Arrays, NamedArrays

# The records of a message.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
# Among a reply's metrics: how many samples it rests on.
SAMPLES = "num-examples"
# What a training message tells: whether it is the work at the end of a task, and the digest of the arrays
# that travel once per task; in a reply, that the client does not have them.
PHASE, CONCLUDE = "phase", "conclude"
CONSTANT, LACKS = "constant", "lacks"


def to_record(arrays: Arrays) -> ArrayRecord:
    """Arrays under their names, in their order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> NamedArrays:
    """The inverse of `to_record`."""
    return {name: array.numpy() for name, array in record.items()}


def content(
    arrays: ArrayRecord | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> RecordDict:
    """A message's content: one record of each kind that is given."""
    records = RecordDict()
    if arrays is not None:
        records[ARRAYS] = arrays
    if config is not None:
        records[CONFIG] = ConfigRecord(dict(config))
    if metrics is not None:
        records[METRICS] = MetricRecord(dict(metrics))
    return records


def said(reply: Message | None) -> Mapping[str, Any]:
    """What a reply has to say beside arrays and metrics; nothing if there is none."""
    if reply is None or reply.has_error():
        return {}
    return dict(reply.content.config_records.get(CONFIG, ConfigRecord()))


def content_bytes(message: Message) -> int:
    """Size of a message's content as Flower serialises it."""
    return serialised_bytes(message.content)


def serialised_bytes(records: RecordDict) -> int:
    """Size of records as Flower serialises them."""
    return int(recorddict_to_proto(records).ByteSize())
