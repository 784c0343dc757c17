"""What went wrong, from what Flower and Ray say about it: the exception, and where in the project it was."""

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pip_flower.flower.log import colourless

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_RAISED = re.compile(r"^(?P<module>(?:\w+\.)*)(?P<name>[A-Z]\w*(?:\(\w+\))?)(?:: ?(?P<text>.*))?$")
# How Flower puts an exception into a reply: its class and its text, which is Ray's account of it in a
# simulation.
_IN_REPLY = re.compile(r"^<class '(?P<type>[^']+)'>:<'(?P<text>.*)'>$", re.DOTALL)
# They say only that there was another exception.
_WRAPPERS = ("ClientAppException", "RayTaskError")
# The log says so when the app is at fault; a process that was killed says nothing.
_APP_RAISED = re.compile(r"(?:ServerApp|Simulation|ClientApp) raised an exception")
_BUNDLE = re.compile(r"^.*/apps/[^/]+/")
_LIBRARIES = ("/site-packages/", "/lib/python", "<frozen")
# Trouble with machines and networks, which may be over the next time.
_PASSING = ("flwr.", "ray.", "grpc.", "httpx.", "httpcore.", "requests.", "urllib3.")


@dataclass(frozen=True)
class Frame:
    """A line of code."""

    file: str
    line: int
    function: str

    @property
    def ours(self) -> bool:
        """The project's, or a method's of another package; not a library's."""
        return bool(_BUNDLE.match(self.file)) or not any(part in self.file for part in _LIBRARIES)

    def __str__(self) -> str:
        path = _BUNDLE.sub("", self.file)
        if path == self.file and "pip_flower" in (parts := PurePath(path).parts):
            path = str(PurePath(*parts[len(parts) - 1 - parts[::-1].index("pip_flower") :]))
        return f"{path}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Raised:
    """An exception, as a traceback tells of it."""

    module: str
    name: str
    text: str
    frames: tuple[Frame, ...] = ()

    @property
    def where(self) -> Frame | None:
        """The innermost line of the project, or else of all."""
        own = [frame for frame in self.frames if frame.ours]
        return own[-1] if own else self.frames[-1] if self.frames else None

    @property
    def passing(self) -> bool:
        """Whether it says nothing about the app."""
        return self.module.startswith(_PASSING) or not any(frame.ours for frame in self.frames)

    def shown(self, longest: int | None = None) -> str:
        """On one line; the text is cut, if need be, and not where it was raised."""
        told = " ".join(f"{self.name}: {self.text}".split()).removesuffix(":")
        where = f" ({self.where})" if self.where else ""
        room = None if longest is None else max(0, longest - len(where))
        return told[:room] + where


def where_raised(error: BaseException) -> str:
    """The innermost line of the project that an exception passed through; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = Raised("", "", "", tuple(Frame(f.filename, f.lineno or 0, f.name) for f in frames))
    return str(raised.where) if raised.where else ""


def reason_of(reply: str, longest: int) -> str:
    """What an error reply of Flower says, on one line."""
    text = colourless(reply)
    if last := _last(text):
        return last.shown(longest)
    if found := _IN_REPLY.match(text):
        module, _, name = found["type"].rpartition(".")
        return Raised(module, name, found["text"]).shown(longest)
    return " ".join(text.split())[:longest]


def raised_by_app(log: str) -> Raised | None:
    """The exception that ended the run, if the app raised one."""
    *_, after = _APP_RAISED.split(colourless(log))
    return _last(after) if after != colourless(log) else None


def _last(text: str) -> Raised | None:
    found = [raised for raised in _told(text) if not raised.name.startswith(_WRAPPERS)]
    return found[-1] if found else None


def _told(text: str) -> Iterator[Raised]:
    """Every exception whose traceback is in the text."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if found := _FRAME.match(line):
            frames.append(Frame(found["file"], int(found["line"]), found["function"]))
        elif frames and (raised := _RAISED.match(line)):
            yield Raised(raised["module"], raised["name"], raised["text"] or "", tuple(frames))
            frames = []
