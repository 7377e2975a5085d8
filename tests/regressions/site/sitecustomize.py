"""Python imports this module when it starts; the module plants the bug that the environment names."""

import os

_name = os.environ.get("DEJAQ_PLANTED_BUG")
if _name:
    from tests.regressions.bugs import plant

    plant(_name)
