"""What the names of Python files mean: through imports, variables and modules of the project."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping

from lakehouse_backfill.core.guards.python_scopes import (
    ImportedName,
    NameScope,
    ProjectModules,
    ScopeBuilder,
)

#: A name that is not known.
UNKNOWN = ""
#: An expression that may mean more names than this has no known meaning.
_MOST_NAMES = 256
#: What `import *` of Spark's functions puts in place of a builtin.
_SPARK_FUNCTIONS = frozenset({"pyspark.sql.functions", "pyspark.sql.connect.functions"})
_SPARK_SHADOWS = frozenset(
    {"abs", "ascii", "bin", "filter", "hash", "hex", "max", "min", "pow", "round", "slice", "sum"}
)
#: Functions that import the module that their text names, or find it for a loader.
IMPORTERS = (
    "importlib.import_module", "importlib.__import__", "importlib.util.find_spec",
    "importlib.util.spec_from_file_location", "builtins.__import__", "pkgutil.resolve_name",
    "pkgutil.get_loader", "pkgutil.find_loader", "runpy.run_module",
)  # fmt: skip
#: Functions that run the text that they are given.
EXECUTORS = ("builtins.exec", "builtins.eval", "builtins.compile")


class NameResolver:
    """Resolves expressions to the names that they may mean; see `PythonSource`."""

    def __init__(self, built: Mapping[str, ScopeBuilder], modules: ProjectModules) -> None:
        """Set up; `built` holds the scopes of each file by the path of its module."""
        self._built = built
        self._modules = modules
        self.scope_of = {id(node): scope for one in built.values() for node, scope in one.nodes}
        #: What whole expressions mean, by node: a later expression builds on earlier ones.
        self._known: dict[int, frozenset[str]] = {}

    def names(self, node: ast.AST) -> frozenset[str]:
        """Return what an expression may mean."""
        if id(node) not in self._known:
            found = self._names(node, self.scope_of[id(node)], frozenset())
            self._known[id(node)] = found if len(found) <= _MOST_NAMES else frozenset({UNKNOWN})
        return self._known[id(node)]

    def member(self, base: str, name: str) -> frozenset[str]:
        """Return what a member of a name may mean."""
        return self._member(base, name, frozenset())

    def _names(self, node: ast.AST, scope: NameScope, seen: frozenset[int]) -> frozenset[str]:
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in seen:
            return frozenset({UNKNOWN})
        seen |= {id(node)}
        if isinstance(node, ast.Name):
            return self._bound(node.id, scope, seen)
        if isinstance(node, ast.Attribute):
            bases = self._names(node.value, scope, seen)
            return frozenset(name for base in bases for name in self._member(base, node.attr, seen))
        if isinstance(node, ast.Call):
            return self._called(node, scope, seen)
        if isinstance(node, ast.Subscript):
            return frozenset(f"{name}[]" for name in self._names(node.value, scope, seen))
        if isinstance(node, (ast.NamedExpr, ast.Await)):
            return self._names(node.value, scope, seen)
        choices = {ast.IfExp: ("body", "orelse"), ast.BoolOp: ("values",)}.get(type(node), ())
        parts = [getattr(node, field) for field in choices]
        flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
        names = [name for one in flat for name in self._names(one, scope, seen)]
        return frozenset(names or {UNKNOWN})

    def _called(self, node: ast.Call, scope: NameScope, seen: frozenset[int]) -> frozenset[str]:
        functions = self._names(node.func, scope, seen)
        if "builtins.getattr" in functions and (text := text_argument(node, 1)):
            bases = self._names(node.args[0], scope, seen)
            return frozenset(name for base in bases for name in self._member(base, text, seen))
        if functions.intersection(IMPORTERS) and (text := text_argument(node, 0)):
            return frozenset({self._modules.find(text.replace(":", "."), scope.file)})
        if "functools.partial" in functions and node.args:
            return self._names(node.args[0], scope, seen)
        return frozenset(f"{name}()" for name in functions)

    def _bound(self, name: str, scope: NameScope, seen: frozenset[int]) -> frozenset[str]:
        """Return what a plain name means in a scope."""
        place: NameScope | None = scope.module if name in scope.global_names else scope
        while place is not None:
            is_visible = place is scope or not isinstance(place.node, ast.ClassDef)
            if is_visible and name in place.bindings:
                # Each name is followed once on a path, not each of its bindings in every order;
                # `_member` marks the same list with its plain id.
                mark = -id(place.bindings[name])
                if mark in seen:
                    return frozenset({UNKNOWN})
                values = [self._value(one, place, seen | {mark}) for one in place.bindings[name]]
                return frozenset().union(*values)
            place = place.parent
        starred = [self._member(module, name, seen) for module in scope.module.stars]
        found = frozenset().union(*starred) - {UNKNOWN}
        is_shadowed = name in _SPARK_SHADOWS and _SPARK_FUNCTIONS.intersection(scope.module.stars)
        if hasattr(builtins, name) and not is_shadowed:
            found |= {f"builtins.{name}"}
        return found or frozenset({UNKNOWN})

    def _value(self, value: object, scope: NameScope, seen: frozenset[int]) -> frozenset[str]:
        if isinstance(value, ImportedName):
            if value.member is None:
                return frozenset({value.module})
            return self._member(value.module, value.member, seen)
        if isinstance(value, ast.expr):
            return self._names(value, self.scope_of.get(id(value), scope), seen)
        return frozenset({value if isinstance(value, str) else UNKNOWN})

    def _member(self, base: str, name: str, seen: frozenset[int]) -> frozenset[str]:
        if not base.endswith(":"):
            return frozenset({f"{base}.{name}"})
        built = self._built.get(base)
        if built is not None and (name in built.module.bindings or built.module.stars):
            bindings = built.module.bindings.get(name)
            key = id(bindings) if bindings else id(built)
            if key not in seen and (bindings or not hasattr(builtins, name)):
                return self._bound(name, built.module, seen | {key})
        submodule = self._modules.submodule(base, name)
        return frozenset({submodule or UNKNOWN})


def text_argument(node: ast.Call, number: int) -> str | None:
    """Return an argument of a call that is a plain text."""
    if len(node.args) <= number:
        return None
    value = getattr(node.args[number], "value", None)
    return value if isinstance(value, str) else None
