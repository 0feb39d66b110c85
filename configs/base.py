"""Every setting with its default; the other configs change a few lines of it.

    python launch/main.py --config.SECTION.FIELD=VALUE

Settings are declared in dtc/config/sections.py.
"""

import ml_collections

from dtc.config.sections import Size
from dtc.config.settings import defaults


def get_config() -> ml_collections.ConfigDict:
    """All settings. None in `model` means: from the preset `model.size`."""
    config = ml_collections.ConfigDict(defaults())
    for name in Size._fields:  # one placeholder each: fields with the same one are linked
        config.model[name] = ml_collections.config_dict.placeholder(int)
    return config
