"""The SQL of this store, by name, from the `.sql` files in the folder of this module.

Joins to a table are written `m.id = any(ARRAY[asked.id])`, and conditions beside them `m.topic + 0 = $1`: the planner
can look such a row up by its id and has no other way. Written plainly, it may plan, while the table is small, to read
the whole table for every row asked for; and it keeps its plans.
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_PACKAGE = "dejaq.storage.postgres"


def load_queries() -> dict[str, str]:
    """Each query of every file in `sql/`, by the name in the comment line above it.

    A fragment is a part of the queries below it that include it.
    """
    texts: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    for file in sorted((files(_PACKAGE) / "sql").iterdir(), key=lambda one: one.name):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            if name in texts[kind]:
                raise ValueError(f"two queries are named {name}")
            whole = _INCLUDE.sub(lambda found: texts["fragment"][found[1]], text)
            texts[kind][name] = whole.strip().rstrip(";")
    return texts["name"]


def load_migrations() -> list[str]:
    """The steps of the schema, in order; the schema's version is the number of steps that were applied."""
    folder = files(_PACKAGE) / "migrations"
    steps = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda one: one.name)
    return [step.read_text(encoding="utf-8") for step in steps]


SQL = load_queries()
