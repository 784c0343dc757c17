"""The `pip-flower` command."""

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module

from pip_flower.commands.arguments import parsed
from pip_flower.config.schema import ConfigError
from pip_flower.flower.launcher import LaunchError, StoppedRunError

_BAD_INPUT, _FAILED, _INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    options = parsed(arguments)
    module, _, function = options.command.partition(":")
    try:
        # Imported only now: torch, Flower and timm take seconds, and help needs none of them.
        from rich.console import Console

        command = getattr(import_module(f"pip_flower.commands.{module}"), function)
        return int(command(options, Console()))
    except ConfigError as error:
        print(f"pip-flower: {error}", file=sys.stderr)
        return _BAD_INPUT
    except OSError as error:
        print(f"pip-flower: {_told(error)}", file=sys.stderr)
        return _BAD_INPUT
    except LaunchError as error:
        print(f"pip-flower: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt as error:
        _tell_interrupted(error)
        return _INTERRUPTED


def _tell_interrupted(error: KeyboardInterrupt) -> None:
    """The last words; the terminal may be closed."""
    hint = error.hint() if isinstance(error, StoppedRunError) else ""
    kept = f"\nWhat was done is kept. To go on:  {hint}" if hint else ""
    with contextlib.suppress(OSError):
        print(f"pip-flower: interrupted; everything that was started has ended{kept}", file=sys.stderr)


def _told(error: OSError) -> str:
    # Files are written under another name first; the second is the one that was meant.
    place = error.filename2 or error.filename
    return f"{str(place)!r}: {error.strerror}" if place else str(error)


if __name__ == "__main__":
    sys.exit(main())
