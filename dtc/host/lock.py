"""The lock of a run directory: one process at a time writes to it.

The kernel releases `flock` when a process dies, so on one machine a lock is never stale. Where
another machine cannot see it, the file's time decides, which its owner refreshes.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from dtc.config.errors import ConfigError
from dtc.host.directory import writable

NAME = "lock.json"
BEAT, SILENCE = 10, 60  # seconds between refreshes; without one, a lock elsewhere is stale
PATIENCE = 0.5  # seconds; another process may just be checking
NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def boot() -> str:
    """The identity of this machine since its start; '' where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Lock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, workdir: Path):
        self.workdir, self.path = workdir, workdir.absolute() / NAME
        self.file: int | None = None
        self.owner = ""  # JSON, what the file says
        self.released = threading.Event()

    def take(self) -> None:
        """Takes the lock, and creates the directory if necessary.

        Raises:
          ConfigError: another process holds it, or nobody can write there.
        """
        with writable(self.workdir):
            self.workdir.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        if not self._is_free(file):
            owner = _owner(file)
            os.close(file)
            raise ConfigError(self._refusal(owner))
        started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        host = {"host": socket.gethostname(), "pid": os.getpid()}
        self.owner = json.dumps(host | {"started": started, "boot": boot()})
        with writable(self.workdir):
            self._sign(file)
        self.file = file
        threading.Thread(target=self._beat, daemon=True).start()

    def check(self) -> None:
        """Refuses a directory in use, as `take`, but takes nothing and creates nothing."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except OSError:
            return
        try:
            if not self._is_free(file, fcntl.LOCK_SH):
                raise ConfigError(self._refusal(_owner(file)))
        finally:
            os.close(file)

    def release(self) -> None:
        """Gives the lock back."""
        if self.file is not None:
            self.released.set()
            os.ftruncate(self.file, 0)
            os.close(self.file)
            self.file = None

    def _is_free(self, file: int, kind: int = fcntl.LOCK_EX) -> bool:
        """Takes `flock`; False if a live process holds the lock, here or elsewhere."""
        end = time.monotonic() + PATIENCE
        while not _flock(file, kind):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        owner = _owner(file)
        is_elsewhere = bool(owner) and owner.get("boot") != boot()
        # A clock may go back: a live owner writes the new time with its next refresh.
        return not (is_elsewhere and abs(self._age(file)) < SILENCE)

    def _age(self, file: int) -> float:
        """Seconds since the lock was refreshed, by the clock of its file system."""
        probe = self.workdir / f".clock-{os.getpid()}"
        try:
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
        except OSError:
            now = time.time()
        return now - os.fstat(file).st_mtime

    def _beat(self) -> None:
        while not self.released.wait(BEAT):
            try:
                if not self._is_there():
                    self._renew()
                os.utime(self.path)
            except OSError:
                continue  # the disk may come back

    def _sign(self, file: int) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, self.owner.encode(), 0)

    def _renew(self) -> None:
        """Takes the lock again where the directory was moved or removed, and begun anew since."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        if self.file is None or not _flock(file, fcntl.LOCK_EX):
            os.close(file)
            return
        self._sign(file)
        old, self.file = self.file, file
        os.close(old)

    def _is_there(self) -> bool:
        """Whether the lock that is held is still the one in the directory."""
        try:
            return self.file is None or os.path.samestat(os.fstat(self.file), self.path.stat())
        except FileNotFoundError:
            return False

    def _refusal(self, owner: dict[str, Any]) -> str:
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        since = f", which started {owner['started']}" if "started" in owner else ""
        return f"--workdir={self.workdir} is in use by {who}{since}. Wait for it or end it first."


def _flock(file: int, kind: int) -> bool:
    """Takes `flock` of this kind; False if that of another process is in the way."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in NO_FLOCK
    return True


def _owner(file: int) -> dict[str, Any]:
    """Who wrote the lock last; {} if nobody holds it."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
