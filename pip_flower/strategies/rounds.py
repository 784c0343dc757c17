"""One round. Flower's own loop starts at round 1 and plays every round once; a run that is resumed starts
later, and a round that too few clients finish is repeated."""

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pip_flower.strategies.roster import TooFewAnswersError

ATTEMPT = "attempt"


def play_round(
    strategy: Strategy,
    grid: Grid,
    round_: int,
    arrays: ArrayRecord,
    *,
    timeout: float,
    retries: int,
    evaluate: Callable[[int, ArrayRecord], object],
) -> ArrayRecord:
    """Training, then the clients' evaluation, then the server's; returns the merged arrays."""
    merged = _train(strategy, grid, round_, arrays, timeout, retries)
    questions = list(strategy.configure_evaluate(round_, merged, ConfigRecord(), grid))
    if questions:
        strategy.aggregate_evaluate(round_, grid.send_and_receive(questions, timeout=timeout))
    evaluate(round_, merged)
    return merged


def _train(
    strategy: Strategy, grid: Grid, round_: int, arrays: ArrayRecord, timeout: float, retries: int
) -> ArrayRecord:
    for attempt in range(retries + 1):
        config = ConfigRecord({ATTEMPT: attempt})
        messages = strategy.configure_train(round_, arrays, config, grid)
        replies = grid.send_and_receive(messages, timeout=timeout)
        try:
            merged, _ = strategy.aggregate_train(round_, replies)
        except TooFewAnswersError:
            if attempt == retries:
                raise
        else:
            return arrays if merged is None else merged
    raise AssertionError("the last attempt returns or raises")
