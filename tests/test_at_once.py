"""Threads that count at the same time. Each gets the report it gets alone, nothing deadlocks, and nothing stays on the models."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import fxflops
from fxflops import InputError, analyze, count, profile
from fxflops.adapters import torchinfo
from fxflops.model.inventory import Inventory
from fxflops.trace.leaves import has_tensor_attributes, settings_of
from tests.facts import facts_of

SECONDS = 60.0
"""A thread that has not ended by then never will."""
WIDTH, BATCH = 8, 3
LINEAR = 2 * BATCH * WIDTH * WIDTH  # with the bias, a multiplication and an addition per weight
X = torch.randn(BATCH, WIDTH)


class Block(nn.Module):
    """A linear layer that then calls ``doing``. That is not an attribute, because counting restores a module's attributes."""

    def __init__(self, doing: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        DOING[self.linear] = doing or (lambda x: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        DOING[self.linear](x)
        return x


DOING: dict[nn.Module, Callable[[torch.Tensor], Any]] = {}


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    """Make threads switch every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
    DOING.clear()


def chain(length: int = 6) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(length)))


def conv() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.ReLU())


def start(job: Callable[[], Any]) -> Callable[[], Any]:
    """Run a job in a thread. Returns a function that waits for the thread and returns, or raises, the job's outcome."""
    done: list[Any] = []

    def work() -> None:
        try:
            done.append(job())
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(SECONDS)
        assert not thread.is_alive(), "the thread waits for ever"
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    return wait


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Run the jobs in as many threads, started together, and return their results."""
    barrier = threading.Barrier(len(jobs))

    def begin(job: Callable[[], Any]) -> Any:
        barrier.wait(SECONDS)
        return job()

    waits = [start(partial(begin, job)) for job in jobs]
    return [wait() for wait in waits]


def assert_bare(*models: nn.Module, training: bool = True) -> None:
    """Check that nothing is left on the models, and that nn.Module's own __call__ is back."""
    for module in [module for model in models for module in model.modules()]:
        kept = vars(module)
        assert not any(kept[name] for name in kept if name.endswith("_hooks") or "_hooks_" in name), module
        assert "forward" not in kept
        assert module.training is training
    assert "_call_impl" in nn.Module.__call__.__code__.co_names


def profiled(model: nn.Module, x: torch.Tensor = X) -> fxflops.Report:
    with torch.no_grad(), profile(model) as p:
        model(x)
    return p.report


def analyzed(model: nn.Module, x: torch.Tensor = X) -> fxflops.Report:
    return analyze(model, x, repeats=1, progress=False)


def recorded(model: nn.Module, x: torch.Tensor = X) -> fxflops.Report:
    return analyze(model, x, repeats=1, progress=False, trace="record")


def trained(model: nn.Module, x: torch.Tensor = X) -> fxflops.Report:
    return count(model, x, backward=True)


WAYS = {
    "count": lambda model: count(model, X),
    "backward": lambda model: trained(model, X),
    "analyze": lambda model: analyzed(model, X),
    "record": lambda model: recorded(model, X),
    "profile": lambda model: profiled(model, X),
}
PAIRS = [(one, other) for i, one in enumerate(WAYS) for other in [*WAYS][i:]]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("same", [True, False], ids=["one model", "two models"])
def test_two_at_once(one: str, other: str, same: bool) -> None:
    first = chain()
    second = first if same else nn.Sequential(chain(3), conv())
    wanted = facts_of(WAYS[one](first)), facts_of(WAYS[other](second))
    assert wanted[0]["flops"] == 6 * LINEAR
    for _ in range(5):
        found = at_once(partial(WAYS[one], first), partial(WAYS[other], second))
        assert tuple(map(facts_of, found)) == wanted
    assert_bare(first, second)
    assert all(parameter.grad is None for parameter in first.parameters())


@pytest.mark.cuda
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_at_once_on_cuda(one: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has the counts that it has alone. Only the allocator's peak includes both."""
    monkeypatch.setitem(globals(), "X", X.cuda())
    first, second = chain().cuda(), nn.Sequential(chain(3), conv()).cuda()

    def counts_of(report: fxflops.Report) -> dict[str, Any]:
        return {name: value for name, value in facts_of(report).items() if name != "max_memory"}

    wanted = counts_of(WAYS[one](first)), counts_of(WAYS[other](second))
    assert wanted[0]["flops"] == 6 * LINEAR
    for _ in range(2):
        found = at_once(partial(WAYS[one], first), partial(WAYS[other], second))
        assert tuple(map(counts_of, found)) == wanted
    assert_bare(first, second)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("same", [True, False], ids=["one model", "two models"])
def test_a_thread_that_a_profile_waits_for(way: str, same: bool) -> None:
    model = chain()
    other = model if same else chain(4)
    wanted = facts_of(WAYS[way](other))
    with profile(model) as p:
        found = start(partial(WAYS[way], other))()
        model(X)
    assert facts_of(found) == wanted
    assert p.report.total_flops == 6 * LINEAR
    assert len(p.report.calls) == 6
    assert_bare(model, other)


@pytest.mark.parametrize("way", ["count", "backward", "record"])
@pytest.mark.parametrize("inner", WAYS)
def test_a_thread_that_a_forward_waits_for(way: str, inner: str) -> None:
    """A thread started by a counted forward can count another model: the inner count does not wait for the outer one."""
    other = chain(2)
    wanted, found = facts_of(WAYS[inner](other)), []
    model = Block(lambda x: found.append(facts_of(start(partial(WAYS[inner], other))())))
    assert WAYS[way](model).total_flops == LINEAR
    assert found
    assert all(each == wanted for each in found)
    assert_bare(model, other)


@pytest.mark.parametrize("way", ["count", "record", "profile", "run"])
def test_other_threads_while_fx_traces(way: str) -> None:
    """torch.fx replaces nn.Module methods for all threads while it traces. Calls in other threads must not be traced."""
    other, ran = chain(2), []
    other_ways = {**WAYS, "run": lambda model: model(X)}
    wanted = other_ways[way](other)

    def meanwhile(x: torch.Tensor) -> None:
        if isinstance(x, fx.Proxy):
            ran.append(start(partial(other_ways[way], other))())

    model = Block(meanwhile)
    report = analyzed(model)
    assert report.trace == "symbolic trace"
    assert report.total_flops == LINEAR
    assert len(ran) == 1
    if way == "run":
        assert torch.equal(ran[0], wanted)
    else:
        assert facts_of(ran[0]) == facts_of(wanted)
    assert_bare(model, other)


def test_the_traced_model_may_run_in_another_thread() -> None:
    """A call in another thread during the trace uses the real parameters, not the trace's proxies."""
    ran: list[Any] = []

    def meanwhile(x: torch.Tensor) -> None:
        if isinstance(x, fx.Proxy):
            ran.append(start(lambda: model(X))())

    model = Block(meanwhile)
    assert analyzed(model).trace == "symbolic trace"
    assert torch.equal(ran[0], model(X))
    assert ran[0].grad_fn is not None


def test_a_call_that_outlasts_a_trace_runs_as_usual() -> None:
    """A thread may already hold the __call__ that torch.fx installed when the trace ends. That call must then run normally."""
    replaced: list[Any] = []

    class Keeps(nn.Module):
        def forward(self, x: Any) -> Any:
            replaced.append(nn.Module.__call__)
            return x + 1

    x, layer = torch.ones(2, 8), nn.Linear(8, 8)
    assert analyze(Keeps(), x, trace="symbolic", repeats=1, progress=False).trace == "symbolic trace"
    late = [call for call in replaced if call is not nn.Module.__call__]
    assert late
    results = at_once(*(partial(call, layer, x) for call in late))
    assert all(torch.equal(result, layer(x)) for result in results)


@pytest.mark.parametrize("way", ["count", "analyze"])
def test_a_call_in_another_thread_outlasts_the_run(way: str) -> None:
    main, inside, go = threading.current_thread(), threading.Event(), threading.Event()
    waits: list[Callable[[], Any]] = []

    class Waits(nn.Module):
        def forward(self, x: Any) -> Any:
            if threading.current_thread() is not main:
                inside.set()
                assert go.wait(SECONDS)
            # The other thread's call begins during the run and ends after it.
            elif not waits:
                waits.append(start(partial(model, X)))
                assert inside.wait(SECONDS)
            return x + 1

    model = nn.Sequential(Waits(), nn.ReLU())
    report = count(model, X) if way == "count" else analyze(model, X, repeats=0, progress=False)
    go.set()
    result = waits[0]()
    assert result.shape == X.shape
    # A thread started by the model belongs to the model's run, so during a count its tensors are on meta.
    assert result.is_meta if way == "count" else torch.equal(result, (X + 1).relu())
    assert report.total_flops >= 2 * X.numel()
    assert_bare(model)


def test_traces_at_once() -> None:
    """Traces take turns, and each is complete."""
    models = [chain(length) for length in (1, 2, 3, 4)]
    reports = at_once(*(partial(analyzed, model) for model in models))
    assert [report.trace for report in reports] == ["symbolic trace"] * 4
    assert [report.total_flops for report in reports] == [length * LINEAR for length in (1, 2, 3, 4)]
    faces = [fxflops.TorchFLOPsByFX(model) for model in models]
    graphs = at_once(*(partial(getattr, face, "graph_model") for face in faces))
    assert [sum(node.op == "call_module" for node in graph.graph.nodes) for graph in graphs] == [1, 2, 3, 4]
    assert_bare(*models)


def test_a_model_and_a_part_of_it() -> None:
    model = chain()
    for _ in range(5):
        whole, part = at_once(lambda: count(model, X, mode="train"), lambda: count(model[2], X, mode="eval"))
        assert (whole.total_flops, part.total_flops) == (6 * LINEAR, LINEAR)
        assert_bare(model)


def test_models_that_share_a_parameter_keep_its_gradient() -> None:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    gradient = one.weight.grad = torch.randn(WIDTH, WIDTH)
    kept = gradient.clone()
    for way in (trained, partial(analyze, args=X, backward=True, repeats=1, progress=False)):
        for _ in range(5):
            at_once(partial(way, one), partial(way, other))
            assert one.weight.grad is gradient
            assert torch.equal(gradient, kept)
    assert one.bias.grad is other.bias.grad is None


def test_counts_of_one_model_come_one_after_the_other() -> None:
    running: list[int] = []
    most: list[int] = []

    def watch(x: torch.Tensor) -> None:
        running.append(0)
        most.append(len(running))
        threading.Event().wait(0.01)
        running.pop()

    model = Block(watch)
    at_once(*[partial(recorded, model)] * 4)
    assert set(most) == {1}


def test_a_profile_begun_and_ended_while_the_model_is_counted() -> None:
    """Restoring the model after a count neither removes nor brings back a profile's hooks."""
    model, reports = chain(2), []

    def during(x: torch.Tensor) -> None:
        DOING[model[0].linear] = lambda x: None
        reports.append(start(partial(profiled, model))())

    DOING[model[0].linear] = during
    recorded(model)
    assert reports[0].total_flops == 2 * LINEAR
    assert {call.path for call in reports[0].calls} == {"0.linear", "1.linear"}
    assert_bare(model)


def profiled_between(model: nn.Module, entered: threading.Event, leave: threading.Event) -> fxflops.Report:
    """Profile a call of the model in a block that is entered and left on signals."""
    with torch.no_grad(), profile(model) as p:
        entered.set()
        assert leave.wait(SECONDS)
        model(X)
    return p.report


@pytest.mark.parametrize("way", ["count", "record"])
@pytest.mark.parametrize("hooked", [False, True], ids=["", "hooked"])
@pytest.mark.parametrize("order", ["outlives it", "ends in it"])
def test_a_profile_and_a_count_that_overlap(way: str, hooked: bool, order: str) -> None:
    """Restoring the model after a count keeps a profile's hooks, and the user's hooks in their places."""
    model, entered, leave = chain(2), threading.Event(), threading.Event()
    handle = model[1].register_forward_hook(lambda module, args, out: None) if hooked else None
    waits: list[Callable[[], Any]] = []

    def once(x: torch.Tensor) -> None:
        DOING[model[0].linear] = lambda x: None
        if order == "ends in it":
            leave.set()
            waits[0]()
        else:
            waits.append(start(lambda: profiled_between(model, entered, leave)))
            assert entered.wait(SECONDS)

    if order == "ends in it":
        waits.append(start(lambda: profiled_between(model, entered, leave)))
        assert entered.wait(SECONDS)
    DOING[model[0].linear] = once
    report = WAYS[way](model)
    leave.set()
    for each in (report, waits[0]()):
        assert each.total_flops == 2 * LINEAR
        assert {call.path for call in each.calls} == {"0.linear", "1.linear"}
    if handle is not None:
        assert [*model[1]._forward_hooks] == [handle.id]
        handle.remove()
    assert_bare(model)


@pytest.mark.parametrize("way", ["count", "record", "analyze"])
def test_a_forward_that_counts_its_own_model(way: str) -> None:
    """Such a count would be part of itself, and would restore the model in the middle of a run."""
    model = Block(lambda x: count(model, X))
    with pytest.raises(InputError, match="would deadlock"):
        WAYS[way](model)
    part = Block(lambda x: count(whole, X))
    whole = nn.Sequential(part)
    with pytest.raises(InputError, match="would deadlock"):
        WAYS[way](whole)
    assert_bare(model, whole)
    DOING[model.linear] = lambda x: None
    assert WAYS[way](model).total_flops == LINEAR


@pytest.mark.parametrize("way", ["count", "record", "analyze"])
def test_a_forward_that_counts_another_model(way: str) -> None:
    other, inner = nn.Linear(4, 4), list[int]()
    model = Block(lambda x: inner.append(count(other, torch.ones(1, 4)).total_flops))
    assert WAYS[way](model).total_flops == LINEAR
    assert inner
    assert set(inner) == {2 * 4 * 4}
    assert_bare(model, other)


def test_forwards_that_count_each_others_models() -> None:
    """Two such counts would wait for each other forever. One raises, and the other goes on."""
    both = threading.Barrier(2, timeout=SECONDS)

    def meet(other: Callable[[], nn.Module]) -> Callable[[torch.Tensor], None]:
        met: list[bool] = []

        def doing(x: torch.Tensor) -> None:
            if not met:
                met.append(True)
                both.wait()
                recorded(other())

        return doing

    one = Block(meet(lambda: other))
    other = Block(meet(lambda: one))
    waits = [start(partial(recorded, model)) for model in (one, other)]
    ended: list[Any] = []
    for wait in waits:
        try:
            ended.append(wait().total_flops)
        except InputError as error:
            ended.append(type(error))
    assert sorted(map(str, ended)) == sorted(map(str, [LINEAR, InputError]))
    assert_bare(one, other)


def test_an_error_lets_the_next_count_go_on() -> None:
    def fail(x: torch.Tensor) -> None:
        raise ValueError("no")

    model = Block(fail)
    for way in ("count", "record", "analyze"):
        with pytest.raises(fxflops.RunError):
            WAYS[way](model)
    DOING[model.linear] = lambda x: None
    assert [start(partial(WAYS[way], model))().total_flops for way in WAYS] == [LINEAR] * len(WAYS)
    assert_bare(model)


def test_torchinfos_summaries_at_once() -> None:
    model = chain()
    wanted = str(torchinfo.summary(model, input_data=X, verbose=0))
    found = at_once(*[lambda: str(torchinfo.summary(model, input_data=X, verbose=0))] * 3)
    assert found == [wanted] * 3
    assert_bare(model)


@pytest.mark.parametrize("way", ["count", "record", "profile"])
def test_the_compilers_stance_is_put_back_after_the_last_has_ended(way: str) -> None:
    """The stance is global to all threads. Here the count that starts first also ends first."""
    import torch._dynamo

    begun, ended, stances = threading.Event(), threading.Event(), []

    def second(x: torch.Tensor) -> None:
        begun.set()
        assert ended.wait(SECONDS)
        stances.append(torch._dynamo.eval_frame._stance.stance)

    before = torch._dynamo.eval_frame._stance
    models = Block(lambda x: begun.wait(SECONDS)), Block(second)
    waits = [start(partial(WAYS[way], model)) for model in models]
    assert waits[0]().total_flops == LINEAR
    ended.set()
    assert waits[1]().total_flops == LINEAR
    assert torch._dynamo.eval_frame._stance == before
    assert stances[0] == "force_eager"


class Writing(nn.Module):
    """Counts its runs in an attribute, a list and a buffer, grows a cache, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.seen = 0, list[int]()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        self.seen.append(self.runs)
        self.steps += 1
        self.cache = torch.cat([x, *([self.cache] if hasattr(self, "cache") else [])])
        for _ in range(self.runs):
            x = self.linear(F.dropout(self.norm(x), 0.5))
        return x


def test_many_at_once() -> None:
    """Several models, each counted by several threads in several ways, while others are profiled."""
    writing, shared = Writing(), chain(3)
    jobs: list[Callable[[], fxflops.Report]] = [
        partial(count, writing, X, mode="train"),
        partial(analyze, writing, X, mode="train", repeats=1, progress=False),
        partial(count, writing, X, mode="eval", backward=True),
        partial(count, nn.Sequential(writing, shared), X, mode="train"),
        partial(count, shared, X, backward=True, optimizer=torch.optim.SGD),
        partial(analyzed, shared),
        partial(profiled, shared),
        partial(profiled, conv().eval()),
    ]
    wanted = [facts_of(job()) for job in jobs]
    before = {name: value.clone() for name, value in writing.state_dict().items()}
    for _ in range(10):
        assert [*map(facts_of, at_once(*jobs))] == wanted
    assert_bare(writing, shared)
    assert (writing.runs, writing.seen, hasattr(writing, "cache")) == (0, [], False)
    assert all(torch.equal(value, before[name]) for name, value in writing.state_dict().items())
    assert all(parameter.grad is None for model in (writing, shared) for parameter in model.parameters())


@pytest.mark.parametrize("last", [0, 1])
def test_the_random_generators_are_as_before_the_first(last: int) -> None:
    """The second count starts after the first has drawn. Whichever ends last restores the state from before both."""
    drawn, begun, ended = threading.Event(), threading.Event(), threading.Event()
    waits: list[Callable[[], Any]] = []

    def first(x: torch.Tensor) -> None:
        torch.randint(9, (3,))
        drawn.set()
        assert (begun if last else ended).wait(SECONDS)

    def second(x: torch.Tensor) -> None:
        begun.set()
        assert not last or ended.wait(SECONDS)

    models = Block(first), Block(second)
    before = torch.get_rng_state()
    waits.append(start(partial(recorded, models[0])))
    assert drawn.wait(SECONDS)
    waits.append(start(partial(recorded, models[1])))
    waits[1 - last]()
    ended.set()
    waits[last]()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("read", [Inventory, has_tensor_attributes, settings_of])
def test_attributes_that_another_thread_sets_meanwhile(read: Callable[[nn.Module], Any]) -> None:
    """Counts temporarily set attributes on modules. Reading a module's attributes at the same time must not fail."""
    module, done = nn.Linear(WIDTH, WIDTH), threading.Event()

    def change() -> None:
        while not done.is_set():
            vars(module)["_set"] = None
            del vars(module)["_set"]

    wait = start(change)
    try:
        for _ in range(2000):
            read(module)
    finally:
        done.set()
    wait()


def test_runs_that_end_while_others_are_in_their_hooks() -> None:
    """Another thread may call a run's hooks after the run is over. The hooks must then record nothing."""
    for _ in range(40):
        model = chain(2)
        reports = at_once(*[partial(profiled, model)] * 4)
        assert {report.total_flops for report in reports} == {2 * LINEAR}
        assert_bare(model)
