"""Generate the blocking client from the async one; with --check, fail when a module is stale.

For every class of `SOURCES` the script writes a class of the same name. Its methods have the signatures and docstrings
of the async class, and run the async method on the client's event loop. Code that cannot be generated is in
`dejaq.sdk.blocking.opening`, whose classes are the bases of the generated ones.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
TARGET = SOURCE / "dejaq/sdk/blocking"
NOTICE = "Generated from `{module}` by `scripts/generate_sync.py`; edit that module, not this one."
SOURCES = {
    "lease": ("Lease", "Batch"),
    "producer": ("Producer",),
    "consumer": ("Consumer", "Batches"),
    "transaction": ("Transaction",),
    "cron": ("Cron",),
    "rights": ("Rights",),
    "dead_letters": ("DeadLetters",),
    "worker": ("Worker",),
    "log": ("Log",),
    "reader": ("LogReader",),
    "group": ("LogGroup", "LogWorker"),
    "topic_calls": ("TopicCalls",),
    "message_calls": ("MessageCalls",),
    "client": ("Client",),
}
# The package of `dejaq.sdk` that each of these modules is in.
PACKAGES = {
    "lease": "consuming",
    "producer": "producing",
    "consumer": "consuming",
    "transaction": "changing",
    "cron": "admin",
    "rights": "admin",
    "dead_letters": "admin",
    "topic_calls": "admin",
    "message_calls": "admin",
    "worker": "working",
    "log": "log",
    "reader": "log",
    "group": "log",
}
FUNCTIONS = {"client": ("connect",)}
# Calls that may take any time: they wait for messages, for user code, or move any amount of data.
LONG = frozenset(
    {
        *("Batches.__next__", "Consumer.__next__", "Consumer.close", "Consumer.__exit__", "Consumer.take"),
        *(
            "Client.fan_out",
            "MessageCalls.fetched",
            "MessageCalls.get",
            "MessageCalls.history",
            "Cron.add_many",
            "DeadLetters.purge",
            "DeadLetters.redrive",
        ),
        *("Log.append", "Log.append_batch", "Log.close", "Log.__exit__", "Log.tail"),
        *("LogReader.__next__", "LogReader.seek", "LogGroup.__next__", "LogGroup.seek", "LogGroup.commit"),
        *("LogReader.close", "LogReader.__exit__", "LogGroup.close", "LogGroup.__exit__"),
        *("LogReader.getone", "LogReader.getmany", "LogGroup.getone", "LogGroup.getmany", "LogWorker.run"),
        *("Lease.delete", "Lease.read", "Transaction.__exit__", "Transaction.commit", "Worker.run"),
        *("Producer.cancel", "Producer.cancel_where", "Producer.close", "Producer.__exit__", "Producer.edit"),
        *("Producer.edit_batch", "Producer.edit_where", "Producer.move", "Producer.move_where", "Producer.reply_to"),
        *("Producer.request", "Producer.send", "Producer.send_batch"),
    }
)
# Classes with another base class than `Blocking`. Their opening and closing is written by hand.
BASES = {
    "TopicCalls": "OpenedClient",
    "MessageCalls": "TopicCalls",
    "Client": "MessageCalls",
    "Worker": "RunningWorker",
}
HOME_OF = {name: module for module, names in SOURCES.items() for name in names}
SPECIAL = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
DUNDERS = frozenset({"__len__", "__iter__", "__getitem__", "__call__"})
WORDS = (
    (r"`async (with|for)`", r"`\1`"),
    (r"\ban async (iterator)", r"an \1"),
    (r"\bAn async (iterator)", r"An \1"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bawait (?=\w+[.(])", ""),
    (r"\bSeveral tasks\b", "Several threads"),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Unsupported(Exception):
    """The async class has something that this script cannot translate."""


def main() -> None:
    """Write the modules, or check them."""
    stale = []
    for name in SOURCES:
        path = TARGET / f"{name}.py"
        text = formatted(Module(name).text(), path)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run `make sync`")


def formatted(text: str, path: Path) -> str:
    """A module in the format of the project."""
    for command in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def tree_of(path: str) -> ast.Module:
    """The source of a module."""
    return ast.parse((SOURCE / f"{path.replace('.', '/')}.py").read_text(encoding="utf-8"))


class Module:
    """One module of the async client, and the blocking module that is written from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = ".".join(filter(None, ("dejaq.sdk", PACKAGES.get(name), name)))
        self.tree = tree_of(self.path)
        # The modules of the base classes, by their paths: what they define belongs to the class.
        self.parts = {self.path: self.tree}
        self.written_by_hand = methods_by_class(TARGET / "opening.py")

    def text(self) -> str:
        """The blocking module."""
        classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        parts = [self.class_text(self.with_bases(classes[name])) for name in SOURCES[self.name]]
        functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        parts += [function_text(functions[name]) for name in FUNCTIONS.get(self.name, ())]
        body = "\n\n\n".join(parts)
        return "\n".join(
            [
                f'"""{NOTICE.format(module=self.path)}"""',
                "",
                "from __future__ import annotations",
                "",
                *self.imports(body),
                "",
                "",
                body,
                "",
            ]
        )

    def with_bases(self, node: ast.ClassDef) -> ast.ClassDef:
        """The class with the members of those base classes that are in other modules of the SDK and not generated."""
        names = {ast.unparse(base) for base in node.bases} - HOME_OF.keys()
        body = list(node.body)
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("dejaq.sdk."):
                for alias in statement.names:
                    if alias.name in names:
                        path = str(statement.module)
                        self.parts[path] = tree = tree_of(path)
                        bases = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == alias.name]
                        body += [member for base in bases for member in base.body]
        return ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)

    def imports(self, body: str) -> Iterator[str]:
        """The imports of the names that the new module uses."""
        used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
        yield "from collections.abc import Iterator"
        yield "from dejaq.sdk.blocking.portal import DEADLINES, Blocking, Portal, each, then"
        for name in sorted(used & self.written_by_hand.keys()):
            yield f"from dejaq.sdk.blocking.opening import {name}"
        for name in sorted(used & HOME_OF.keys()):
            if HOME_OF[name] != self.name:
                yield f"from dejaq.sdk.blocking.{HOME_OF[name]} import {name}"
        for name in SOURCES[self.name]:
            yield f"from {self.path} import {name} as Async{name}"
        for name in FUNCTIONS.get(self.name, ()):
            yield f"from {self.path} import {name} as {name}_async"
        known = used - HOME_OF.keys()
        for path, tree in self.parts.items():
            for node in tree.body:
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        if (alias.asname or alias.name) in known:
                            yield f"from {node.module} import {ast.unparse(alias)}"
                elif isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef):
                    for name in sorted(known & set(defined(node))):
                        yield f"from {path} import {name}"

    def class_text(self, node: ast.ClassDef) -> str:
        """A class that wraps an async one."""
        base = BASES.get(node.name, f"Blocking[Async{node.name}]")
        by_hand = self.written_by_hand.get(root_of(node.name), set())
        parts = [f'class {node.name}({base}):\n    """{plain(ast.get_docstring(node), 4)}"""\n\n    __slots__ = ()']
        for name, annotation in attributes(node):
            parts.append(property_text(name, annotation, f"The {name} of this {node.name.lower()}."))
        for member in node.body:
            if isinstance(member, Function):
                new = SPECIAL.get(member.name, member.name)
                if new in by_hand or (new.startswith("_") and new not in {*SPECIAL.values(), *DUNDERS}):
                    continue
                parts.append(Method(member, new, node).text())
            elif isinstance(member, ast.Assign) and isinstance(member.value, ast.Name):
                parts += [f"    {name} = {member.value.id}" for name in defined(member) if not name.startswith("_")]
        return "\n\n".join(parts)


def root_of(name: str) -> str:
    """The last base class of a generated class."""
    while name in BASES:
        name = BASES[name]
    return name


class Method:
    """One method or property of an async class."""

    def __init__(self, node: Function, name: str, owner: ast.ClassDef) -> None:
        self.node = node
        self.name = name
        self.runs = "follow" if f"{owner.name}.{name}" in LONG else "run"
        # A client that closes also closes the objects that it created, so the blocking method has nothing to do.
        self.closes = name in {"close", "__exit__"} and "close" in {part for m in owner.body for part in defined(m)}
        self.doc = plain(ast.get_docstring(node), 8)
        if node.returns is None:
            raise Unsupported(f"{node.name} has no return type")
        self.returns = ast.unparse(node.returns).replace("AsyncIterator[", "Iterator[")
        self.decorators = [ast.unparse(decorator) for decorator in node.decorator_list]

    def text(self) -> str:
        """The blocking method."""
        if self.decorators == ["property"]:
            return property_text(self.name, self.returns, self.doc)
        if self.decorators == ["overload"]:
            return f"    @overload\n    def {self.name}({ast.unparse(self.node.args)}) -> {self.returns}: ..."
        if self.decorators:
            raise Unsupported(f"{self.name} is decorated with {self.decorators}")
        head = f"    def {self.name}({ast.unparse(self.node.args)}) -> {self.returns}:"
        lines = [f'        """{self.doc}"""'] if self.doc else []
        return "\n".join([head, *lines, *(f"        {line}" for line in self.body())])

    def body(self) -> Iterator[str]:
        call = f"self._inner.{self.node.name}({self.arguments()})"
        if self.name == "__len__":
            call = "len(self._inner)"
        asynchronous = isinstance(self.node, ast.AsyncFunctionDef)
        is_iterator = ast.unparse(self.node.returns or ast.Constant(None)).startswith("AsyncIterator[")
        value = f"self._portal.{self.runs}({call})" if asynchronous and not is_iterator else call
        if self.returns == "None":
            if self.closes:
                yield "if self._portal.is_open:"
            yield "    " * self.closes + value
        elif self.returns == "Self":
            if self.name != "__iter__":
                yield value
            yield "return self"
        elif is_iterator:
            yield f"return {self.wrapped(f'each({call}, self._portal)')}"
        else:
            yield f"return {self.wrapped(value)}"

    def wrapped(self, value: str) -> str:
        """The value as a blocking object, when it is an async object."""
        made = set(re.findall(r"\w+", self.returns)) & HOME_OF.keys()
        if not made:
            return value
        (kind,) = made
        if self.returns == kind:
            return f"{kind}({value}, self._portal)"
        if self.returns.startswith("Callable[[") and self.returns.endswith(f"], {kind}]"):
            return f"then({value}, lambda made: {kind}(made, self._portal))"
        if self.returns == f"Iterator[{kind}]":
            return f"({kind}(item, self._portal) for item in {value})"
        raise Unsupported(f"{self.name} returns {self.returns}")

    def arguments(self) -> str:
        return passed_on(self.node.args).removeprefix("self").removeprefix(", ")


def passed_on(given: ast.arguments) -> str:
    """The arguments of a function, as a call to another function with the same signature passes them."""
    parts = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    parts += [f"*{given.vararg.arg}"] if given.vararg else []
    parts += [f"{arg.arg}={arg.arg}" for arg in given.kwonlyargs]
    parts += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ", ".join(parts)


def function_text(node: ast.FunctionDef) -> str:
    """A function that creates an object with its own portal."""
    returns = ast.unparse(node.returns or ast.Constant(None))
    doc = plain(ast.get_docstring(node), 4)
    made = f'{returns}({node.name}_async({passed_on(node.args)}), Portal("client", seconds=DEADLINES * deadline))'
    return f'def {node.name}({ast.unparse(node.args)}) -> {returns}:\n    """{doc}"""\n    return {made}'


def property_text(name: str, returns: str, doc: str) -> str:
    """A property that reads the property of the async object."""
    if set(re.findall(r"\w+", returns)) & HOME_OF.keys():
        raise Unsupported(f"the property {name} is a {returns}")
    return f'    @property\n    def {name}(self) -> {returns}:\n        """{doc}"""\n        return self._inner.{name}'


def attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The public attributes that the class sets when it is created, with their types."""
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or member.name != "__init__":
            continue
        types = {arg.arg: arg.annotation for arg in (*member.args.args, *member.args.kwonlyargs)}
        for statement in ast.walk(member):
            target: ast.expr | None = statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(statement, ast.Assign):
                (target,) = statement.targets
            if not isinstance(target, ast.Attribute) or target.attr.startswith("_"):
                continue
            annotation = statement.annotation if isinstance(statement, ast.AnnAssign) else types.get(target.attr)
            if annotation is None:
                raise Unsupported(f"{node.name}.{target.attr} needs an annotation where it is set")
            yield target.attr, ast.unparse(annotation)


def methods_by_class(path: Path) -> dict[str, set[str]]:
    """The names that each class of a module defines."""
    return {
        node.name: {name for member in node.body for name in defined(member)}
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return [node.name] if isinstance(node, Function | ast.ClassDef) else []


def plain(doc: str | None, indent: int) -> str:
    """A docstring without the words of async code, ready to be put between quotes."""
    text = doc or ""
    for pattern, new in WORDS:
        text = re.sub(pattern, new, text)
    lines = text.splitlines()
    if len(lines) > 1:
        text = ("\n" + " " * indent).join(lines) + "\n" + " " * indent
    return re.sub(r"[ ]+\n", "\n", text) if len(lines) > 1 else text


if __name__ == "__main__":
    main()
