"""What the Python code of a job uses: the job file and the project's modules that it imports.

One walk serves all rules about source code (determinism, side effects). Nothing is executed::

    source = parse_job({"jobs/orders/job.py": text, "jobs/orders/rates.py": text}, job)
    for use in source.uses_of(source.reached("orders", "1.2.0")):
        if use.name == "os.environ": ...   # use.file, use.line, use.kind, use.node

Names are resolved through imports, aliases, variables and modules of the project:

- `pyspark.sql.functions.rand`: a member of a module that is not the project's, however it was
  imported (`F.rand`, `from … import rand as r`, `functions = helpers.F`).
- `builtins.open`: a builtin that nothing shadows.
- `jobs/orders/rates:Rates.of`: a definition in a module of the project.
- `.sample`: a member of a value that is not known, such as a parameter.
- `datetime.datetime.now().date`: a member of what a call returns; `[]` stands for an element.

`getattr(x, "name")` and `import_module("name")` with plain texts count as what they name. What is
put together at run time is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from lakehouse_backfill.core.guards.python_scopes import (
    EXECUTORS,
    IMPORTERS,
    UNKNOWN,
    NameResolver,
    NameScope,
    ProjectModules,
    build_scopes,
    text_argument,
)
from lakehouse_backfill.errors import ConfigError, Fault

#: Decorators from these modules do not call the function that they are given on import.
_PASSIVE_DECORATORS = ("pyspark.", "functools.", "builtins.", "lakehouse_backfill.")
_TRANSFORMS = frozenset({"lakehouse_backfill.transforms.transform", "lakehouse_backfill.transform"})


@dataclass(frozen=True)
class Use:
    """One use of a name; a name that may mean several things has one use for each."""

    name: str
    kind: Literal["import", "call", "read"]
    file: str
    line: int
    node: ast.AST
    scope: NameScope


@dataclass(frozen=True)
class Place:
    """A node of the code, with the scope in which it runs."""

    node: ast.AST
    scope: NameScope

    @property
    def file(self) -> str:
        """The path of the file, inside the project."""
        return self.scope.file

    @property
    def line(self) -> int:
        """The line of the node."""
        return getattr(self.node, "lineno", 1)


def parse_job(files: Mapping[str, str], job: str) -> PythonSource:
    """Parse the files of a job; the same texts again are the same parsed files.

    Raises ConfigError, which names each file that is not Python.
    """
    return _parse_job(tuple(sorted(files.items())), job)


@lru_cache(maxsize=4)
def _parse_job(files: tuple[tuple[str, str], ...], job: str) -> PythonSource:
    return PythonSource(dict(files), job)


class PythonSource:
    """The parsed files of one job, and what their names mean."""

    def __init__(self, files: Mapping[str, str], job: str) -> None:
        """Parse the texts of the files, by path inside the project; `job` is the one that is run.

        Raises ConfigError, which names each file that is not Python.
        """
        trees = _parse(files)
        modules = ProjectModules(trees, job)
        self.job = job
        self._modules = modules
        self._built = build_scopes(trees, modules)
        self._names = NameResolver(self._built, modules)
        self._scope_of = self._names.scope_of

    def places(self) -> Iterator[Place]:
        """Yield each node that may run; annotations and typing imports are left out."""
        for built in self._built.values():
            for node, scope in built.nodes:
                yield Place(node, scope)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """All uses, by file and line."""
        found = [use for place in self.places() for use in self._uses_at(place)]
        return tuple(sorted(found, key=lambda use: (use.file, use.line)))

    def uses_of(self, definitions: Iterable[str]) -> tuple[Use, ...]:
        """Return the uses in the code of the given definitions (see `reached`)."""
        wanted = frozenset(definitions)
        return tuple(use for use in self.uses if use.scope.definition in wanted)

    def names(self, node: ast.AST) -> frozenset[str]:
        """Return what an expression of the code may mean; `UNKNOWN` is one of the answers."""
        return self._names.names(node)

    def names_inside(self, node: ast.AST) -> frozenset[str]:
        """Return all names that an expression uses, through variables and the project's functions.

        Comparing them says what a value is made of, e.g. whether `salt()` calls `rand`.
        """
        return self._inside(node, set())

    def values(self, node: ast.expr) -> list[ast.expr]:
        """Return the expressions that a variable is bound to; any other expression as it is."""
        found, todo, seen = [], [node], set[int]()
        while todo:
            value = todo.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            bound = isinstance(value, ast.Name) and _expressions_of(
                value.id, self._scope_of.get(id(value))
            )
            if bound:
                todo += bound
            else:
                found.append(value)
        return found

    def module_variable(self, node: ast.expr) -> str | None:
        """Return the name when an expression in a function is a variable of its own module."""
        scope = self._scope_of.get(id(node))
        if not isinstance(node, ast.Name) or scope is None:
            return None
        while scope.parent is not None and node.id not in scope.global_names:
            if node.id in scope.bindings:
                return None
            scope = scope.parent
        bindings = scope.module.bindings.get(node.id, ())
        is_variable = any(isinstance(one, ast.expr) or one is None for one in bindings)
        return node.id if is_variable else None

    def transforms(self, name: str, version: str) -> frozenset[str]:
        """Return the definitions in the job file that declare this transform, if it can be read."""
        found = set()
        for place in self.places():
            if isinstance(place.node, ast.FunctionDef) and place.file == self.job:
                for decorator in place.node.decorator_list:
                    if self._declared(decorator) == (name, version):
                        found.add(_qualified(place))
        return frozenset(found)

    def reached(self, name: str, version: str) -> frozenset[str]:
        """Return the definitions that running a transform may execute, with code on import.

        Whatever reached code names is reached. Everything is reached when the transform cannot be
        found by reading.
        """
        roots = self.transforms(name, version)
        definitions = {place.scope.definition for place in self.places()}
        if not roots:
            return frozenset(definitions)
        todo = [*roots, *self._registered(), *(each for each in definitions if each.endswith(":"))]
        seen: set[str] = set()
        while todo:
            definition = todo.pop()
            if definition not in seen:
                seen.add(definition)
                todo += self._references.get(definition, ())
        return frozenset(seen)

    @cached_property
    def _references(self) -> dict[str, set[str]]:
        """The definitions that the code of each definition names; classes name their members."""
        found: dict[str, set[str]] = {}
        known = {_qualified(place) for place in self.places() if _is_definition(place.node)}
        for use in self.uses:
            name = _definition_in(use.name, known)
            if name:
                found.setdefault(use.scope.definition, set()).add(name)
        for place in self.places():
            if _is_definition(place.node) and isinstance(place.scope.node, ast.ClassDef):
                found.setdefault(place.scope.definition, set()).add(_qualified(place))
        return found

    def _registered(self) -> Iterator[str]:
        """Yield functions that a decorator of unknown effect gets on import."""
        for place in self.places():
            if not _is_definition(place.node):
                continue
            for decorator in place.node.decorator_list:  # type: ignore[attr-defined]
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                if not all(name.startswith(_PASSIVE_DECORATORS) for name in self.names(target)):
                    yield _qualified(place)

    def _declared(self, decorator: ast.expr) -> tuple[object, object] | None:
        if not isinstance(decorator, ast.Call) or not _TRANSFORMS & self.names(decorator.func):
            return None
        given = {
            item.arg: item.value.value
            for item in decorator.keywords
            if isinstance(item.value, ast.Constant)
        }
        return given.get("name"), given.get("version")

    def _uses_at(self, place: Place) -> Iterator[Use]:
        node = place.node
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _named(self._imported(node, place.scope), "import", place)
        elif isinstance(node, ast.Call):
            yield from _named(self.names(node.func), "call", place)
            yield from _named(self._named_by_text(node), "import", place)
        elif _is_whole_chain(node, self._inner):
            yield from _named(self.names(node), "read", place)

    @cached_property
    def _inner(self) -> frozenset[int]:
        """Nodes that are the beginning of a longer chain, or what a call calls."""
        inner = set()
        for place in self.places():
            node = place.node
            if isinstance(node, ast.Attribute):
                inner.add(id(node.value))
            elif isinstance(node, ast.Call):
                inner.add(id(node.func))
        return frozenset(inner)

    def _imported(self, node: ast.Import | ast.ImportFrom, scope: NameScope) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield self._modules.find(alias.name, scope.file)
            return
        module = self._modules.find(node.module or "", scope.file, node.level)
        for alias in node.names:
            yield from ([module] if alias.name == "*" else self._names.member(module, alias.name))

    def _named_by_text(self, node: ast.Call) -> Iterator[str]:
        functions, text = self.names(node.func), text_argument(node, 0)
        if text and functions.intersection(IMPORTERS):
            yield text.replace(":", ".")
        if text and functions.intersection(EXECUTORS):
            yield from _imports_in(text)

    def _inside(self, node: ast.AST, seen: set[int]) -> frozenset[str]:
        found: set[str] = set()
        for inner in ast.walk(node):
            if id(inner) in seen or id(inner) not in self._scope_of:
                continue
            seen.add(id(inner))
            scope = self._scope_of[id(inner)]
            if isinstance(inner, (ast.Name, ast.Attribute, ast.Call)):
                names = self.names(inner) - {UNKNOWN}
                found |= names
                for name in names:
                    for body in self._bodies.get(name, ()):
                        found |= self._inside(body, seen)
            if isinstance(inner, ast.Name):
                for value in _expressions_of(inner.id, scope):
                    found |= self._inside(value, seen)
        return frozenset(found)

    @cached_property
    def _bodies(self) -> dict[str, list[ast.stmt]]:
        """The body of each function of the project, by name."""
        return {
            _qualified(place): place.node.body
            for place in self.places()
            if isinstance(place.node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }


def _parse(files: Mapping[str, str]) -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    faults: list[Fault] = []
    for file, text in sorted(files.items()):
        try:
            trees[file] = ast.parse(text, filename=file)
        except (SyntaxError, ValueError) as error:
            line, message = getattr(error, "lineno", None) or 1, getattr(error, "msg", str(error))
            faults.append(Fault(file, line, "transform", message, "correct the Python code"))
    if faults:
        raise ConfigError("the code of the job is not Python", faults=tuple(faults))
    return trees


def _imports_in(text: str) -> Iterator[str]:
    """Yield the modules that an executed text imports; nothing for a text that is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (name := text_argument(node, 0)):
            is_import = ast.unparse(node.func).rpartition(".")[2] in ("__import__", "import_module")
            yield from [name] if is_import else []


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _qualified(place: Place) -> str:
    outer, name = place.scope.definition, getattr(place.node, "name", "")
    return f"{outer}{name}" if outer.endswith(":") else f"{outer}.{name}"


def _definition_in(name: str, known: set[str]) -> str | None:
    """Return the definition that a name begins with: `rates:Rates().of` begins with Rates."""
    if ":" not in name:
        return None
    while name not in known and not name.endswith(":"):
        shorter = name.rstrip("[]()")
        name = shorter if shorter != name else name.rpartition(".")[0]
        if not name:
            return None
    return name if name in known else None


def _named(
    names: Iterable[str], kind: Literal["import", "call", "read"], place: Place
) -> Iterator[Use]:
    for name in names:
        if name != UNKNOWN:
            yield Use(name, kind, place.file, place.line, place.node, place.scope)


def _is_whole_chain(node: ast.AST, inner: frozenset[int]) -> bool:
    if id(node) in inner or not isinstance(node, (ast.Attribute, ast.Name)):
        return False
    return isinstance(node.ctx, ast.Load)


def _expressions_of(name: str, scope: NameScope | None) -> list[ast.expr]:
    while scope is not None:
        if name in scope.bindings:
            return [one for one in scope.bindings[name] if isinstance(one, ast.expr)]
        scope = scope.parent
    return []
