"""Tables and the figure of estimated times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dtc.commands import aot, speed_cycles
from dtc.commands.speed_band import Band, horizons, loops_of
from dtc.commands.speed_links import Chip
from dtc.config.settings import Config
from dtc.host.figures import style

Figures = dict[str, Any]

LEFT_OUT = (
    "An estimate, not a measurement. Left out: the host, evaluation, checkpoints, logs, waiting\n"
    "among hosts, and rounds of resets after the first. Copies that the compiler starts ahead are\n"
    "taken to be hidden. Cycles of element-wise work are about 2.5 times too many."
)

SHARED = "  Compiled for {}, where each device runs the same; messages are priced for this slice."


def table(cfg: Config, found: list[Band], where: str) -> str:
    """The estimate as text: a line for each length of dreams, and the parts of the longest."""
    lines = [f"{cfg.name} on {where}, mesh={cfg.mesh.data},{cfg.mesh.ensemble} (data, ensemble):"]
    line = ("  {:>4}{:>8}{:>14}" + "{:>18}" * len(found[0].counts) + "  {}").format
    lines.append(line("H", "TFLOP", "ms", *found[0].counts, "binds"))
    for band in found:
        rates = [span(rate) for rate in band.rates.values()]
        size, time = f"{band.flops / 1e12:.2f}", span(band.seconds, 1e3)
        lines.append(line(band.horizon or "-", size, time, *rates, band.binds))
    last = found[-1]
    for name, parts in (("at least", last.least), ("at most", last.most)):
        if parts:
            text = ", ".join(f"{key} {1e3 * s:.2f}" for key, s in _longest_first(parts))
            lines.append(f"  {name}, ms: {text}")
    if cfg.reads("replay"):
        lines.append(f"  replay ratio {cfg.replay_ratio:.3g} replayed steps per environment step")
    return "\n".join(lines)


def operations(figures: Figures, cfg: Config, chip: Chip, num: int) -> str:
    """The dearest operations at the longest dreams, with their place in the traced program."""
    loops = loops_of(cfg, horizons(cfg)[-1])
    lines = ["Dearest operations at the longest dreams, in ms of estimated cycles:"]
    for cycles, cost in speed_cycles.dearest(aot.costs(figures), loops, num):
        times, spent = cost.passes.times(loops), 1e3 * cycles / chip.clock
        lines.append(f"  {spent:8.2f}  {cost.kind:12s} {times:6d} x  {cost.name}")
    return "\n".join(lines)


def _longest_first(parts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])


def span(ends: Sequence[float], unit: float = 1.0) -> str:
    """Both ends in three digits, or one where they are equal: 22.8k to 184k."""
    low, high = map(_short, (unit * ends[0], unit * ends[1]))
    return low if low == high else f"{low} to {high}"


def _short(x: float) -> str:
    """Three digits: 4.59, 51.4, 317, 12.3k, 1.59M."""
    if x >= 1e4:
        unit, letter = (1e6, "M") if x >= 1e6 else (1e3, "k")
        return _short(x / unit) + letter
    return f"{x:.{max(3 - len(str(int(x))), 0)}f}"


def longest(figures: Figures) -> Figures:
    """The band of the longest dreams."""
    return figures["bands"][-1]


def best_split(found: list[Figures]) -> str:
    """The meshes of a slice by estimated time, and which is best."""
    times = {tuple(f["mesh"]): longest(f)["milliseconds"][1] for f in found}
    end = "upper end of the estimate" if longest(found[0])["most"] else "lower end alone"
    lines = [f"Meshes by the {end}, at the longest dreams:"]
    ordered = sorted(times, key=lambda shape: times[shape])
    lines += [f"  --mesh={data},{own}  {times[data, own]:.2f} ms" for data, own in ordered]
    data, own = ordered[0]
    return "\n".join([*lines, f"Use --mesh={data},{own}"])


def scaling(found: list[Figures], path: Path, is_strong: bool) -> str:
    """Draws rates over devices and returns the same as text, with the efficiency of scaling."""
    draw(found, path)
    kind = "the same sizes on every slice" if is_strong else "sizes in proportion to the devices"
    lines = [f"Scaling at the longest dreams, {kind}; per device, relative to the first slice:"]
    for one in found:
        shares = [_share(one, found[0], end) for end in (0, 1)]
        rate = span(longest(one)["rates"]["updates/s"])
        is_band = bool(longest(one)["most"])
        lines.append(
            f"  {one['where']:9s} {one['devices']:5d} devices  {rate:>16s} updates/s  "
            f"{shares[0]:.1%} at the lower end" + f", {shares[1]:.1%} at the upper end" * is_band
        )
    return "\n".join([*lines, str(path)])


def _share(one: Figures, first: Figures, end: int) -> float:
    """Steps a device and second relative to the first slice, at one end of the band."""

    def per_device(figures: Figures) -> float:
        rates = longest(figures)["rates"]
        name = "replayed_steps/s" if "replayed_steps/s" in rates else "env_steps/s"
        return rates[name][1 - end] / figures["devices"]

    return per_device(one) / per_device(first)


def draw(found: list[Figures], path: Path) -> None:
    """The band of each rate over the number of devices, both logarithmic."""
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        devices = [one["devices"] for one in found]
        for name in (n for n in longest(found[0])["rates"] if n != "updates/s"):
            low, high = zip(*(longest(one)["rates"][name] for one in found), strict=True)
            (line,) = axes.plot(devices, low, marker="o", markersize=3, label=name)
            axes.fill_between(devices, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda rate, _: _short(rate))
        axes.set_xticks(devices, [one["where"] for one in found], rotation=45)
        axes.set_ylabel("steps a second (estimated)")
        ends = "from cycles (line) to roofline" if longest(found[0])["most"] else "roofline alone"
        axes.set_title(f"{found[0]['config']} at the longest dreams: estimate, {ends}")
        axes.legend()
        style.save(figure, path)
