"""What the processes of a run agree on: before step 0 what they run, later when to stop or save.

They speak through the key-value store of JAX's coordination service, on process 0. A collective
would wait for the train call in flight, and it could hang if the processes run different programs.
"""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
from jax._src import distributed  # JAX has no public name for the store

import dtc
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.host.code import code_hash

PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "flax", "optax", "orbax-checkpoint")
OWN = ("JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_COORDINATOR_BIND_ADDRESS")  # may differ
NAMED = 5  # differences in a message
WAIT = 60  # seconds for another process's part

Record = dict[str, Any]  # values by what they are called in a message


class Store(Protocol):
    """The part of JAX's key-value store that is used here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = ...) -> None: ...
    def key_value_try_get(self, key: str) -> str: ...
    def key_value_delete(self, key: str) -> None: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...


def record(cfg: Config, workdir: Path, resume: bool) -> Record:
    """What must be equal on all processes: settings, code, versions, devices and environment."""
    settings = {name: config.show(value) for name, value in config.flat(cfg).items()}
    local = jax.local_devices()
    return settings | {
        "--workdir": str(workdir),
        "--resume": resume,
        "code of dtc": code_hash(Path(dtc.__file__).parents[1], ["dtc"]),
        "Python": platform.python_version(),
        "devices of a process": f"{len(local)} x {local[0].device_kind}",
        **{name: _version(name) for name in PACKAGES},
        **{name: os.environ.get(name, "") for name in _variables()},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _variables() -> list[str]:
    """Environment variables that change what is compiled."""
    ours = [name for name in os.environ if name.startswith("JAX_") and name not in OWN]
    return sorted({*ours, "XLA_FLAGS", "LIBTPU_INIT_ARGS"})


def check_same(mine: Record) -> None:
    """Compares the processes' records; returns once all have answered.

    Raises:
      ConfigError: they differ; the message names what, and the values.
    """
    num = jax.process_count()
    if num > 1:
        sentence = compare(_store(), jax.process_index(), num, mine)
        if sentence:
            raise ConfigError(sentence)


def compare(store: Store, process: int, num: int, mine: Record) -> str:
    """A sentence about how the records differ, the same on all processes; '' if they do not."""
    if process == 0:
        store.key_value_set("dtc/record", json.dumps(mine))
    else:
        first = json.loads(_get(store, "dtc/record", 0))
        store.key_value_set(f"dtc/differs/{process}", json.dumps(differences(first, mine)))
    if process == 0:
        others = {p: json.loads(_get(store, f"dtc/differs/{p}", p)) for p in range(1, num)}
        store.key_value_set("dtc/verdict", verdict(others))
    return _get(store, "dtc/verdict", 0)


def differences(first: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, list[Any]]:
    """name -> [value of process 0, value here] for what is not equal."""
    names = [name for name in {**first, **mine} if first.get(name) != mine.get(name)]
    return {name: [first.get(name), mine.get(name)] for name in names}


def verdict(others: Mapping[int, Mapping[str, list[Any]]]) -> str:
    """A sentence that names each difference once, with the processes that have it."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for process, differs in others.items():
        for name, (there, here) in differs.items():
            found.setdefault((name, str(there), str(here)), []).append(process)
    if not found:
        return ""
    parts = [
        f"{name}={here} on {_those(processes)} and {there} on process 0"
        for (name, there, here), processes in list(found.items())[:NAMED]
    ]
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return (
        f"The processes differ: {'; '.join(parts)}{more}. "
        "Start all of them with the same command, code and packages."
    )


def _those(processes: list[int]) -> str:
    if len(processes) == 1:
        return f"process {processes[0]}"
    shown = ", ".join(map(str, processes[:3]))
    return f"processes {shown}{', ...' if len(processes) > 3 else ''}"


class Wish(NamedTuple):
    """What a process would do next, and what all then do."""

    signal: int  # that asks to stop after this call; 0: go on
    saves: bool  # a checkpoint is due
    limit: int  # most iterations of the next call


class Calls:
    """Agreement on each train call.

    Every process asks once before each call. One that was told to stop leaves a wish in the store.
    Before call b process 0 announces what all do at call b + LEAD: its own wish, with any signal.
    Nobody has to wait: whoever asks about call b + LEAD has read the metrics of call b, which are
    sums over all devices, so process 0 had started call b, and it made the announcement before.
    """

    LEAD = 2  # one call may be in flight

    def __init__(self, store: Store | None, process: int):
        """`store` is None for a single process."""
        self.store, self.process = store, process
        self.call = 0
        self.saved = -self.LEAD - 1  # the call about which process 0 last announced a save
        self.has_wished = False

    def agreed(self, mine: Wish) -> Wish:
        """What all processes do at the next call."""
        if self.store is None:
            return mine
        call, self.call = self.call, self.call + 1
        if mine.signal and not self.has_wished:
            self.store.key_value_set("dtc/signal", str(mine.signal), allow_overwrite=True)
            self.has_wished = True
        if self.process == 0:
            self._announce(call + self.LEAD, mine)
        if call < self.LEAD:
            return Wish(0, False, 1)
        signal, saves, limit = json.loads(_get(self.store, f"dtc/call/{call}", 0))
        return Wish(signal, bool(saves), limit)

    def _announce(self, call: int, mine: Wish) -> None:
        """Process 0 announces a call; a save that it has announced is not announced again."""
        assert self.store is not None
        saves = mine.saves and call > self.saved + self.LEAD
        if saves:
            self.saved = call
        signal = int(_try(self.store, "dtc/signal") or 0)
        self.store.key_value_set(f"dtc/call/{call}", json.dumps([signal, saves, mine.limit]))
        if call >= 5 * self.LEAD:  # the first one announced is that of call LEAD
            self.store.key_value_delete(f"dtc/call/{call - 4 * self.LEAD}")


def calls() -> Calls:
    """The agreement of this run's processes."""
    return Calls(_store() if jax.process_count() > 1 else None, jax.process_index())


def _store() -> Store:
    store = distributed.global_state.client
    assert store is not None, "several processes are connected by a coordination service"
    return store


def _try(store: Store, key: str) -> str:
    """The value of a key; '' if there is none."""
    try:
        return store.key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return ""


def _get(store: Store, key: str, process: int) -> str:
    """The value of a key that `process` sets."""
    try:
        return store.blocking_key_value_get(key, WAIT * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise RuntimeError(f"Process {process} did not answer within {WAIT} s.") from error
