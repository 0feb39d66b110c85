"""The cache of compiled programs on this machine, and how long compiling took last time.

A second start reads its programs instead of compiling them. Reading has crashed where a cache was
damaged, so a start that ends while it reads is noticed by the next one, which empties the cache.
"""

import atexit
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from dtc.config.errors import ConfigError
from dtc.config.settings import Config, flat
from dtc.host import identity, peers
from dtc.host.command import OFF

Show = Callable[[str, float | None], contextlib.AbstractContextManager[None]]
DIRECTORY = "jax_compilation_cache_dir"
MIN_SECONDS = "jax_persistent_cache_min_compile_time_secs"
MIN_BYTES = "jax_persistent_cache_min_entry_size_bytes"
LARGEST = 4 * 2**30  # bytes; the programs used least recently go first
LEAST = 0.2  # seconds; a program that compiles faster is not kept
TIMES = "times.json"


class Compiles:
    """The cache of one start; without a directory it does nothing."""

    def __init__(self, where: str, environ: Mapping[str, str] = os.environ):
        """Args:
        where: a directory, OFF, or '': that of JAX, by JAX_COMPILATION_CACHE_DIR or by the
          program, otherwise the user's.

        Raises:
          ConfigError: a directory was named that cannot be written.
        """
        self.root: Path | None = None
        if where == OFF or (not where and not jax.config.values["jax_enable_compilation_cache"]):
            return
        if jax.default_backend() == "cpu" and jax.process_count() > 1:
            return  # programs with collectives between processes were never read back
        # Programs of another JAX, or of other devices, are never read.
        kind = f"{metadata.version('jaxlib')}-{jax.default_backend()}-{jax.local_device_count()}"
        try:
            root = Path(where or jax.config.values[DIRECTORY] or user_directory(environ))
            (root / kind).mkdir(parents=True, exist_ok=True)
            self.mark = root / kind / f"reading-{os.getpid()}"
            self.mark.touch()
        except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
            if where:
                reason = getattr(error, "strerror", None) or error
                why = f"cannot be written ({reason}). Use another one, or {OFF}"
                raise ConfigError(f"--compile_cache={where} {why}.") from error
            return  # a home that cannot be written is no reason not to train
        self.root = root / kind
        atexit.register(self.loaded)
        peers.at_end.append(self.loaded)
        self._mend()
        self._prune()
        wanted = {DIRECTORY: str(self.root), MIN_SECONDS: LEAST, MIN_BYTES: -1}
        self.before = {name: jax.config.values[name] for name in wanted}
        _configure(wanted)

    def close(self) -> None:
        """Restores the settings of JAX, for a program that goes on after training."""
        if self.root is not None:
            self.loaded()
            _configure(self.before)

    def loaded(self) -> None:
        """Hears that all programs are there: from now on the process may die as it likes."""
        if self.root is not None:
            with contextlib.suppress(OSError):
                self.mark.unlink()

    def last(self, program: str, cfg: Config) -> float | None:
        """Seconds that a program took last time; None if that is not known."""
        found = self._times().get(_name(program, cfg))
        return found if isinstance(found, float) else None

    @contextlib.contextmanager
    def timed(self, program: str, cfg: Config) -> Iterator[None]:
        """Notes how long the block takes."""
        begin = time.monotonic()
        yield
        if self.root is None:
            return
        times = self._times() | {_name(program, cfg): time.monotonic() - begin}
        draft = self.root / f"{TIMES}.{os.getpid()}"
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps(times))
            os.replace(draft, self.root / TIMES)

    @contextlib.contextmanager
    def during(self, cfg: Config, show: Show, program: str) -> Iterator[None]:
        """Shows and notes how long the block compiles a program."""
        with show(program, self.last(program, cfg)), self.timed(program, cfg):
            yield

    def _times(self) -> dict[str, float]:
        if self.root is None:
            return {}
        try:
            found = json.loads((self.root / TIMES).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _programs(self) -> list[Path]:
        assert self.root is not None
        return [p for p in self.root.iterdir() if p.name.startswith("jit_")]

    def _mend(self) -> None:
        """Empties the cache if a process died while it read from it."""
        assert self.root is not None
        marks = [m for m in self.root.glob("reading-*") if not _is_alive(m)]
        for path in [*marks, *(self._programs() if marks else [])]:
            path.unlink(missing_ok=True)

    def _prune(self) -> None:
        """Removes what was used least recently, down to LARGEST."""
        with contextlib.suppress(OSError):  # another start may remove programs meanwhile
            found = sorted(((p.stat().st_atime, p) for p in self._programs()), reverse=True)
            size = 0
            for _, path in found:
                size += path.stat().st_size
                if size > LARGEST:
                    path.unlink(missing_ok=True)


def _configure(values: Mapping[str, Any]) -> None:
    """Changes settings of JAX, and closes the cache that it opened with the old ones."""
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def user_directory(environ: Mapping[str, str]) -> Path:
    """dtc's in the user's directory for caches."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dtc" / "programs"


def _is_alive(mark: Path) -> bool:
    """Whether the process that left a mark still runs."""
    try:
        os.kill(int(mark.name.partition("-")[2]), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True
    return True


def _name(program: str, cfg: Config) -> str:
    """What a program is compiled from: the settings that are not free, but for the seed."""
    own = {k: v for k, v in flat(cfg).items() if k not in identity.FREE and k != "seed"}
    own |= {"mesh": [cfg.mesh.data, cfg.mesh.ensemble]}
    return f"{program} {hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]}"
