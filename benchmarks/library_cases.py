"""Training and sampling with other libraries' classes, for ``benchmarks/libraries.py``. Nothing here uses fxflops.

Each case is a function that returns a :class:`Case`. Its step draws its own inputs from the global generators.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Case(NamedTuple):
    """A step, the model that it calls, and the objects that it changes: optimizers, metrics, whole trainers.

    ``optimizer`` and ``inputs`` are passed to ``count``. They are None if the step does more than call the model once.
    """

    model: nn.Module
    step: Callable[[], Any]
    changes: tuple[Any, ...] = ()
    optimizer: Any = None
    inputs: Callable[[], Any] | None = None


Make = Callable[[], Case]
CASES: dict[str, tuple[Make, tuple[str, ...]]] = {}
"""By name: the function that makes the case, and the packages that it needs."""


def case(name: str, *needs: str) -> Callable[[Make], Make]:
    def registered(make: Make) -> Make:
        CASES[name] = make, needs
        return make

    return registered


def mlp(width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 8))


def x16() -> torch.Tensor:
    return torch.randn(12, 16)


def training(
    model: nn.Module,
    optimizer: Any,
    inputs: Callable[[], Any] = x16,
    *changes: Any,
    closure: bool = False,
    create_graph: bool = False,
) -> Case:
    """Return a case with an ordinary training step. ``create_graph`` is for optimizers that take second derivatives."""

    def loss_of() -> torch.Tensor:
        optimizer.zero_grad()
        out = model(inputs())
        loss = (out if isinstance(out, torch.Tensor) else out[0]).square().mean()
        loss.backward(create_graph=create_graph)
        return loss.detach() if create_graph else loss

    def step() -> Any:
        if closure:
            return optimizer.step(loss_of)
        loss = loss_of()
        optimizer.step()
        return loss

    if create_graph:  # count() takes no second derivatives, so it would not match the step
        return Case(model, step, (optimizer, *changes))
    return Case(model, step, (optimizer, *changes), None if closure else optimizer, inputs)


# accelerate, peft, timm: in the test extra


@case("accelerate: prepared AdamW, schedule and clipping", "accelerate")
def accelerate_prepared() -> Case:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2))

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x16()).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    return Case(model, step, (optimizer.optimizer, schedule.scheduler), optimizer, x16)


@case("accelerate: SGD, accumulating 2 steps", "accelerate")
def accelerate_accumulating() -> Case:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def step() -> Any:
        for _ in range(2):
            with accelerator.accumulate(model):
                loss = model(x16()).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss

    return Case(model, step, (optimizer.optimizer,), optimizer, x16)


@case("accelerate: offloaded to CPU", "accelerate")
def accelerate_offloaded() -> Case:
    from accelerate import cpu_offload

    model = mlp().eval()
    cpu_offload(model, torch.device("cpu"))
    return Case(model, torch.no_grad()(lambda: model(x16())), (), None, x16)


@case("accelerate: offloaded to disk", "accelerate")
def accelerate_on_disk() -> Case:
    from accelerate import disk_offload

    model = mlp().eval()
    disk_offload(model, tempfile.mkdtemp(), torch.device("cpu"))
    return Case(model, torch.no_grad()(lambda: model(x16())), (), None, x16)


def adapted(kind: str, **settings: Any) -> Case:
    import peft

    model = peft.get_peft_model(mlp(), getattr(peft, kind)(target_modules=["0", "3"], **settings))
    return training(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1))


for kind, settings in {
    "LoraConfig": {"r": 4, "lora_dropout": 0.1},
    "IA3Config": {"feedforward_modules": ["3"]},
    "LoHaConfig": {"r": 2},
    "VeraConfig": {"r": 8},
    "OFTConfig": {"oft_block_size": 4},
}.items():
    CASES[f"peft: {kind}"] = functools.partial(adapted, kind, **settings), ("peft",)


def by_timm(name: str) -> Case:
    from timm.optim import create_optimizer_v2

    model = mlp()
    return training(model, create_optimizer_v2(model, opt=name, lr=0.01, weight_decay=0.05))


for name in (
    "adabelief", "adafactor", "adafactorbv", "adamp", "adan", "adopt", "cautious_adamw", "cadamw", "kron",
    "lamb", "laprop", "lars", "lion", "lookahead_adamw", "lookahead_sgd", "madgrad", "mars", "muon", "nadamw",
    "radamw", "rmsproptf", "sgdp", "sgdw",
):  # fmt: skip
    CASES[f"timm: {name}"] = functools.partial(by_timm, name), ("timm",)


@case("timm: a ResNet, EMA and Lookahead", "timm")
def timm_model() -> Case:
    import timm
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    model = timm.create_model("resnet10t", num_classes=10)
    ema = ModelEmaV3(model)
    optimizer = create_optimizer_v2(model, opt="lookahead_adamw", lr=0.01)
    plain = training(model, optimizer, lambda: torch.randn(2, 3, 64, 64))

    def step() -> Any:
        loss = plain.step()
        ema.update(model)
        return loss

    return plain._replace(step=step, changes=(optimizer, ema))


# torch's own


@case("torch: ZeroRedundancyOptimizer of Adam", "torch")
def zero() -> Case:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = mlp()
    return training(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1))


@case("torch: LBFGS", "torch")
def lbfgs() -> Case:
    model = mlp()
    fixed = x16()
    return training(model, torch.optim.LBFGS(model.parameters(), max_iter=3), lambda: fixed, closure=True)


@case("torch: SWA and OneCycleLR", "torch")
def swa() -> Case:
    from torch.optim.swa_utils import AveragedModel

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    averaged, plain = AveragedModel(model), training(model, optimizer)

    def step() -> Any:
        loss = plain.step()
        schedule.step()
        averaged.update_parameters(model)
        return loss

    return plain._replace(step=step, changes=(optimizer, averaged))


class SAM(torch.optim.Optimizer):
    """The common implementation of SAM, by davda54. It shares its param_groups with the optimizer that it wraps."""

    def __init__(self, params: Any, base_optimizer: Any, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for group in self.param_groups for p in group["params"]]), p=2)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)).to(p))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "Sharpness Aware Minimization requires closure, but it was not provided"
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()


@case("SAM of SGD, as it is usually written", "torch")
def sam() -> Case:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def loss_of() -> torch.Tensor:
        loss = model(x16()).square().mean()
        loss.backward()
        return loss

    def step() -> Any:
        loss = loss_of()
        optimizer.step(loss_of)
        return loss

    return Case(model, step, (optimizer,))


# Others


@case("torchmetrics: metrics in the model", "torchmetrics")
def metrics() -> Case:
    import torchmetrics as tm

    class Measured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.metrics = tm.MetricCollection([
                tm.classification.MulticlassAccuracy(8), tm.classification.MulticlassF1Score(8)
            ])  # fmt: skip
            self.error = tm.MeanSquaredError()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.body(x)
            self.metrics(out.detach(), torch.arange(len(x)) % 8)
            self.error(out.detach(), torch.zeros_like(out))
            return out

    model = Measured()
    return training(model, torch.optim.Adam(model.parameters()))


@case("Lightning: a fit with torchmetrics", "lightning", "torchmetrics")
def lightning() -> Case:
    import lightning as L
    import torchmetrics as tm

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.accuracy = tm.classification.MulticlassAccuracy(8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x)

        def training_step(self, batch: Any, index: int) -> Any:
            out = self(batch[0])
            self.accuracy(out.detach(), batch[1])
            self.log("accuracy", self.accuracy)
            return nn.functional.cross_entropy(out, batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    model = Module()

    def step() -> Any:
        data = torch.utils.data.TensorDataset(torch.randn(24, 16), torch.randint(8, (24,)))
        trainer = L.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=12))
        return trainer.callback_metrics["accuracy"]

    return Case(model, step)


@case("fastai: a Learner's fit", "fastai")
def fastai() -> Case:
    from fastai.basics import DataLoaders, Learner

    model = mlp()

    def step() -> Any:
        data = torch.utils.data.TensorDataset(torch.randn(24, 16), torch.randn(24, 8))
        loader = torch.utils.data.DataLoader(data, batch_size=12)
        learner = Learner(DataLoaders(loader, loader), model, loss_func=nn.functional.mse_loss, cbs=[])
        with learner.no_logging():
            learner.fit(1, 0.1)
        return learner.recorder.values[-1][0]

    return Case(model, step)


@case("fastai: its Adam", "fastai")
def fastai_adam() -> Case:
    from fastai.optimizer import Adam

    model = mlp()
    return training(model, Adam([*model.parameters()], lr=0.1))


def by_torchao(name: str) -> Case:
    from torchao import optim

    model = mlp(512)
    return training(model, getattr(optim, name)(model.parameters(), lr=0.01))


for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8", "Adam8bit"):
    CASES[f"torchao: {name}"] = functools.partial(by_torchao, name), ("torchao",)


@case("torchao: int8 weights", "torchao")
def torchao_int8() -> Case:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = mlp().eval()
    quantize_(model, Int8WeightOnlyConfig())
    return Case(model, torch.no_grad()(lambda: model(x16())), (), None, x16)


def by_pytorch_optimizer(name: str) -> Case:
    import pytorch_optimizer

    model = mlp()
    settings = {"num_iterations": 100} if name == "ranger21" else {}
    optimizer = pytorch_optimizer.load_optimizer(name)(model.parameters(), lr=0.01, **settings)
    return training(model, optimizer, create_graph=name == "sophiah")


for name in ("adai", "adalite", "adanorm", "adashift", "apollo", "came", "grams", "lion", "nadam", "padam", "prodigy", "radam",
             "ranger21", "scalableshampoo", "shampoo", "sophiah", "soap", "tiger", "yogi"):  # fmt: skip
    CASES[f"pytorch_optimizer: {name}"] = functools.partial(by_pytorch_optimizer, name), ("pytorch_optimizer",)


@case("pytorch_optimizer: Lookahead of AdamW", "pytorch_optimizer")
def pytorch_optimizer_lookahead() -> Case:
    from pytorch_optimizer import Lookahead

    model = mlp()
    return training(model, Lookahead(torch.optim.AdamW(model.parameters(), lr=0.01), k=2))


@case("pytorch_optimizer: ScheduleFreeWrapper", "pytorch_optimizer")
def pytorch_optimizer_schedule_free() -> Case:
    from pytorch_optimizer import ScheduleFreeWrapper

    model = mlp()
    optimizer = ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.01), momentum=0.9)
    optimizer.train()
    return training(model, optimizer)


def by_torch_optimizer(name: str) -> Case:
    import torch_optimizer

    model = mlp()
    return training(model, getattr(torch_optimizer, name)(model.parameters(), lr=0.01))


for name in ("A2GradExp", "AdaBound", "AdaMod", "AggMo", "DiffGrad", "Lamb", "NovoGrad", "PID", "QHAdam", "Ranger", "Shampoo",
             "SWATS", "Yogi"):  # fmt: skip
    CASES[f"torch_optimizer: {name}"] = functools.partial(by_torch_optimizer, name), ("torch_optimizer",)


@case("torch_optimizer: Lookahead of Yogi", "torch_optimizer")
def torch_optimizer_lookahead() -> Case:
    import torch_optimizer

    model = mlp()
    return training(model, torch_optimizer.Lookahead(torch_optimizer.Yogi(model.parameters(), lr=0.01), k=2))


def by_class(module: str, name: str, **settings: Any) -> Case:
    import importlib

    model = mlp()
    optimizer = getattr(importlib.import_module(module), name)(model.parameters(), **settings)
    if hasattr(optimizer, "train"):
        optimizer.train()
    return training(model, optimizer)


for library, module, name, settings in (
    ("schedulefree", "schedulefree", "AdamWScheduleFree", {"lr": 0.01}),
    ("schedulefree", "schedulefree", "SGDScheduleFree", {"lr": 0.01}),
    ("prodigyopt", "prodigyopt", "Prodigy", {}),
    ("lion_pytorch", "lion_pytorch", "Lion", {"lr": 0.01}),
    ("came_pytorch", "came_pytorch", "CAME", {"lr": 0.01}),
    ("adabelief_pytorch", "adabelief_pytorch", "AdaBelief", {"lr": 0.01, "print_change_log": False}),
    ("galore_torch", "galore_torch", "GaLoreAdamW", {"lr": 0.01}),
    ("bitsandbytes", "bitsandbytes.optim", "AdamW", {"lr": 0.01}),
    ("bitsandbytes", "bitsandbytes.optim", "AdamW8bit", {"lr": 0.01, "min_8bit_size": 16}),
):
    CASES[f"{library}: {name}"] = functools.partial(by_class, module, name, **settings), (library,)


def sampled(scheduler: str) -> Case:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    steps = getattr(diffusers, scheduler)()

    @torch.no_grad()
    def step() -> Any:
        steps.set_timesteps(2)
        x = torch.randn(1, 3, 16, 16)
        for t in steps.timesteps:
            x = steps.step(model(x, t).sample, t, x).prev_sample
        return x

    return Case(model, step, (steps,))


for scheduler in ("DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"):
    CASES[f"diffusers: UNet2DModel, {scheduler}"] = functools.partial(sampled, scheduler), ("diffusers",)


@case("torch_geometric: GCN and GAT", "torch_geometric")
def geometric() -> Case:
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = GCNConv(16, 8), GATConv(8, 4, heads=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            edges = torch.stack([torch.arange(11), torch.arange(1, 12)])
            return self.b(self.a(x, edges).relu(), edges)

    model = Net()
    return training(model, torch.optim.Adam(model.parameters()))


@case("MONAI: UNet with Dice loss", "monai")
def monai() -> Case:
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet

    model = UNet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    loss_of, optimizer = DiceLoss(to_onehot_y=True, softmax=True), torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(2, 1, 32, 32)), torch.randint(2, (2, 1, 32, 32)))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,), optimizer, lambda: torch.randn(2, 1, 32, 32))


@case("pyro: SVI of a Bayesian regression", "pyro-ppl")
def pyro() -> Case:
    import pyro as p
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample
    from pyro.optim import Adam

    p.clear_param_store()

    class Model(PyroModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = PyroModule[nn.Linear](16, 1)
            self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 16]).to_event(2))

        def forward(self, x: torch.Tensor, y: Any = None) -> Any:
            mean = self.linear(x).squeeze(-1)
            with p.plate("data", len(x)):
                p.sample("obs", dist.Normal(mean, 0.1), obs=y)
            return mean

    model = Model()
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO())
    return Case(nn.ModuleList([model, guide]), lambda: torch.tensor(svi.step(torch.randn(12, 16), torch.randn(12))))


@case("torchsde: an adjoint-free solve", "torchsde")
def sde() -> Case:
    import torchsde

    class SDE(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = nn.Linear(4, 4), nn.Linear(4, 4)

        def f(self, t: Any, y: torch.Tensor) -> Any:
            return self.drift(y)

        def g(self, t: Any, y: torch.Tensor) -> Any:
            return self.diffusion(y).sigmoid()

    model = SDE()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        loss = torchsde.sdeint(model, torch.randn(3, 4), torch.linspace(0, 1, 3), dt=0.25).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,))


@case("torchdiffeq: odeint by RK4", "torchdiffeq")
def ode() -> Case:
    from torchdiffeq import odeint

    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return odeint(lambda t, y: self.field(y).tanh(), x, torch.linspace(0, 1, 4), method="rk4")[-1]

    model = Solved()
    return training(model, torch.optim.Adam(model.parameters()))


@case("tensordict: a TensorDictModule", "tensordict")
def tensordict() -> Case:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    model = TensorDictSequential(
        TensorDictModule(nn.Linear(16, 8), in_keys=["x"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(8, 4), in_keys=["hidden"], out_keys=["y"]),
    )
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(TensorDict({"x": x16()}, batch_size=[12]))["y"].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,))


@case("gpytorch: an exact GP", "gpytorch")
def gp() -> Case:
    import gpytorch

    class GP(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = torch.rand(20, 2), torch.rand(20)
    model = GP(x, y, gpytorch.likelihoods.GaussianLikelihood())
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def step() -> Any:
        optimizer.zero_grad()
        loss = -likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,))


@case("kornia: augmentation and a network", "kornia")
def kornia() -> Case:
    from kornia import augmentation as A

    model = nn.Sequential(A.RandomHorizontalFlip(), A.ColorJitter(0.1, 0.1, 0.1, 0.1), nn.Conv2d(3, 4, 3), nn.Flatten())
    return training(model, torch.optim.Adam(model.parameters()), lambda: torch.rand(2, 3, 16, 16))


@case("open_clip: ViT and text", "open_clip_torch")
def clip() -> Case:
    import open_clip

    model = open_clip.CLIP(
        32, open_clip.CLIPVisionCfg(layers=2, width=64, head_width=32, patch_size=8, image_size=32),
        open_clip.CLIPTextCfg(context_length=8, vocab_size=64, width=32, heads=2, layers=2),
    )  # fmt: skip
    optimizer, loss_of = torch.optim.AdamW(model.parameters()), open_clip.ClipLoss()

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(*model(torch.randn(4, 3, 32, 32), torch.randint(64, (4, 8))))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,), optimizer, lambda: (torch.randn(4, 3, 32, 32), torch.randint(64, (4, 8))))


@case("segmentation_models_pytorch: Unet", "segmentation_models_pytorch")
def smp() -> Case:
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 8))
    return training(model, torch.optim.Adam(model.parameters()), lambda: torch.randn(2, 3, 32, 32))


@case("e3nn: a tensor product", "e3nn")
def equivariant() -> Case:
    from e3nn import o3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("4x0e + 4x1o", "4x0e + 4x1o", "4x0e + 2x1o")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.product(x, x)

    model = Net()
    return training(model, torch.optim.Adam(model.parameters()))


@case("lightly: SimCLR's head and loss", "lightly")
def simclr() -> Case:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    model = nn.Sequential(nn.Linear(16, 32), SimCLRProjectionHead(32, 32, 8))
    optimizer, loss_of = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), NTXentLoss(memory_bank_size=(16, 8))

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(x16()), model(x16()))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer, loss_of))


@case("speechbrain: ECAPA-TDNN", "speechbrain")
def speech() -> Case:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    model = ECAPA_TDNN(8, lin_neurons=16, channels=[16] * 5, attention_channels=8)
    return training(model, torch.optim.Adam(model.parameters()), lambda: torch.randn(2, 30, 8))


@case("x_transformers: a decoder", "x_transformers")
def x_transformers() -> Case:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    model = AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=32, max_seq_len=16, attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
        )
    )
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(torch.randint(32, (2, 12)))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,))


@case("vector_quantize_pytorch: VQ with EMA codes", "vector_quantize_pytorch")
def quantize() -> Case:
    from vector_quantize_pytorch import VectorQuantize

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.codes = nn.Linear(16, 8), VectorQuantize(dim=8, codebook_size=16)

        def forward(self, x: torch.Tensor) -> Any:
            out, _, loss = self.codes(self.body(x)[None])
            return out + loss

    model = Net()
    return training(model, torch.optim.Adam(model.parameters()))


@case("pytorch_metric_learning: a miner and a loss", "pytorch_metric_learning")
def metric_learning() -> Case:
    from pytorch_metric_learning import losses, miners

    model, loss_of, mine = mlp(), losses.TripletMarginLoss(), miners.MultiSimilarityMiner()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Any:
        optimizer.zero_grad()
        out, labels = model(x16()), torch.arange(12) % 3
        loss = loss_of(out, labels, mine(out, labels))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step, (optimizer,), optimizer, x16)


@case("opacus: private SGD", "opacus")
def private() -> Case:
    from opacus import PrivacyEngine

    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 16)), batch_size=12)
    model, optimizer, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), data_loader=data, noise_multiplier=1.0,
        max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip

    def inputs() -> torch.Tensor:
        optimizer.zero_grad()  # it rejects gradients that it has already used, in a count too
        return x16()

    return training(model, optimizer, inputs)


@case("ema_pytorch: EMA of a model", "ema_pytorch")
def ema() -> Case:
    from ema_pytorch import EMA

    model = mlp()
    plain, average = (
        training(model, torch.optim.Adam(model.parameters())),
        EMA(model, update_after_step=1, update_every=1),
    )

    def step() -> Any:
        loss = plain.step()
        average.update()
        return loss

    return plain._replace(step=step, changes=(*plain.changes, average))


@case("captum: integrated gradients", "captum")
def attribution() -> Case:
    from captum.attr import IntegratedGradients

    model = mlp().eval()
    explained = IntegratedGradients(model)
    return Case(model, lambda: explained.attribute(x16(), target=1, n_steps=4))


@case("skorch: a partial fit", "skorch")
def skorch() -> Case:
    from skorch import NeuralNetRegressor

    net = NeuralNetRegressor(
        mlp(), train_split=None, verbose=0, max_epochs=1, batch_size=12, optimizer=torch.optim.Adam
    )
    net.initialize()

    def step() -> Any:
        net.partial_fit(torch.randn(24, 16), torch.randn(24, 8))
        return torch.tensor(net.history[-1, "train_loss"])

    return Case(net.module_, step, (net.optimizer_,))


@case("neuraloperator: FNO", "neuraloperator")
def fno() -> Case:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    return training(model, torch.optim.Adam(model.parameters()), lambda: torch.randn(2, 1, 16, 16))


@case("transformers: Trainer", "transformers", "accelerate")
def trainer() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    os.environ["WANDB_DISABLED"] = "true"
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))

    def step() -> Any:
        rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (4, 12))]
        arguments = TrainingArguments(
            tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        return torch.tensor(Trainer(model, arguments, train_dataset=rows).train().training_loss)

    return Case(model, step)
