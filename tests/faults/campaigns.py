"""The campaigns of tools/chaos.py: one run killed many times, one checkpoint damaged many ways."""

import collections
import random
import shutil
import time

from dtc.host import proof, verify
from dtc.host.steps import DamagedError, read_meta
from tests.faults.runs import (
    ROOT,
    TINY,
    finish,
    losses,
    start,
    start_group,
    steps,
    trained,
    wait_for,
)

RING = ROOT / "tests" / "faults" / "ring.py"
APART = 25  # updates from one kill to the next, on average
EVERY = 10  # updates between checkpoints


def furthest(found, expected):
    """The largest relative difference of two records' numbers."""
    assert found.keys() == expected.keys()
    pairs = [(x, expected[k]) for k, x in found.items()]
    return max((abs(a - b) / max(abs(b), 1.0) for a, b in pairs if a != b), default=0.0)


def launch(workdir, processes, config, *flags):
    """Starts the processes of a run, or goes on with it; one tells `trained`."""
    is_new = not (workdir / "config.json").exists()
    flags = flags if is_new else (*flags, "--resume")
    config = config if is_new else None
    if processes == 1:
        return [start(workdir, *flags, config=config)]
    return start_group(processes, workdir, flags=flags, config=config)


def kill(group, workdir, at, draws):
    """SIGKILL for one process, at an update or sooner; the others must end by themselves."""
    if draws.random() < 0.2:
        time.sleep(draws.uniform(0, 8))  # also while it starts and compiles
    else:
        wait_for(lambda: trained(workdir, at) or group[0].poll() is not None)
        time.sleep(draws.uniform(0, 0.2))
    victim = draws.choice(group)
    victim.kill()
    for process in group:
        assert process.wait(100) != 0 or process is victim, "a process thinks that all is well"


def kills(folder, num, processes, seed):
    """One run, killed `num` times; what was planted and what was lost."""
    draws, planted, lost = random.Random(seed), collections.Counter(), []
    config = RING if processes == 1 else TINY
    flags = [f"--updates={(num + 2) * APART}", f"--config.run.checkpoint_every={EVERY}"]
    whole, killed = folder / "whole", folder / "killed"
    for process in launch(whole, processes, config, *flags):
        finish(process, whole, seconds=1800)
    for i in range(num):
        group = launch(killed, processes, config, *flags)
        done = max(losses(killed), default=0)
        before = time.monotonic()
        kill(group, killed, max(done, i * APART) + draws.randrange(1, APART), draws)
        kind = f"SIGKILL of one of {processes} processes"
        planted[kind] += 1
        now, seconds = max(losses(killed), default=0), time.monotonic() - before
        print(
            f"kill {i + 1:3d} from update {done:4d} at {now:4d} after {seconds:5.1f} s", flush=True
        )
    for process in launch(killed, processes, config, *flags):
        finish(process, killed, seconds=1800, is_clean=processes == 1)
    expected, found = losses(whole), losses(killed)
    wrong = [u for u in expected if expected[u] != found.get(u)]
    print(f"{len(expected)} records, {len(wrong)} differ")
    if wrong or found.keys() != expected.keys():
        lost.append(f"{len(wrong)} records differ, update {wrong[:1]} first")
    last = [read_meta(x / "checkpoints" / str(steps(x)[0])) for x in (whole, killed)]
    same = [k for k, n in last[0]["fingerprint"].items() if last[1]["fingerprint"].get(k) == n]
    print(f"{len(same)} of {len(last[0]['fingerprint'])} arrays of the last state are equal")
    if len(same) < len(last[0]["fingerprint"]) or last[0]["step"] != last[1]["step"]:
        lost.append("the last state differs")
    return planted, lost


def flip(file, draws):
    """Flips a bit of a file."""
    raw = bytearray(file.read_bytes())
    raw[draws.randrange(len(raw))] ^= 1 << draws.randrange(8)
    file.write_bytes(bytes(raw))


def damage(file, draws):
    """Cuts, removes, empties, lengthens, zeroes or replaces a file; returns how."""
    raw = file.read_bytes()
    ways = {
        "cut": raw[: len(raw) // 2],
        "emptied": b"",
        "lengthened": raw + b"\0",
        "zeroed": bytes(len(raw)),
        "replaced": draws.randbytes(len(raw)),
    }
    way = draws.choice(["removed", *(w for w, content in ways.items() if content != raw)])
    if way == "removed":
        file.unlink()
    else:
        file.write_bytes(ways[way])
    return way


def noticed(step, whole):
    """How damage of a step is noticed: by its seal, by its arrays, or not at all.

    Without the seal a restore has the fingerprints alone: it must refuse, or read what was written.
    """
    try:
        verify.check(step)
        return "silent"
    except DamagedError:
        pass
    (step / verify.SEAL).unlink(missing_ok=True)
    try:
        meta, found = read_meta(step), verify.arrays(step)
    except DamagedError:
        return "seen by seal and by reading"
    names = [n for n, x in found.items() if proof.of_numpy(x) != meta["fingerprint"][n]]
    if names:
        return "seen by seal and by fingerprint"
    equal = found.keys() == whole.keys() and all(
        x.tobytes() == whole[n].tobytes() for n, x in found.items()
    )
    return "seen by seal, arrays are whole" if equal else "silent"


def damages(folder, flips, others, seed):
    """Flips of bits and damages of files of one checkpoint; what was planted and what was lost."""
    draws, planted, lost = random.Random(seed), collections.Counter(), []
    run = folder / "run"
    if not steps(run):
        finish(start(run, "--updates=3", config=TINY), run)
    step = run / "checkpoints" / str(steps(run)[0])
    whole, copy = verify.arrays(step), folder / "copy" / step.name
    assert "run" in verify.check(step)
    for i in range(flips + others):
        if copy.exists():
            shutil.rmtree(copy)
        shutil.copytree(step, copy)
        files = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size)
        # By size, as bad bits are; each file in its turn otherwise, for most of them are small.
        sizes = [p.stat().st_size for p in files] if i % 2 else None
        (file,) = draws.choices(files, sizes)
        name, way = file.relative_to(copy), "bit flipped"
        if i < flips:
            flip(file, draws)
        else:
            way = damage(file, draws)
        how = noticed(copy, whole)
        planted[f"{way}: {how}"] += 1
        if how == "silent":
            lost.append(f"{name} {way} was not seen")
    return planted, lost
