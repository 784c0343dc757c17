"""Where the worker of a node listens: a socket that only its user can reach, named after its SuperNode."""

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from pip_flower.runtime.process import alive

SWITCH = "PIP_FLOWER_WORKER"
# The system takes 107 bytes; the longest name below the directory is that of a process's fork socket.
_LONGEST = 107 - len("/4194304.programs/fork.sock")
_NAME = re.compile(r"(\d+)\.(?:sock|lock|programs)")


def worker_wanted() -> bool:
    """Unless the node's operator wants every message in a process of its own."""
    return os.environ.get(SWITCH, "on") != "off"


class UnsafePlaceError(RuntimeError):
    """The directory for sockets is somebody else's, or has too long a name."""


def socket_directory() -> Path:
    """Below the directory for temporary files; made if need be, refused if others may enter it."""
    path = Path(tempfile.gettempdir()) / f"pip-flower-{os.getuid()}"
    if len(os.fsencode(path)) > _LONGEST:
        raise UnsafePlaceError(f"{path} is too long for a socket in it: set TMPDIR to a shorter directory")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnsafePlaceError(f"{path} is not a private directory of this user: remove it")
    return path


def socket_path(owner: int) -> Path:
    """The socket of the worker that lives as long as process `owner`."""
    return socket_directory() / f"{owner}.sock"


def sweep_sockets() -> None:
    """Remove what SuperNodes that are gone, and their workers, left behind; others may be sweeping too."""
    for path in socket_directory().iterdir():
        name = _NAME.fullmatch(path.name)
        if name and not alive(int(name[1])):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
