"""Films of episodes: what was seen, beside what the model imagined, with score and novelty."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dtc.host.figures import codec, look
from dtc.host.figures.clip import Clip
from dtc.host.figures.look import AGENT, Look
from dtc.host.figures.style import FAINT, INK

PANEL, GAP = 480, 16  # pixels: side of a panel, space around it
HEAD, LINE = 34, 28  # heights of the line above panels and of those below
STRIP = 46  # height of a vector below a grid
MOST = 258  # frames of an MP4
MOST_GIF = (120, 80, 50, 30)  # frames of a GIF: fewer where it would be larger than LARGEST
LARGEST = 2 * 2**20  # bytes of a GIF
COLORS = 127  # of a GIF, and one that is clear
NEARLY = 247  # of 255; what is whiter is white, as the page around the film
SECONDS, HOLD = 13.0, 1500  # length without the last frame's hold, which is in ms


def frames(clip: Clip, shown: Look, caption: str) -> list[Image.Image]:
    """One image per step."""
    clip = Clip(*[_host(x) for x in clip])
    ranges = {
        k: (float(x.min(initial=0)), float(x.max(initial=0)))
        for k, x in clip.seen.items()
        if x.ndim == 2
    }
    num = int(clip.alive.sum())
    score = np.concatenate([[0.0], np.cumsum(clip.reward)])
    return [_frame(clip, t, num, float(score[t]), ranges, shown, caption) for t in range(num)]


def save(path: Path, clips: Sequence[Clip], shown: Look, captions: Sequence[str]) -> Path:
    """Writes the clips as one film of less than 15 s; returns its path.

    Without a suffix the film is an MP4 where a codec is installed, otherwise a GIF.
    """
    images = [
        x for clip, text in zip(clips, captions, strict=True) for x in frames(clip, shown, text)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.with_suffix(".mp4")
    if path.suffix != ".gif" and codec.mp4(target, *paced(images, MOST), HOLD):
        return target
    target = path.with_suffix(".gif")
    for most in MOST_GIF:
        gif(target, *paced(images, most))
        if target.stat().st_size <= LARGEST:
            break
    return target


def paced(images: Sequence[Image.Image], most: int) -> tuple[list[Image.Image], int]:
    """At most `most` + 1 of the images, the last among them, and the ms that each is shown."""
    stride = -(-len(images) // most)
    kept = [*images[:-1:stride], *images[-1:]]
    return kept, int(np.clip(10 * (100 * SECONDS // max(len(kept), 1)), 50, 160))


def gif(path: Path, images: Sequence[Image.Image], delay: int) -> None:
    """Writes a GIF; a reader finds the old one or the new one.

    Where a pixel is as before it is clear, which halves the file.
    """
    some = [np.asarray(x) for x in images[:: -(-len(images) // 4)]]
    colors = Image.fromarray(np.concatenate(some)).quantize(COLORS, dither=Image.Dither.NONE)
    chosen = np.full((COLORS + 1, 3), 255)
    found = np.array(colors.getpalette() or []).reshape(-1, 3)[:COLORS]
    chosen[: len(found)] = np.where((found > NEARLY).all(1, keepdims=True), 255, found)
    before: Any = -1
    small = []
    for image in images:
        now = np.asarray(image.quantize(palette=colors, dither=Image.Dither.NONE))
        small.append(Image.fromarray(np.where(now == before, np.uint8(COLORS), now)))
        small[-1].putpalette(chosen.ravel().tolist())
        before = now
    times, draft = [delay] * (len(small) - 1) + [HOLD], path.with_suffix(".tmp")
    more: Any = {"append_images": small[1:], "duration": times, "loop": 0, "optimize": False}
    more |= {"transparency": COLORS, "disposal": 1}
    small[0].save(draft, format="GIF", save_all=True, **more)
    os.replace(draft, path)


def _host(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {k: np.asarray(v, np.float32) for k, v in x.items()}
    return np.asarray(x) if hasattr(x, "shape") else x


def _frame(
    clip: Clip,
    t: int,
    num: int,
    score: float,
    ranges: Mapping[str, tuple[float, float]],
    shown: Look,
    caption: str,
) -> Image.Image:
    sides = [("real", clip.seen)]
    if clip.predicted is not None:
        ahead = t - clip.context + 1
        title = (
            f"imagined, {ahead} steps ahead" if ahead > 0 else "imagined: the model still observes"
        )
        sides.append((title, clip.predicted))
    panels = [_panel({k: x[t] for k, x in obs.items()}, ranges, shown) for _, obs in sides]
    below = _below(clip, t, num, score, shown, caption, len(panels))
    width = len(panels) * (PANEL + GAP) + GAP
    height = HEAD + panels[0].height + GAP // 2 + below.height
    image = Image.new("RGB", (width, height + height % 2), "white")
    pen = ImageDraw.Draw(image)
    for i, ((title, _), panel) in enumerate(zip(sides, panels, strict=True)):
        left = GAP + i * (PANEL + GAP)
        pen.text((left, 7), title, fill=INK, font=_font(20))
        image.paste(panel, (left, HEAD))
    image.paste(below, (GAP, HEAD + panels[0].height + GAP // 2))
    return image


def _below(
    clip: Clip, t: int, num: int, score: float, shown: Look, caption: str, num_panels: int
) -> Image.Image:
    """The lines under the panels: step, score and novelty; the legend; the caption."""
    width = num_panels * (PANEL + GAP) - GAP
    grids = {k: x.shape[-1] for k, x in clip.seen.items() if x.ndim == 4}
    entries = look.legend(shown, grids)
    marked = bool(shown.agent) and not shown.picture
    rows = _rows(entries + [("agent", "")] * marked, width)
    image = Image.new("RGB", (width, LINE * (2 + len(rows)) + 6), "white")
    pen = ImageDraw.Draw(image)
    text = f"step {t} of {num - 1}     score {score:.2f}"
    if clip.novelty is not None:
        text += f"     novelty {float(clip.novelty[t]):.3f}"
    pen.text((0, 2), text, fill=INK, font=_font(20))
    for i, row in enumerate(rows):
        left = 0
        for name, color in row:
            top = LINE * (i + 1) + 4
            if color:
                pen.rectangle((left, top, left + 15, top + 15), fill=color, outline=FAINT)
            else:
                _mark(pen, left + 8, top + 8, 7)
            pen.text((left + 21, top - 1), name, fill=INK, font=_font(15))
            left += _width(name)
    size = next((s for s in range(16, 9, -1) if _font(s).getlength(caption) <= width), 9)
    pen.text((0, LINE * (1 + len(rows)) + 4), caption, fill=FAINT, font=_font(size))
    return image


def _rows(entries: Sequence[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """The entries of a legend, broken into lines."""
    rows: list[list[tuple[str, str]]] = []
    left = width + 1
    for entry in entries:
        if left + _width(entry[0]) > width:
            rows.append([])
            left = 0
        rows[-1].append(entry)
        left += _width(entry[0])
    return rows


def _width(name: str) -> int:
    return 36 + int(_font(15).getlength(name))


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _mark(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    """The mark of the agent: a dark disc with a white rim."""
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), "white")
    inner = 0.75 * radius
    pen.ellipse((x - inner, y - inner, x + inner, y + inner), AGENT)


def _panel(
    obs: Mapping[str, np.ndarray], ranges: Mapping[str, tuple[float, float]], shown: Look
) -> Image.Image:
    """One observation, PANEL pixels wide: grids, then a strip for each vector or category."""
    if shown.picture is not None:
        return _fitted(shown.picture(obs))
    grids = [name for name in sorted(obs) if obs[name].ndim == 3]
    others = [name for name in sorted(obs) if obs[name].ndim < 3]
    parts = [_grid(obs[name], name, shown) for name in grids]
    strip = STRIP if grids else max(STRIP, (PANEL - 20 * len(others)) // max(len(others), 1))
    parts += [_strip(obs[name], name, strip, ranges.get(name)) for name in others]
    image = Image.new("RGB", (PANEL, sum(p.height for p in parts)), "white")
    top = 0
    for part in parts:
        image.paste(part, (0, top))
        top += part.height
    return image


def _fitted(pixels: np.ndarray) -> Image.Image:
    """A picture enlarged by a whole number, in the middle of a panel at least PANEL wide."""
    scale = max(1, PANEL // max(pixels.shape[1], 1))
    large = Image.fromarray(pixels).resize(
        (pixels.shape[1] * scale, pixels.shape[0] * scale), Image.Resampling.NEAREST
    )
    image = Image.new("RGB", (PANEL, max(large.height, PANEL)), "white")
    image.paste(large, ((PANEL - large.width) // 2, 0))
    return image


def _grid(cells: np.ndarray, name: str, shown: Look) -> Image.Image:
    """A grid of classes in colours, with the agent marked."""
    height, width, num = cells.shape
    colors = look.to_rgb(cells, look.palette(shown.names(name, num)))
    side = max(1, PANEL // max(height, width))
    pixels = np.uint8(np.round(colors * 255)).repeat(side, 0).repeat(side, 1)
    pixels[side - 1 :: side], pixels[:, side - 1 :: side] = 255, 255
    image = Image.new("RGB", (PANEL, height * side + 4), "white")
    image.paste(Image.fromarray(pixels), ((PANEL - width * side) // 2, 0))
    if name in shown.agent:
        row, column = shown.agent[name]
        left = (PANEL - width * side) // 2
        center = left + (column + 0.5) * side - 1, (row + 0.5) * side - 1
        _mark(ImageDraw.Draw(image), *center, 0.28 * side)
    return image


def _strip(x: np.ndarray, name: str, height: int, scale: tuple[float, float] | None) -> Image.Image:
    """Categories as shades, one row each; a vector as bars, from its least to its largest value."""
    image = Image.new("RGB", (PANEL, height + 20), "white")
    pen = ImageDraw.Draw(image)
    if x.ndim == 2:
        shades = np.uint8(255 * mpl.colormaps["GnBu"](np.clip(x, 0, 1))[..., :3])
        area = Image.fromarray(shades).resize((PANEL, height - 2), Image.Resampling.NEAREST)
        image.paste(area, (0, 18))
        pen.text(
            (0, 0), f"{name}: {x.shape[0]} x {x.shape[1]} classes, dark: likely", FAINT, _font(13)
        )
        return image
    low, high = scale or (0.0, 1.0)
    share = np.clip((x - low) / max(high - low, 1e-9), 0, 1)
    step = PANEL / max(len(x), 1)
    for i, part in enumerate(share):
        left, right = i * step, (i + 1) * step - 2
        pen.rectangle((left, 18, right, 16 + height), "#eef1f5")
        pen.rectangle((left, 16 + height - part * (height - 3), right, 16 + height), "#5d6b7d")
    pen.text((0, 0), f"{name}: {low:.3g} to {high:.3g}", FAINT, _font(13))
    return image
