"""What README.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_commands_name_existing_files():
    for name in set(re.findall(r"(?:launch|tools|configs)/\w+\.py", README)):
        assert (ROOT / name).is_file(), name
