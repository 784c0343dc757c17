"""Options that choose a configuration, shared by the commands."""

import argparse
from pathlib import Path

from pip_flower.config.compose import Selection
from pip_flower.config.files import available
from pip_flower.config.overrides import absolute_paths, parse_overrides
from pip_flower.config.schema import ConfigError


def choosing_parser() -> argparse.ArgumentParser:
    """A parent for every command that works on a configuration."""
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument(
        "--experiment",
        default="",
        help=f"one of: {', '.join(available('experiment'))}; default: digits, or own with another data set",
    )
    chosen.add_argument("--dataset", default="", help="replace the experiment's data set")
    chosen.add_argument("--overrides", default="", metavar='"a.b=1 c.d=x"', help="change keys")
    chosen.add_argument("--data-dir", default="", help="where the data is")
    chosen.add_argument("--seed", default="", help="replace the experiment's seed")
    return chosen


def selection_of(options: argparse.Namespace) -> Selection:
    """What the command line chose, with paths that no longer depend on the working directory."""
    parse_overrides(options.overrides)
    return Selection(
        options.experiment,
        getattr(options, "method", ""),
        options.dataset,
        absolute_paths(options.overrides, Path.cwd()),
        str(Path(options.data_dir).expanduser().resolve()) if options.data_dir else "",
        seed_of(options.seed) if options.seed else -1,
    )


def out_dir_of(options: argparse.Namespace) -> Path:
    """Where run directories are made."""
    return Path(options.out_dir).expanduser().resolve()


def listed(text: str) -> list[str]:
    """The items of "a, b"."""
    return [item for item in map(str.strip, text.split(",")) if item]


def seed_of(text: str, option: str = "--seed") -> int:
    """A seed as it was typed."""
    if not text.strip().isdecimal():
        raise ConfigError(option, f"{text!r} is not a whole number from 0 on", "Give one such as 2021")
    return int(text)
