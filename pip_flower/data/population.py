"""Who is there in a task: clients may join with a task, and some learn no more."""

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.sections import Config
from pip_flower.runtime.streams import stream


def joined(config: Config, task: int) -> int:
    """How many clients have joined by `task`; those with the lowest partition ids come first."""
    clients, steps = config.federation.clients, config.schedule.tasks - 1
    initial = config.population.initial or clients
    return clients if steps == 0 else initial + (clients - initial) * task // steps


def active_clients(config: Config, task: int) -> NDArray[np.int64]:
    """Partition ids, sorted, of the clients that learn `task`.

    Whenever a task starts, the configured fraction of those that learnt the one before stops: they only
    ever see old tasks. The number is rounded down.
    """
    active = np.arange(joined(config, 0))
    for earlier in range(1, task + 1):
        rng = stream(config.seed, "population", earlier)
        # The tolerance keeps 0.1 * 30 at three although the product may fall a hair short of it.
        staying = len(active) - int(config.population.retire * len(active) + 1e-9)
        kept = np.sort(rng.permutation(active)[:staying])
        active = np.concatenate([kept, np.arange(joined(config, earlier - 1), joined(config, earlier))])
    return active
