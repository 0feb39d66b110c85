"""Writes MP4 files with an FFmpeg program, if this machine has one."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image

PATIENCE = 120  # seconds for a film


@cache
def program() -> str:
    """FFmpeg's path: that of the package imageio-ffmpeg, or one on the search path; '' if none."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg") or ""


def mp4(path: Path, images: Sequence[Image.Image], delay: int, hold: int) -> bool:
    """Writes a film with `delay` ms a frame, the last one for `hold`; False if that cannot be done.

    All images have the same, even size.
    """
    if not program() or not images:
        return False
    width, height = images[0].size
    draft = path.with_name(f".{path.name}")
    typed = [program(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    typed += ["-s", f"{width}x{height}", "-r", f"{1000 / delay:g}", "-i", "-"]
    typed += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-f", "mp4", str(draft)]
    shown = [*images, *[images[-1]] * (hold // delay)]
    try:
        data = b"".join(x.tobytes() for x in shown)
        quiet = subprocess.DEVNULL
        subprocess.run(typed, input=data, check=True, stdout=quiet, stderr=quiet, timeout=PATIENCE)
        os.replace(draft, path)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return True
