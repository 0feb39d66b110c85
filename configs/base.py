"""Every setting with its default; the other configs change a few of them.

    python launch/main.py --config.SECTION.FIELD=VALUE

Settings are declared in dtc/config/sections.py.
"""

import ml_collections

from dtc.config.sections import Size
from dtc.config.settings import defaults


def get_config() -> ml_collections.ConfigDict:
    """All settings. The preset `model.size` fills values of None in `model`."""
    config = ml_collections.ConfigDict(defaults())
    for name in Size._fields:  # a new placeholder for each, since fields that share one are linked
        config.model[name] = ml_collections.config_dict.placeholder(int)
    return config
