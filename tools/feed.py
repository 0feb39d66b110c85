"""Trains on an environment of Gymnasium, which the host steps.

    python tools/feed.py CartPole-v1 --steps=50000

It is short for `dtc train --config.env.name=gymnasium/CartPole-v1`; all flags are those of train.
"""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    argv = sys.argv[1:]
    if not argv:
        print("Name an environment: python tools/feed.py CartPole-v1", file=sys.stderr)
        sys.exit(2)
    if not argv[0].startswith("-"):
        argv[0] = f"--config.env.name=gymnasium/{argv[0]}"
    sys.exit(script(["train", *argv]))
