"""How often Flower looks for messages, which it has no option for: waits that suit rounds of seconds."""

import sys
import time
from typing import SupportsIndex

from flwr.supercore.inflatable.inflatable_utils import pull_objects

_FIRST_PULL_AGAIN = "initial_backoff"
# Waits from here on are between questions to another machine, shorter ones between looks into own memory.
_FAR = 1.0
_NEAR_SECONDS = 0.05


def shorten_sleeps(module: str, poll_seconds: float) -> None:
    """From now on, calls of `time.sleep` in the module of that name take at most `poll_seconds`, and those
    that Flower means to be shorter than a second at most a twentieth of a second."""
    whole = time.sleep

    def pause(seconds: float | SupportsIndex, /) -> None:
        wanted = float(seconds)
        if sys._getframe(1).f_globals.get("__name__") == module:
            wanted = min(wanted, poll_seconds if wanted >= _FAR else _NEAR_SECONDS)
        whole(wanted)

    time.sleep = pause


def hasten_pulls(first: float = _NEAR_SECONDS) -> None:
    """Ask again after `first` seconds, then twice that and so on, for parts of a message that are not there.

    A message is announced before its parts are sent, and whoever looks at once finds some of them missing.
    Flower then waits a whole second. The longest wait and the number of tries stay Flower's own.
    """
    defaults = pull_objects.__kwdefaults__
    if defaults and _FIRST_PULL_AGAIN in defaults:
        defaults[_FIRST_PULL_AGAIN] = first
