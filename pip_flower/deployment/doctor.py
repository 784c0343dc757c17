"""What is wrong with an installation or a node, and what to do about it."""

import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from pip_flower.client.warm.sockets import UnsafePlaceError, socket_directory
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.deployment.certificates import days_left
from pip_flower.deployment.texts import dialled
from pip_flower.method.workspace import shared_workspace
from pip_flower.runtime.devices import pick_device
from pip_flower.runtime.process import cache_directory, state_directory

_GIGABYTE = 1 << 30
_LITTLE_SPACE = 2 * _GIGABYTE
_SOON = 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `remedy` is empty where nothing is to be done."""

    what: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    remedy: str = ""


def examine(config: Config, bundle: Path | None) -> Iterator[Finding]:
    """Look at everything that a run with `config` needs here; a bundle adds what its host needs."""
    yield from _versions()
    device = _guarded(_device, config)
    yield device
    if device.state == "ok":
        for check in (_backbone, _data):
            yield _guarded(check, config)
    yield from _space(config)
    yield _clock()
    yield _worker()
    if bundle is not None:
        yield from _bundle(bundle)


def _versions() -> Iterator[Finding]:
    yield Finding("Python", "ok", sys.version.split()[0])
    for text in requires("pip-flower") or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        remedy = f'pip install "{wanted.name}{wanted.specifier}"'
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            yield Finding(wanted.name, "wrong", "is not installed", remedy)
            continue
        if wanted.specifier.contains(found, prereleases=True):
            yield Finding(wanted.name, "ok", found)
        else:
            yield Finding(wanted.name, "wrong", f"{found} instead of {wanted.specifier}", remedy)


def _device(config: Config) -> Finding:
    return Finding("device", "ok", f"{pick_device(config.runtime)}, {os.cpu_count()} CPUs")


def _backbone(config: Config) -> Finding:
    digest = shared_workspace(config).backbone.digest
    return Finding("backbone", "ok", f"{config.backbone.name}, digest {digest[:16]} (the same on all nodes)")


def _data(config: Config) -> Finding:
    data = shared_workspace(config).data
    found = f"{len(data.train)} training and {len(data.test)} test images of {len(data.class_names)} classes"
    return Finding("data", "ok", found)


def _guarded(check: Callable[[Config], Finding], config: Config) -> Finding:
    """A configuration that cannot be used is a finding like any other."""
    try:
        return check(config)
    except ConfigError as error:
        problem, _, remedy = str(error).rpartition(". ")
        return Finding(check.__name__.lstrip("_"), "wrong", problem or str(error), remedy)


def _space(config: Config) -> Iterator[Finding]:
    places = {
        "state of clients": state_directory(config.runtime),
        "cache": cache_directory(config.runtime),
        "temporary files": Path(tempfile.gettempdir()),
    }
    for what, place in places.items():
        existing = next(path for path in (place, *place.parents) if path.exists())
        if not os.access(existing, os.W_OK):
            yield Finding(what, "wrong", f"{place} cannot be written", "Change its owner or the setting")
            continue
        free = shutil.disk_usage(existing).free
        found = f"{free / _GIGABYTE:.1f} GB free in {place}"
        if free < _LITTLE_SPACE:
            yield Finding(what, "warning", found, f"Keep {_LITTLE_SPACE // _GIGABYTE} GB free")
        else:
            yield Finding(what, "ok", found)


def _clock() -> Finding:
    """Signatures of nodes carry the time: a SuperLink refuses those of a clock that is minutes off."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said == "no":
        return Finding(
            "clock", "warning", f"{now}, not synchronised", "Turn on NTP: timedatectl set-ntp true"
        )
    return Finding("clock", "ok", now if said == "yes" else f"{now} (compare it with the server's)")


def _worker() -> Finding:
    try:
        return Finding("worker", "ok", f"sockets go to {socket_directory()}")
    except (UnsafePlaceError, OSError) as error:
        return Finding("worker", "wrong", str(error), "Nodes cannot start their workers")


def _bundle(bundle: Path) -> Iterator[Finding]:
    script = bundle / "start.sh"
    if not script.is_file():
        yield Finding("bundle", "wrong", f"{bundle} has no start.sh", "Copy the bundle of this host again")
        return
    for key in sorted(bundle.glob("*.key")):
        mode = stat.S_IMODE(key.stat().st_mode)
        if mode & 0o077:
            yield Finding(key.name, "wrong", f"others may read it (mode {mode:o})", f"chmod 600 {key}")
        else:
            yield Finding(key.name, "ok", f"private (mode {mode:o})")
    for certificate in sorted([*bundle.glob("*.crt"), *bundle.glob("*.pem")]):
        left = days_left(certificate)
        state: Literal["ok", "warning", "wrong"] = (
            "wrong" if left < 0 else "warning" if left < _SOON else "ok"
        )
        remedy = "" if state == "ok" else "Run `pip-flower deploy init` again and copy the server's bundle"
        yield Finding(certificate.name, state, f"valid for {left} days", remedy)
    if superlink := dialled(script.read_text(encoding="utf-8")):
        authority = bundle / "ca.crt"
        yield reach(*superlink, authority if authority.is_file() else None)


def reach(host: str, port: int, authority: Path | None) -> Finding:
    """Dial the SuperLink as a node would; with an authority, see that it is the right one."""
    what = "SuperLink"
    try:
        with socket.create_connection((host, port), timeout=5) as plain:
            if authority is None:
                return Finding(what, "ok", f"{host}:{port} answers, without TLS")
            context = ssl.create_default_context(cafile=str(authority))
            context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return Finding(what, "ok", f"{host}:{port} answers, {secure.version()}, certificate is good")
    except ssl.SSLCertVerificationError as error:
        remedy = "Use ca.crt of this deployment, and a --server-host of `deploy init` as address"
        return Finding(what, "wrong", f"{host}:{port}: {error.verify_message}", remedy)
    except ssl.SSLError as error:
        remedy = "Is that the Fleet API of a SuperLink with TLS?"
        return Finding(what, "wrong", f"{host}:{port} speaks no TLS ({error.reason})", remedy)
    except OSError as error:
        remedy = "Is the SuperLink running, its port open, the name right?"
        return Finding(what, "wrong", f"{host}:{port}: {error}", remedy)
