"""Where numbers come from: the commands that made them, versions, machine, seeds, and when."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "numpy", "polars", "altair")


def colophon(commands: Sequence[str], **more: str) -> Mapping[str, str | Sequence[str]]:
    """The lines at a report's end. commands: as typed.  more: whatever else belongs there, such as seeds="0, 1, 2" """
    told: dict[str, str | Sequence[str]] = {"commands" if len(commands) > 1 else "command": list(commands)}
    told |= {name.replace("_", " "): value for name, value in more.items()}
    told["versions"] = ", ".join(
        [
            f"spdd {version('spdd')}{commit()}",
            f"Python {platform.python_version()}",
            *(f"{p} {version(p)}" for p in PACKAGES),
        ]
    )
    told["machine"] = machine()
    told["made"] = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    return told


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def commit() -> str:
    """ " (commit abc1234)" where this code lies in its own repository; "+" marks a change that is not committed."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # or it is somebody else's repository around us
        changed = git("status", "--porcelain", "--", "..")
        return f" (commit {git('rev-parse', '--short', 'HEAD')}{'+' * bool(changed)})"
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> str:
    """System, processor and cores: 'Linux x86_64, <processor>, 2 cores'."""
    return ", ".join(
        x for x in (f"{platform.system()} {platform.machine()}", _processor(), f"{os.cpu_count()} cores") if x
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
