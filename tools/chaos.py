"""Plants random faults in runs and prints what was lost: `python tools/chaos.py --minutes=20`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # the faults are among the tests
    os.execv(sys.executable, [sys.executable, "-m", "tests.faults.chaos", *sys.argv[1:]])
