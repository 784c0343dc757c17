"""Named arrays to and from Flower records, and what they weigh on the wire."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy.typing import NDArray

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Arrays under their names, in their order."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The inverse of `to_record`."""
    return {name: array.numpy() for name, array in record.items()}


def content(
    arrays: Mapping[str, NDArray[Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> RecordDict:
    """A message's content: one record of each kind that is given."""
    records = RecordDict()
    if arrays is not None:
        records[ARRAYS] = to_record(arrays)
    if config is not None:
        records[CONFIG] = ConfigRecord(dict(config))
    if metrics is not None:
        records[METRICS] = MetricRecord(dict(metrics))
    return records


def content_bytes(message: Message) -> int:
    """Size of a message's content as Flower serialises it."""
    return serialised_bytes(message.content)


def serialised_bytes(records: RecordDict) -> int:
    """Size of records as Flower serialises them."""
    return int(recorddict_to_proto(records).ByteSize())
