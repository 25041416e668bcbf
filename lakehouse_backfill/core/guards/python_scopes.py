"""Scopes of Python files: which names each one binds, and to what.

Values are not tracked: a name that is bound to anything but an import, a definition or one
expression is unknown.

What the names of Python files mean: through imports, variables and modules of the project.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True)
class ImportedName:
    """A module, or one of its members, that an import binds.

    `module` is dotted (`os.path`) or the path of a module of the project (`jobs/orders/rates:`).
    """

    module: str
    member: str | None = None


#: What a name is bound to: an import, an expression, a definition (text), or unknown (None).
Binding = ImportedName | ast.expr | str | None


@dataclass(eq=False)
class NameScope:
    """A module, class, function, lambda or comprehension.

    `definition` names the innermost definition around it: `jobs/orders/rates:Rates.of`;
    `jobs/orders/rates:` for code that runs on import.
    """

    file: str
    definition: str
    node: ast.AST
    parent: NameScope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    global_names: set[str] = field(default_factory=set)
    #: Modules of which all names are imported.
    stars: list[str] = field(default_factory=list)

    @property
    def module(self) -> NameScope:
        """The scope of the file."""
        return self if self.parent is None else self.parent.module

    def bind(self, name: str, value: Binding) -> None:
        """Add what a name may be bound to."""
        owner = self.module if name in self.global_names else self
        owner.bindings.setdefault(name, []).append(value)


def module_path(file: str) -> str:
    """Return the path of a file's module, as names of definitions begin: `jobs/orders/rates:`."""
    path = PurePosixPath(file).with_suffix("")
    return f"{path.parent if path.name == '__init__' else path}:"


class ProjectModules:
    """Finds the modules of the project that an import means."""

    def __init__(self, files: Iterable[str], job: str) -> None:
        """Set up; `job` is the file that is run: its folder is on the import path too."""
        self.paths = {module_path(file)[:-1] for file in files}
        self._packages = {
            str(parent) for path in self.paths for parent in PurePosixPath(path).parents
        }
        self._job_folder = PurePosixPath(job).parent

    def find(self, dotted: str, file: str, level: int = 0) -> str:
        """Return the module's name: that of a file of the project, else the dotted name."""
        parts = [part for part in dotted.split(".") if part]
        folder = PurePosixPath(file).parent
        if level:
            parents = (folder, *folder.parents)
            folders = [parents[min(level, len(parents)) - 1]]
        else:
            folders = [PurePosixPath(), self._job_folder, folder]
        for one in folders:
            path = str(one.joinpath(*parts))
            if path in self.paths or (path in self._packages and (level or path != ".")):
                return f"{path}:"
        return dotted if not level else f"{'.' * level}{dotted}"

    def submodule(self, module: str, name: str) -> str | None:
        """Return a module inside a package of the project."""
        path = str(PurePosixPath(module[:-1]) / name)
        return f"{path}:" if path in self.paths or path in self._packages else None


class ScopeBuilder(ast.NodeVisitor):
    """Builds the scopes of one file; afterwards `nodes` holds each node that runs, with its scope.

    Annotations are left out: they are not executed as code of the job.
    """

    def __init__(self, file: str, tree: ast.Module, modules: ProjectModules) -> None:
        """Visit the whole file."""
        self._modules = modules
        self.scope = NameScope(file, module_path(file), tree)
        self.module = self.scope
        self.nodes: list[tuple[ast.AST, NameScope]] = []
        self._is_typing_only = False
        self.generic_visit(tree)

    def visit(self, node: ast.AST) -> None:
        """Record the node, then visit what is inside."""
        if not self._is_typing_only:
            self.nodes.append((node, self.scope))
        super().visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _inside(self, node: ast.AST, definition: str, body: Iterable[ast.AST]) -> None:
        outer, self.scope = self.scope, NameScope(self.scope.file, definition, node, self.scope)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._bind_arguments(node.args)
        self._visit_all(body)
        self.scope = outer

    def _bind_arguments(self, arguments: ast.arguments) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            self.scope.bind(argument.arg, None)
            if default is not None:
                self.scope.bind(argument.arg, default)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                self.scope.bind(rest.arg, None)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
        separator = "" if self.scope.definition.endswith(":") else "."
        name = f"{self.scope.definition}{separator}{node.name}"
        self.scope.bind(node.name, name)
        return name

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        name = self._define(node)
        self._visit_all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        self._inside(node, name, node.body)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815 (names of ast)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        name = self._define(node)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self._inside(node, name, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._inside(node, self.scope.definition, [node.body])

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._inside(node, self.scope.definition, [*node.generators, *parts])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind_target(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind_target(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind_target(node.target, node.value)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._bind_target(node.optional_vars, node.context_expr)

    def _bind_target(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.scope.bind(target.id, value)
        else:
            self.visit(target)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.scope.bind(node.id, None)

    def visit_If(self, node: ast.If) -> None:
        if _name_of(node.test) == "TYPE_CHECKING":
            self._is_typing_only = True
            self._visit_all(node.body)
            self._is_typing_only = False
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.scope.bind(node.name, None)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.scope.bind(node.name, None)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.global_names |= set(node.names)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            # `import a.b` binds a; `import a.b as c` binds c to a.b.
            first = alias.name if alias.asname else alias.name.partition(".")[0]
            found = self._modules.find(first, self.scope.file)
            self.scope.bind(alias.asname or first, ImportedName(found))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        found = self._modules.find(node.module or "", self.scope.file, node.level)
        for alias in node.names:
            if alias.name == "*":
                self.scope.stars.append(found)
            else:
                self.scope.bind(alias.asname or alias.name, ImportedName(found, alias.name))


def _name_of(node: ast.expr) -> str | None:
    return getattr(node, "id", None) or getattr(node, "attr", None)


def build_scopes(
    trees: Mapping[str, ast.Module], modules: ProjectModules
) -> dict[str, ScopeBuilder]:
    """Return the scopes of each file, by the path of its module (`jobs/orders/rates:`)."""
    return {module_path(file): ScopeBuilder(file, tree, modules) for file, tree in trees.items()}


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
