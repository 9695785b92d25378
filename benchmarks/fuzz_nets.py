"""Random nets, drawn by hypothesis as the source text of a module. Each statement is tried on real tensors before it is added."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from . import fuzz_classes
from .fuzz_counter import in_thread, recounted
from .fuzz_statements import ACTIVATIONS, KINDS, STATEMENTS, Statement

Draw = Callable[..., Any]
SIZES, LARGEST, DEEPEST = (4, 8, 12), 3000, 2
BY_KIND = {kind: [each for each in STATEMENTS if each.kind == kind] for kind in KINDS}
WEIGHTED = [*KINDS, "function", "layer", "module", "layer", "function", "write"]
INPUTS = {
    2: "torch.randn({a}, {c})",
    3: "torch.randn({a}, {s}, {c})",
    4: "torch.randn({a}, {c}, {s}, {s})",
    5: "torch.randn(1, {c}, {a}, {s}, {s})",
}
WAYS = ["{}"] * 4 + [
    "{}.requires_grad_()",
    "{}.repeat(*[2] * {r})[..., ::2]",
    "{}.transpose(0, 1).contiguous().transpose(0, 1)",
]
FORMS = ["({all}), {{}}"] * 4 + ["({0},), dict(x1={1})", "([{all}],), {{}}", "(dict(zip('ab', ({all}))),), {{}}"]
OUTPUTS = ["{0}"] * 3 + [
    "({0}, {1})",
    "{{'out': {0}, 'aux': [{1}, None]}}",
    "Pair({0}, {1})",
    "[{0}, ({1},)]",
    "{0}.sum()",
]


class Faults:
    """A function that a net calls between its statements. It raises once, at a given call."""

    def __init__(self) -> None:
        self.calls = 0
        self.at: int | None = None
        self.error: type[BaseException] = ValueError

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error("injected")

    @contextmanager
    def armed(self, at: int | None, error: type[BaseException] = ValueError) -> Iterator[None]:
        self.calls, self.at, self.error = 0, at, error
        try:
            yield
        finally:
            self.at = None


tick = Faults()
_way = ["plain"]


@contextmanager
def checkpoints(way: str) -> Iterator[None]:
    """Set the kind of checkpoints in nets made inside the block.

    "forgetful" checkpoints do not keep the generator's state: it takes 5 KB, which no operator allocates. With "recounted"
    checkpoints, the independent counter sees what is recomputed.
    """
    _way[0] = way
    try:
        yield
    finally:
        _way[0] = "plain"


def _checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(recounted(function), *args, **kwargs)


def _forgetful(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **{**kwargs, "preserve_rng_state": False})


def _checkpoints() -> dict[str, Any]:
    if _way[0] == "forgetful":
        return {"checkpoint": _forgetful(checkpoint), "checkpoint_sequential": _forgetful(checkpoint_sequential)}
    return {
        "checkpoint": _checkpoint if _way[0] == "recounted" else checkpoint,
        "checkpoint_sequential": checkpoint_sequential,
    }


def names() -> dict[str, Any]:
    """Return the names that the text of a net may use."""
    return {
        "torch": torch, "nn": nn, "F": F, "copy": copy, "random": random, "tick": tick, "in_thread": in_thread,
        **_checkpoints(), "SDPBackend": SDPBackend, "sdpa_kernel": sdpa_kernel,
        "old_weight_norm": nn.utils.weight_norm, **{name: getattr(parametrizations, name) for name in ("spectral_norm", "weight_norm", "orthogonal")},
        **{name: value for name, value in vars(fuzz_classes).items() if name[0] != "_" and getattr(value, "__module__", "") == fuzz_classes.__name__},
        "__name__": "net",
    }  # fmt: skip


@dataclass
class Line:
    """A statement in a class. ``out`` is the name of its result, ``of`` the name of the value that it reads."""

    kind: str
    init: str
    body: str
    out: str
    of: str

    def __str__(self) -> str:
        return self.body


@dataclass
class Part:
    """A class of the net: its lines, and the expression that its forward returns."""

    name: str
    parameters: str
    lines: list[Line] = field(default_factory=list)
    before: str = ""
    returned: str = ""

    def text(self) -> str:
        init = "\n".join(line.init for line in self.lines if line.init)
        body = "\n".join(f"tick()\n{line.body}" for line in self.lines)
        return "\n".join(
            [
                f"class {self.name}(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                _indented(init, 8),
                f"    def forward(self, {self.parameters}):",
                _indented(self.before, 8),
                _indented(body, 8),
                "        tick()",
                f"        return {self.returned}",
                "",
            ]
        )


@dataclass
class Net:
    """A net as text: its classes and its inputs. The last class is the net itself."""

    parts: list[Part]
    inputs: str
    seed: int = 0

    @property
    def text(self) -> str:
        text = "\n".join(part.text() for part in self.parts) + f"\ndef inputs():\n    return {self.inputs}\n"
        return re.sub(r"\n[ \n]*\n", "\n", text)

    @property
    def kinds(self) -> list[str]:
        return [line.kind for part in self.parts for line in part.lines]


def made(text: str, seed: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Build a net from its text. Return the model with its args and kwargs."""
    space = names()
    exec(compile(text, "<net>", "exec"), space)
    torch.manual_seed(seed)
    random.seed(seed)
    model, (args, kwargs) = space["Net"](), space["inputs"]()
    return model, args if isinstance(args, tuple) else (args,), kwargs


class Maker:
    """Draws one net."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.parts: list[Part] = []
        self.space = names()
        self.count = 0

    def one(self, several: Any) -> Any:
        return self.draw(st.sampled_from(several))

    def net(self) -> Net:
        values, texts = {}, []
        for i in range(self.draw(st.integers(1, 2))):
            rank = self.one([2, 3, 3, 3, 4, 4, 5])
            text = INPUTS[rank].format(a=self.one([2, 3]), s=self.one([4, 6]), c=self.one(SIZES))
            texts.append(self.one(WAYS).replace("{}", text).replace("{r}", str(rank)))
            values[f"x{i}"] = eval(texts[-1], self.space)
        form = self.one(FORMS if len(texts) == 2 else [*FORMS[:4], *FORMS[5:]])
        given = form.format(*texts, all=", ".join(texts) + ",")
        parameters, before = ", ".join(values), ""
        if form.startswith(("([", "(dict")):
            parameters = "given"
            before = f"{', '.join(values)}, = given" + (".values()" if form.startswith("(dict") else "")
        part = self.part("Net", parameters, values, self.draw(st.integers(2, 7)), 0)
        part.before = before
        return Net(self.parts, given, self.draw(st.integers(0, 99)))

    def part(self, name: str, parameters: str, values: dict[str, torch.Tensor], length: int, depth: int) -> Part:
        part = Part(name, parameters)
        self_ = nn.Module()
        space = {**self.space, **values, "self": self_}
        for _ in range(length):
            line = self.line(values, space, depth)
            if line is not None:
                part.lines.append(line)
        last, other = [*values][-1], self.one([*values])
        part.returned = last if depth else self.one(OUTPUTS).format(last, other)
        self.parts.append(part)
        exec(compile(part.text(), "<net>", "exec"), self.space)
        return part

    def line(self, values: dict[str, torch.Tensor], space: dict[str, Any], depth: int) -> Line | None:
        """Draw one more statement, and add its result to ``values``. Return None if it does not run or its result is unsuitable."""
        name = [*values][-1] if self.draw(st.integers(0, 3)) else self.one([*values])
        x = values[name]
        kinds = [k for k in WEIGHTED if depth < DEEPEST or k not in ("module", "checkpoint", "thread")]
        fitting = [s for s in BY_KIND[self.one(kinds)] if not s.ranks or str(x.ndim) in s.ranks]
        if not fitting or not x.ndim:
            return None
        statement: Statement = self.one(fitting)
        alike = [other for other, value in values.items() if value.shape == x.shape]
        self.count += 1
        last = x.shape[-1]
        fields = {
            "x": name, "y": self.one(alike), "o": f"x{len(values)}", "m": f"m{self.count}", "L": last, "F": x.shape[1] if x.ndim > 1 else 1,
            "k": self.one(SIZES), "p": self.draw(st.integers(1, 3)), "p2": self.draw(st.integers(1, 2)), "b": self.draw(st.booleans()),
            "b2": self.draw(st.booleans()), "h": self.one([h for h in (1, 2, 4) if last % h == 0]), "dim": self.draw(st.integers(0, x.ndim - 1)), "act": self.one(ACTIVATIONS),
        }  # fmt: skip
        known = len(self.parts)
        if "{Block}" in statement.init:
            fields["Block"] = f"Block{self.count}"
            self.part(fields["Block"], "x0", {"x0": x.detach()}, self.draw(st.integers(1, 3)), depth + 1)
            space.update(self.space | {key: space[key] for key in (*values, "self")})
        line = Line(statement.kind, statement.init.format(**fields), statement.body.format(**fields), fields["o"], name)
        try:
            exec(line.init, space)
            exec(line.body, space)
            out = space[line.out]
        except Exception:
            out = None
        if (
            not isinstance(out, torch.Tensor)
            or out.dtype != torch.float32
            or not 0 < out.numel() <= LARGEST
            or out.ndim > 5
        ):
            del self.parts[known:]
            return None
        values[line.out] = out
        return line


@st.composite
def nets(draw: Draw) -> Net:
    """Draw a net of a few statements that run."""
    before = random.getstate(), torch.get_rng_state()
    try:
        return Maker(draw).net()
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
