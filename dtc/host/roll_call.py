"""The processes of a run report to process 0, which says who is missing, before JAX connects.

Where a process never comes, JAX aborts all with a stack of C++ that names none. JAX listens at the
same address once the roll call is over.
"""

import socket
import time

from dtc.config.errors import ConfigError
from dtc.host.wire import PATIENCE, Wire


class MissingError(ConfigError):
    """Not all processes have come; a launcher starts them again."""

    status = 124


def report(coordinator: str, num: int, process: int, end: float, seconds: float) -> Wire:
    """The connection to process 0, once it has seen all others."""
    host, _, port = coordinator.rpartition(":")
    is_there = False
    while time.monotonic() < end + PATIENCE:
        try:
            wire = Wire(socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE))
        except OSError:
            time.sleep(0.2)
            continue
        wire.send(process=process, num=num, host=socket.gethostname())
        while time.monotonic() < end + 2 * PATIENCE:
            try:
                message = wire.one()
            except TimeoutError:
                continue
            except OSError:
                break
            wire.process, wire.host, is_there = 0, str(message.get("host", host)), True
            if "missing" in message:
                raise MissingError(str(message["missing"]))
            if "go" in message:
                return wire
        wire.socket.close()
        time.sleep(0.2)
    if is_there:
        raise MissingError(f"Process 0 at {coordinator} did not let the others begin.")
    raise MissingError(
        f"Process 0 of {num} was not reached at {coordinator} within {seconds:g} s. "
        "Is it running, and is --coordinator its address?"
    )


def gather(at: str, num: int, end: float, seconds: float) -> list[Wire]:
    """The connections from all other processes."""
    came: list[Wire] = []
    here: dict[int, Wire] = {}
    wrong = ""
    with _listen(at, end) as listener:
        while len(here) < num - 1 and not wrong and time.monotonic() < end:
            wire = _welcome(listener)
            if wire is None:
                continue
            came.append(wire)
            twin = here.get(wire.process)
            if wire.num != num:
                wrong = f"{wire.name} was started with --num_processes={wire.num} and process 0 "
                wrong += f"with {num}. Start all of them with the same number."
            elif twin is not None and _is_open(twin):
                wrong = f"--process_id={wire.process} was given to two processes, on {wire.host} "
                wrong += f"and {twin.host}. Give each its own."
            here[wire.process] = wire
    gone = [process for process, wire in here.items() if not _is_open(wire)]
    missing = sorted({*range(1, num)} - {*here} | {*gone})
    if missing and not wrong:
        names = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
        wrong = (
            f"{num - len(missing)} of {num} processes came within {seconds:g} s; missing: "
            f"process {names}. Look at what they print."
        )
    for wire in came:
        wire.send(missing=wrong) if wrong else wire.send(go=num, host=socket.gethostname())
    if wrong:
        raise MissingError(wrong)
    return list(here.values())


def _welcome(listener: socket.socket) -> Wire | None:
    """The next process that reports; None: nobody, or a stranger."""
    try:
        wire = Wire(listener.accept()[0])
        hello = wire.one()
        wire.process, wire.num = int(hello["process"]), int(hello["num"])
        wire.host = str(hello["host"])[:100]
    except (OSError, KeyError, TypeError, ValueError):
        return None
    return wire if wire.process > 0 else None


def _is_open(wire: Wire) -> bool:
    """Whether the process at the other end is still there; it has nothing to say yet."""
    try:
        wire.socket.setblocking(False)
        return wire.socket.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        wire.socket.settimeout(PATIENCE)


def _listen(at: str, end: float) -> socket.socket:
    """A socket that listens at HOST:PORT; a run that is just ending may still hold the port."""
    host, _, port = at.rpartition(":")
    hosts = ["::", "0.0.0.0"] if host == "[::]" else [host.strip("[]")]  # or without IPv6
    while True:
        for name in hosts:
            try:
                return _bound(name, int(port))
            except OSError as error:
                problem = error
        if time.monotonic() > end:
            raise MissingError(
                f"Process 0 cannot listen at {at}: {problem}. Is --coordinator its own address, "
                "and is the port free?"
            )
        time.sleep(0.5)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; JAX may listen there too once this one is closed."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(*found[:3])
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if found[0] == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(found[4])
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    listener.settimeout(0.2)
    return listener
