"""Generate the mutants of a source file: mutmut's operators, deleted statements, negated conditions, swapped arguments."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

Operator = Callable[[Any], Iterable[cst.CSTNode]]


class Mutant(NamedTuple):
    """One change of one node. ``function`` is the top-level function or method that contains the node, as its name and the number
    of earlier functions with that name; None if the node runs at import. ``around`` has the lines of that function; for a node
    that runs at import, the lines of all functions that use the names that its statement assigns."""

    key: str
    file: str
    lines: range
    around: tuple[int, ...]
    function: tuple[str, int] | None
    operator: str
    before: str
    after: str
    statement: str
    text: str
    change: Callable[[], str]

    @property
    def shown(self) -> str:
        return f"{self.file}:{self.lines.start}"


def mutated(mutant: Mutant) -> str:
    """Return the file's text with the mutant in it."""
    return mutant.change()


def deleted(node: cst.Expr | cst.Raise | cst.AugAssign) -> Iterator[cst.CSTNode]:
    """Delete a statement that is an expression, a raise or an augmented assignment, but not a docstring."""
    if not (
        isinstance(node, cst.Expr) and isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis))
    ):
        yield cst.Pass()


def returns_none(node: cst.Return) -> Iterator[cst.CSTNode]:
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def negated(node: cst.If | cst.CompIf | cst.While) -> Iterator[cst.CSTNode]:
    """Negate a condition. mutmut itself negates only comparisons and conditional expressions."""
    if not isinstance(node.test, (cst.Comparison, cst.UnaryOperation)):
        inside = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        gap = cst.SimpleWhitespace(" ")
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inside), **{_gap_of(node): gap})


def _gap_of(node: cst.If | cst.CompIf | cst.While) -> str:
    return {
        cst.If: "whitespace_before_test",
        cst.CompIf: "whitespace_before_test",
        cst.While: "whitespace_after_while",
    }[type(node)]


def swapped(node: cst.Call) -> Iterator[cst.CSTNode]:
    """Swap the first two positional arguments."""
    named = node.func.value if isinstance(node.func, cst.Name) else ""
    if len(node.args) > 1 and named not in ANY_ORDER and not any(a.keyword or a.star for a in node.args[:2]):
        first, second, *rest = node.args
        if not first.value.deep_equals(second.value):
            both = first.with_changes(value=second.value), second.with_changes(value=first.value)
            yield node.with_changes(args=[*both, *rest])


OPERATORS: list[tuple[Any, Operator]] = [
    *mutation_operators,
    ((cst.Expr, cst.Raise, cst.AugAssign), deleted),
    (cst.Return, returns_none),
    ((cst.If, cst.CompIf, cst.While), negated),
    (cst.Call, swapped),
]
ANY_ORDER = ("min", "max", "formula", "named", "frozenset", "set")
"""Functions for which the order of the arguments does not matter."""
NOT_MUTATED = (cst.Annotation, cst.Import, cst.ImportFrom, cst.Comment)
SIMPLE = (cst.SimpleStatementLine, cst.Decorator)


def mutants_of(root: Path, file: str, seed: int) -> Iterator[Mutant]:
    """Yield the mutants of a file. If an operator has several mutations of a node, the seed draws one of them.

    Keys do not depend on line numbers, so a mutant keeps its key when other parts of the file change. Strings that contain a space
    are not mutated: they are text for people.
    """
    text = (root / file).read_text()
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    places = wrapper.resolve(PositionProvider)
    module = wrapper.module
    counts: dict[str, int] = defaultdict(int)
    defined: dict[str, int] = defaultdict(int)
    decorated: dict[cst.CSTNode, str] = {}
    spans = _functions_by_word(module, places)

    def code(node: cst.CSTNode) -> str:
        return module.code_for_node(node).strip()

    def lines(node: cst.CSTNode) -> range:
        return range(places[node].start.line, places[node].end.line + 1)

    def visit(
        node: cst.CSTNode, scope: str, within: tuple[tuple[str, int], range] | None, statement: cst.CSTNode
    ) -> Iterator[Mutant]:
        if isinstance(node, NOT_MUTATED) or _is_text(node):
            return
        if isinstance(node, (*SIMPLE, cst.If, cst.For, cst.While, cst.With, cst.Try, cst.FunctionDef, cst.ClassDef)):
            statement = node
        for kinds, operator in OPERATORS:
            if isinstance(node, kinds) and (made := list(operator(node))):
                yield mutant(node, operator.__name__, made, scope, within, statement)
        for child in node.children:
            inner, inside = scope, within
            if isinstance(child, cst.Decorator) and isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                decorated[child] = node.name.value
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and child is node.body:
                inner = f"{scope}{node.name.value}." + ("<locals>." if isinstance(node, cst.FunctionDef) else "")
                if isinstance(node, cst.FunctionDef) and within is None:
                    name = scope + node.name.value
                    inside = (name, defined[name]), lines(node.body)
                    defined[name] += 1
            yield from visit(child, inner, inside, statement)

    def mutant(
        node: cst.CSTNode, operator: str, made: list[cst.CSTNode], scope: str, within: Any, statement: cst.CSTNode
    ) -> Mutant:
        header = code(statement).partition("\n")[0] if not isinstance(statement, SIMPLE) else code(statement)
        site = "|".join((str(seed), file, scope, operator, header, code(node)[:200]))
        counts[site] += 1
        drawn = int(hashlib.sha256(f"{site}|{counts[site]}".encode()).hexdigest(), 16)
        new = made[drawn % len(made)]
        key = hashlib.sha256(f"{site}|{counts[site]}|{code(new)[:200]}".encode()).hexdigest()[:16]
        if within:
            around = tuple(within[1])
        else:
            words = [f"def {decorated[statement]}"] if statement in decorated else _names_in(statement)
            around = tuple(n for word in words for n in spans.get(word, ()))
        own = lines(statement) if isinstance(statement, SIMPLE) else lines(node)
        if isinstance(node, (cst.If, cst.While)):
            own = lines(node.test)
        return Mutant(key, file, own, around, within and within[0], operator, code(node), code(new), header, text,
                      lambda: module.deep_replace(node, new).code)  # fmt: skip

    yield from visit(module, "", None, module)


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in node.value


def _names_in(statement: cst.CSTNode) -> list[str]:
    """Return the names that an import-time statement assigns; if it assigns none, ``def NAME`` for each name that it uses."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return [f"def {statement.name.value}"]
    small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    targets = [t.target for s in small if isinstance(s, cst.Assign) for t in s.targets]
    targets += [s.target for s in small if isinstance(s, (cst.AnnAssign, cst.AugAssign))]
    assigned = [t.value for t in targets if isinstance(t, cst.Name)]
    return assigned or [f"def {n.value}" for s in small for n in _walk(s) if isinstance(n, cst.Name)]


def _functions_by_word(module: cst.Module, places: Any) -> dict[str, list[int]]:
    """Return, by name, the lines of all functions that use the name; and under ``def NAME``, the lines of the function itself."""
    found: dict[str, list[int]] = defaultdict(list)

    class Names(cst.CSTVisitor):
        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
            span = range(places[node.body].start.line, places[node.body].end.line + 1)
            found[f"def {node.name.value}"] += span
            for word in {n.value for n in _walk(node) if isinstance(n, cst.Name)}:
                found[word] += span

    module.visit(Names())
    return found


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
