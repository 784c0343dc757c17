"""What clients reply, read with suspicion: it is used as a whole or rejected."""

import math
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from pip_flower.arrays import Arrays
from pip_flower.config.sections import ValidationConfig
from pip_flower.flower.records import ARRAYS, METRICS, SAMPLES
from pip_flower.method.evaluation import OWN, ClientScores, Score
from pip_flower.method.exchange import ClientUpdate, Exchange
from pip_flower.method.reply_checks import (
    RejectedError,
    check_array,
    check_hits,
    check_metrics,
    check_names,
    check_samples,
)


def read_update(
    reply: RecordDict,
    exchange: Exchange,
    task: int,
    arrays: Arrays,
    limits: ValidationConfig,
) -> ClientUpdate:
    """A client's reply, checked; `arrays` are the global ones."""
    reported = _metrics(reply)
    samples = check_samples(reported.pop(SAMPLES, None), limits.max_samples)
    metrics = check_metrics(reported)
    records = reply.array_records
    if set(records) != {ARRAYS}:
        raise RejectedError(f"it has {len(records)} records of arrays instead of one")
    specs = exchange.expected(task, arrays, samples)
    check_names(records[ARRAYS].keys(), specs.keys())
    found = {name: _decoded(name, records[ARRAYS][name]) for name in specs}
    for name, spec in specs.items():
        check_array(name, found[name], spec, limits.max_norm)
    exchange.inspect(task, found, samples)
    return ClientUpdate(found, samples, metrics)


def read_scores(reply: RecordDict, tasks: int, limits: ValidationConfig, own: bool) -> ClientScores:
    """What a client recognised of its test samples of each task and, if asked for, of its own classes."""
    metrics = _metrics(reply)

    def scores(prefix: str = "") -> list[Score]:
        return [Score(*hits) for hits in check_hits(metrics, tasks, limits.max_samples, prefix)]

    return ClientScores(scores(), scores(OWN) if own else [])


def _metrics(reply: RecordDict) -> dict[str, Any]:
    if METRICS not in reply.metric_records:
        raise RejectedError("it has no record of metrics")
    return dict(reply.metric_records[METRICS])


def _decoded(name: str, array: Array) -> NDArray[Any]:
    """The array in Flower's serialisation; its header may promise no more than there is."""
    stream = BytesIO(array.data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("of another version")
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
        body = array.data[stream.tell() :]
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body):
            raise ValueError("of another size")
        return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
    except Exception as error:
        # Whatever NumPy makes of bytes that a stranger sent, it must not stop the run.
        raise RejectedError(f"{name} cannot be read: {error}") from None
