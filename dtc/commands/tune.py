"""Finds sizes that fit this device and are fast: compiles a ladder of them and times what fits.

dtc tune --config=configs/ppo.py                      # environments and minibatches of PPO
dtc tune --config=configs/local.py                    # batch and dream starts of the curious agent
dtc tune --config=configs/ppo_colab.py --device-memory=15GiB --host-memory=12GiB
dtc tune --config=configs/ppo_v4_8.py                 # a slice that is not here: memory alone
dtc tune --config=configs/ppo.py --dry-run            # prints the ladder

Each size is compiled in a process of its own, which is stopped where it takes more memory of the
host than --host-memory: a compiler that is killed by the system would take the tuner with it. A
size that needs more than --device-memory is not run.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from dtc.commands import inside
from dtc.commands.arguments import Parser, new_file
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError

Figures = dict[str, Any]
Step = dict[str, int]  # values of the settings that are turned, by name

GIB = 2**30
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB, "TiB": 2**40}
REPEATS = 5  # timed calls of a size, after one that compiles
FACTORS = (0.25, 0.5, 1, 2, 4)  # of what the config says


class Turned(NamedTuple):
    """What is turned for an algorithm, and the rate that decides."""

    scaled: tuple[str, ...]  # settings that are multiplied by each factor
    varied: dict[str, tuple[int, ...]]  # settings that take each of these values
    rate: str


TURNED = {
    "ppo": Turned(("env.num_envs",), {"ppo.minibatches": (4, 8)}, "env_steps/s"),
    "curious": Turned(("replay.batch", "dream.starts"), {}, "replayed_steps/s"),
}


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 where nothing fits, 2 after one sentence where the command is wrong."""
    args, rest = _parser().parse_known_args(argv)
    try:
        cfg = inside.parse(["dtc tune", *rest]).cfg
        limits = {name: _bytes(name, getattr(args, name)) for name in ("device", "host")}
        if args.measure:
            print(json.dumps(measure(cfg, limits["device"])))
            return 0
        steps = list(ladder(cfg))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.dry_run:
        for step in steps:
            print(" ".join(flags_of(step)))
        return 0
    tried = []
    for step in steps:
        tried.append({"settings": step} | try_one(rest, step, limits))
        print(_line(tried[-1]), flush=True)
    return _finish(tried, cfg, args.json)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "dtc tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="All other flags are those of dtc train: --config=, --config.A.B=, --mesh=.",
        allow_abbrev=False,
    )
    parser.add_argument("--device-memory", dest="device", help="a device's, e.g. 15GiB")
    parser.add_argument("--host-memory", dest="host", help="the host's, e.g. 12GiB")
    parser.add_argument("--dry-run", action="store_true", help="print the ladder and stop")
    parser.add_argument("--json", type=new_file, help="write the figures here too")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # of a child
    return parser


def _bytes(name: str, text: str | None) -> int:
    """Bytes of 15GiB; 0 where nothing is given."""
    if text is None:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)", text)
    if match is None:
        raise ConfigError(f"--{name}-memory={text} is no size. Use --{name}-memory=15GiB.")
    return int(float(match[1]) * UNITS[match[2]])


def ladder(cfg: Config) -> Iterator[Step]:
    """The sizes to try, smallest first; those that break a rule between settings are left out.

    Raises:
      ConfigError: nothing is known to turn for the algorithm.
    """
    turned = TURNED.get(cfg.algorithm.name)
    if turned is None:
        use = f"Use --config.algorithm.name={' or '.join(TURNED)}."
        raise ConfigError(f"algorithm.name={cfg.algorithm.name} has no sizes to tune. {use}")
    values = config.flat(cfg)
    for factor in FACTORS:
        scaled = {name: round(values[name] * factor) for name in turned.scaled}
        for chosen in itertools.product(*turned.varied.values()):
            step = scaled | dict(zip(turned.varied, chosen, strict=True))
            if _is_allowed(cfg, step):
                yield step


def _is_allowed(cfg: Config, step: Step) -> bool:
    tree = config.to_dict(cfg)
    for name, value in step.items():
        section, field = name.split(".")
        tree[section][field] = value
    try:
        config.from_dict(tree)
    except ConfigError:
        return False
    return True


def flags_of(step: Step) -> list[str]:
    """The flags of dtc train that set a step."""
    return [f"--config.{name}={value}" for name, value in step.items()]


def try_one(flags: Sequence[str], step: Step, limits: dict[str, int]) -> Figures:
    """What a size needs and gives, or why it does not fit (`why`)."""
    argv = [sys.executable, "-m", "dtc.commands", "tune", "--measure", *flags, *flags_of(step)]
    argv += [f"--device-memory={limits['device']}B"]  # a child knows what it need not run
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        peak = _Peak(child.pid, limits["host"])
        out, _ = child.communicate()
        largest = peak.stop()
        errors.seek(0)
        lines = errors.read().strip().splitlines() or [f"exit status {child.returncode}"]
    host = {"host_bytes": largest}  # until the child ended or was ended
    if peak.was_exceeded:
        return host | {"why": f"needs more than {limits['host'] / GIB:.1f} GiB of the host"}
    if child.returncode:
        is_full = any("RESOURCE_EXHAUSTED" in x or "MemoryError" in x for x in lines)
        return host | {"why": "out of memory" if is_full else lines[-1]}
    return host | json.loads(out.splitlines()[-1])


class _Peak:
    """Follows the resident memory of a process, and kills it above a limit."""

    def __init__(self, pid: int, limit: int):
        self.status, self.pid, self.limit = Path(f"/proc/{pid}/status"), pid, limit
        self.largest, self.was_exceeded, self.is_over = 0, False, threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def stop(self) -> int:
        """The largest number of bytes seen."""
        self.is_over.set()
        self.thread.join()
        return max(self.largest, 0)

    def _follow(self) -> None:
        while not self.is_over.wait(0.1):
            try:
                text = self.status.read_text()
            except OSError:  # no such process any more, or no /proc
                return
            match = re.search(r"VmHWM:\s+(\d+) kB", text)
            self.largest = max(self.largest, int(match[1]) * 1024 if match else 0)
            if self.limit and self.largest > self.limit:
                self.was_exceeded = True
                subprocess.run(["kill", "-9", str(self.pid)], check=False)
                return


def measure(cfg: Config, most: int) -> Figures:
    """What `tuned.measure` finds in this process."""
    from dtc.commands import tuned  # it imports JAX, which the tuner itself does not need

    return tuned.measure(cfg, REPEATS, most)


def _line(one: Figures) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in one["settings"].items())
    if "why" in one:
        return f"{sizes}: {one['why']}."
    rates = ", ".join(f"{x:,.0f} {name}" for name, x in one["rates"].items()) or "not timed"
    return f"{sizes}: {one['device_bytes'] / GIB:.2f} GiB a device, {rates}."


def choose(tried: Sequence[Figures], rate: str) -> Figures | None:
    """The fastest of those that fit; where none was timed, the one that fills the memory best."""
    fitting = [one for one in tried if "why" not in one]
    if not fitting:
        return None
    return max(fitting, key=lambda one: (one["rates"].get(rate, 0.0), one["device_bytes"]))


def _finish(tried: Sequence[Figures], cfg: Config, path: Path | None) -> int:
    """Prints the table and the choice, and writes the figures."""
    rate = TURNED[cfg.algorithm.name].rate
    best = choose(tried, rate)
    table = Table("settings", "device GiB", "host GiB (peak)", rate, "", title=cfg.name)
    for one in tried:
        device = one.get("device_bytes")
        speed = one.get("rates", {}).get(rate)
        table.add_row(
            " ".join(f"{name}={value}" for name, value in one["settings"].items()),
            "" if device is None else f"{device / GIB:.2f}",
            f"{one['host_bytes'] / GIB:.2f}",
            "" if speed is None else f"{speed:,.0f}",
            "chosen" if one is best else one.get("why", ""),
        )
    Console().print(table)
    if path:
        path.write_text(json.dumps({"tried": list(tried), "chosen": best}, indent=1) + "\n")
    if best is None:
        print("No size fits. Use a smaller config.", file=sys.stderr)
        return 1
    print(f"Use {' '.join(flags_of(best['settings']))}")
    return 0
