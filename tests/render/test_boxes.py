"""Boxes: nested modules, identical modules in one box, and the tensors between boxes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fxflops.render.boxes import Box, boxes
from fxflops.render.data import GraphNode, TreeRow


def node(name: str, path: str, *inputs: str, kind: str = "module", flops: float = 1, op: str = "op") -> GraphNode:
    return GraphNode(name, path, kind, op, f"of {name}", inputs, {"flops": flops})


def module(path: str, cls: str = "Leaf", children: Iterable[TreeRow] = (), calls: int = 1, params: int = 0) -> TreeRow:
    return TreeRow(path.rpartition(".")[2], cls, path, calls, params, 0, 0, children=tuple(children))


def drawn(box: Box) -> dict[tuple[str, str], list[str]]:
    return {(a.name if a else "", b.name if b else ""): [*tensors] for (a, b), tensors in box.edges.items()}


def block(path: str) -> TreeRow:
    return module(path, "Block", [module(f"{path}.fc")])


ROOT = module("", "Net", [module("stem"), module("h", "ModuleList", [block(f"h.{i}") for i in range(3)], calls=0)])


def blocks() -> list[GraphNode]:
    """A stem, and three blocks that add their result to their input."""
    nodes, last = [node("x", "", kind="input", flops=0), node("stem", "stem", "x")], "stem"
    for i in range(3):
        nodes.append(node(f"fc{i}", f"h.{i}.fc", last, flops=5))
        nodes.append(node(f"add{i}", f"h.{i}", last, f"fc{i}", kind="function", op="add"))
        last = f"add{i}"
    return [*nodes, node("output", "", last, kind="output", flops=0)]


def test_identical_modules_of_a_list_stand_in_one_box() -> None:
    root = boxes(ROOT, blocks(), "flops")
    assert [(box.name, box.count, box.cost) for box in root.walk()] == [
        ("Net", 1, 1 + 3 * 6), ("input x", 1, 0), ("stem", 1, 1), ("h.0..2", 3, 18), ("fc", 1, 15), ("add", 1, 3), ("output", 1, 0),
    ]  # fmt: skip
    assert drawn(root) == {
        ("input x", "stem"): ["of x"], ("stem", "h.0..2"): ["of stem"], ("h.0..2", "output"): ["of add2"],
    }  # fmt: skip
    inside = next(box for box in root.walk() if box.count == 3)
    assert set(drawn(inside)) == {("", "fc"), ("", "add"), ("fc", "add"), ("add", "")}


def test_modules_between_which_something_is_computed_stand_apart() -> None:
    nodes = blocks()
    at = next(i for i, each in enumerate(nodes) if each.name == "fc1")
    nodes[at:at] = [node("mul", "", "add0", kind="function", op="mul")]
    names = [box.name for box in boxes(ROOT, nodes, "flops").walk()]
    assert names[3:] == ["h.0", "fc", "add", "mul", "h.1..2", "fc", "add", "output"]


def test_what_computes_nothing_is_passed_through_unless_it_joins() -> None:
    rows = [module("a"), module("drop"), module("embed", params=7), module("b")]
    nodes = [
        node("x", "", kind="input", flops=0),
        node("a", "a", "x"),
        node("drop", "drop", "a", flops=0),
        node("embed", "embed", "x", flops=0),
        node("pair", "", "a", "embed", kind="function", flops=0, op=""),  # makes a tuple, which is not an operator
        node("cat", "", "drop", "embed", kind="function", flops=0, op="cat"),
        node("view", "", "cat", kind="function", flops=0, op="view"),
        node("b", "b", "view"),
        node("output", "", "b", kind="output", flops=0),
    ]
    found = drawn(boxes(module("", "Net", rows), nodes, "flops"))
    assert found == {
        ("input x", "a"): ["of x"], ("input x", "embed"): ["of x"], ("a", "cat"): ["of drop"], ("embed", "cat"): ["of embed"],
        ("cat", "b"): ["of view"], ("b", "output"): ["of b"],
    }  # fmt: skip


@pytest.mark.parametrize(("depth", "names"), [
    (1, ["Net", "input x", "stem", "h.0..2", "output"]),
    (2, ["Net", "input x", "stem", "h.0..2", "fc", "add", "output"]),
])  # fmt: skip
def test_the_depth_is_that_of_calls(depth: int, names: list[str]) -> None:
    root = boxes(ROOT, blocks(), "flops", depth)
    assert [box.name for box in root.walk()] == names
    assert root.cost == 19


def test_a_module_that_holds_one_other_is_drawn_as_that() -> None:
    rows = [
        module("outer", "Outer", [module("outer.inner", "Inner", [module("outer.inner.a"), module("outer.inner.b")])])
    ]
    nodes = [node("x", "", kind="input", flops=0), node("a", "outer.inner.a", "x"), node("b", "outer.inner.b", "a")]
    root = boxes(module("", "Net", rows), nodes, "flops")
    assert [box.name for box in root.walk()] == ["Net", "input x", "outer.inner", "a", "b"]
    assert drawn(root) == {("input x", "outer.inner"): ["of x"]}
    assert drawn(root.children[1]) == {("", "a"): ["of x"], ("a", "b"): ["of a"]}
