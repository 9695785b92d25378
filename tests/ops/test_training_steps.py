"""Training steps dispatch no unknown operator, and a gradient formula's parameters are those of its operator."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fxflops.ops import BASE, apply
from fxflops.records import Cost, Operation
from fxflops.records.tensors import spec_of

aten = torch.ops.aten


class Counting(TorchDispatchMode):
    """Add up the cost of every dispatched operator, and collect the operators that no formula knows."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self.total = Cost()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        entry = BASE.find(func)
        if entry is None:
            self.unknown.add(str(func))
        else:
            ran = Operation(entry.op, func, spec_of(args), spec_of(kwargs or {}), spec_of(out))
            self.total = self.total.plus(apply(entry, ran))
        return out


@pytest.fixture
def there(device: str) -> Iterator[str]:
    """Run on this device, with tensors and layers made there too. Other devices dispatch other operators."""
    if device == "cpu":
        yield device
        return
    with torch.device(device):
        yield device


def step(loss: Callable[[], torch.Tensor]) -> Cost:
    """Return the cost of everything a loss and its gradients dispatch; every operator must be known."""
    with Counting() as counting:
        loss().backward()
    assert counting.unknown == set()
    return counting.total


def image(channels: int = 3, size: int = 8) -> torch.Tensor:
    return torch.randn(2, channels, size, size, requires_grad=True)


def cnn(norm: Callable[[int], nn.Module], activation: nn.Module, **options: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, **options), norm(8), activation, nn.Conv2d(8, 4, 3), nn.Flatten()
    )


CNNS = {
    "batch_norm": cnn(nn.BatchNorm2d, nn.ReLU()),
    "frozen_batch_norm": cnn(lambda c: nn.BatchNorm2d(c).eval(), nn.ReLU6()),
    "group_norm": cnn(lambda c: nn.GroupNorm(2, c), nn.GELU()),
    "instance_norm": cnn(lambda c: nn.InstanceNorm2d(c, affine=True), nn.SiLU(), padding_mode="reflect"),
    "local_response_norm": cnn(lambda c: nn.LocalResponseNorm(3), nn.Mish(), padding_mode="replicate"),
    "layer_norm": cnn(lambda c: nn.LayerNorm([c, 8, 8]), nn.Hardswish(), padding_mode="circular"),
    "rms_norm": cnn(lambda c: nn.RMSNorm([c, 8, 8]), nn.ELU(inplace=True), bias=False),
    "weight_norm": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.PReLU(), nn.Flatten()),
}


@pytest.mark.parametrize("name", CNNS)
def test_cnns(name: str, there: str) -> None:
    """Their multiply-accumulates equal FlopCounterMode's."""
    x, model = image(), copy.deepcopy(CNNS[name]).to(there)
    total = step(lambda: model(x).square().mean())
    with FlopCounterMode(display=False) as counter:
        model(x).square().mean().backward()
    assert total.macs == counter.get_total_flops() // 2


POOLS: dict[str, nn.Module] = {
    "max": nn.MaxPool2d(2),
    "average": nn.AvgPool2d(3, 1),
    "adaptive": nn.AdaptiveAvgPool2d(3),
    "global": nn.AdaptiveAvgPool2d(1),
    "adaptive_max": nn.AdaptiveMaxPool2d(3),
    "fractional": nn.FractionalMaxPool2d(2, output_size=3),
    "norm": nn.LPPool2d(2, 2),
    "depthwise": nn.Conv2d(3, 6, 3, groups=3),
    "transposed": nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1),
    "unfold": nn.Sequential(nn.Unfold(3), nn.Fold(8, 3)),
    "shuffle": nn.Sequential(nn.PixelUnshuffle(2), nn.PixelShuffle(2)),
    "dropout": nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout()),
    **{f"pad_{kind}": getattr(nn, f"{kind}Pad2d")(1) for kind in ("Zero", "Reflection", "Replication", "Circular")},
    **{mode: nn.Upsample(scale_factor=2, mode=mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")},
}


@pytest.mark.parametrize("name", POOLS)
def test_layers_of_images(name: str, there: str) -> None:
    x, layer = image(), copy.deepcopy(POOLS[name]).to(there)
    assert step(lambda: layer(x).sum()).flops > 0


ACTIVATIONS = """
    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU RReLU ReLU ReLU6
    SELU SiLU Sigmoid Softmax Softmin Softplus Softshrink Softsign Tanh Tanhshrink
""".split()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    module = getattr(nn, name)(**({"dim": 1} if name in ("LogSoftmax", "Softmax", "Softmin") else {}))
    x = torch.randn(3, 4, requires_grad=True)
    assert step(lambda: module(x).sum()).flops > 0


def test_resampling_by_places(there: str) -> None:
    x, theta = image(), torch.randn(2, 2, 3, requires_grad=True)
    for mode in ("bilinear", "nearest", "bicubic"):
        step(
            lambda mode=mode: F.grid_sample(
                x, F.affine_grid(theta, [2, 3, 4, 4], False), mode, align_corners=False
            ).sum()
        )
    step(lambda: F.interpolate(x, (3, 3), mode="bilinear", antialias=True).sum())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.up = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(8, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.down(x))
        low = self.middle(F.max_pool2d(skip, 2))
        return self.up(torch.cat([skip, F.interpolate(low, scale_factor=2, mode="bilinear")], 1))


def test_a_unet(there: str) -> None:
    x, target = image(), torch.randint(2, (2, 8, 8))
    model = UNet()
    total = step(lambda: F.cross_entropy(model(x), target))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(x), target).backward()
    assert total.macs == counter.get_total_flops() // 2


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "dropout": 0.1}])
def test_recurrent_layers(cls: Any, options: dict[str, Any], there: str) -> None:
    """The gradients of inputs and weights each take as many products as the forward: 3 steps of 2 sequences."""
    model, x = cls(5, 4, **options), torch.randn(3, 2, 5, requires_grad=True)
    state = torch.zeros(4 if options else 1, 2, 4, requires_grad=True)
    hx = (state, state) if cls is nn.LSTM else state
    weights = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
    assert step(lambda: model(x, hx)[0].sum()).macs == 3 * (3 * 2) * weights
    with torch.device("cpu"):  # the lengths must be on the CPU
        packed = nn.utils.rnn.pack_sequence([torch.randn(3, 5), torch.randn(2, 5)]).to(there)
    step(lambda: model(packed)[0].data.sum())


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(cell: Any, there: str) -> None:
    model, x = cell(5, 4), torch.randn(2, 5)
    step(lambda: next(iter(model(x))).sum())


def test_transformers_of_torch(there: str) -> None:
    x = torch.randn(2, 5, 8, requires_grad=True)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    step(lambda: decoder(x, encoder(x)).sum())
    for causal in (False, True):
        step(lambda causal=causal: F.scaled_dot_product_attention(x, x, x, is_causal=causal).sum())


def test_embeddings(there: str) -> None:
    indices = torch.tensor([[1, 2, 2], [0, 3, 1]])
    step(lambda: nn.Embedding(5, 4, padding_idx=0, scale_grad_by_freq=True)(indices).sum())
    weights = torch.rand(2, 3, requires_grad=True)
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(5, 4, mode=mode)
        step(lambda bag=bag, mode=mode: bag(indices, per_sample_weights=weights if mode == "sum" else None).sum())


X, TARGET = torch.rand(3, 4), torch.rand(3, 4)
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2]), torch.rand(4), label_smoothing=0.1),
    "nll_loss2d": lambda x: F.nll_loss(x[..., None, None].log_softmax(1), torch.zeros(3, 1, 1, dtype=torch.long)),
    "mse_loss": lambda x: F.mse_loss(x, TARGET),
    "l1_loss": lambda x: F.l1_loss(x, TARGET),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, TARGET),
    "huber_loss": lambda x: F.huber_loss(x, TARGET, reduction="sum"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, TARGET, torch.rand(4)),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, TARGET),
    "kl_div": lambda x: F.kl_div(x.log_softmax(1), TARGET, reduction="batchmean"),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, TARGET),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, TARGET, torch.ones(3, 4)),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, TARGET.sign()),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2])),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, torch.zeros(3, 4, dtype=torch.long)),
    "multilabel_soft_margin_loss": lambda x: F.multilabel_soft_margin_loss(x, TARGET.round()),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x[0], x[1], torch.ones(4)),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, TARGET, 1 - TARGET),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, TARGET, torch.ones(3)),
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, torch.ones(3, 4)),
    "ctc_loss": lambda x: F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1, 2]]), [3], [2]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, there: str) -> None:
    x = X.clone().requires_grad_()
    assert step(lambda: LOSSES[name](x)).flops > 0


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x[0] + x[:, 1:3].sum() + x[[0, 2]].sum() + x[x > 0.5].sum(),
    "diagonal": lambda x: x.diagonal() + x.T.unfold(0, 2, 1).sum() + torch.as_strided(x, (2, 2), (1, 1)).sum(),
    "gather": lambda x: x.gather(1, torch.zeros(3, 4, dtype=torch.long)) + x.index_select(0, torch.tensor([0, 0, 1])),
    "scatter": lambda x: x.scatter_add(1, torch.zeros(3, 4, dtype=torch.long), x) + x.index_add(0, torch.tensor([0]), x[:1]),
    "masked": lambda x: x.masked_scatter(x > 0.5, x * 2) + x.masked_fill(x > 0.5, 1) + x.masked_select(x > 0.5).sum(),
    "sorted": lambda x: x.sort(1)[0] + x.topk(2)[0].sum() + x.max(1)[0].sum() + x.median() + x.cummax(1)[0] + x.kthvalue(2)[0].sum(),
    "cumulative": lambda x: x.cumsum(1) + x.cumprod(1) + x.logcumsumexp(1),
    "reduced": lambda x: x.std(1) + x.var() + x.norm(dim=1) + x.logsumexp(1) + x.prod(1) + x.amax(1) + x.mean(1),
    "distances": lambda x: torch.cdist(x, x, p=3.0).sum() + F.pdist(x) + torch.cdist(x, TARGET) + torch.cdist(x, TARGET, 1.0),
    "fourier": lambda x: torch.fft.rfft(x).abs() + torch.fft.fft2(x).abs().sum() + torch.fft.irfft(x * (1 + 1j)).square().sum(),
    "pointwise": lambda x: x.logit() + x.lerp(TARGET, 0.3) + x.clamp(0.1, 0.9) + x.atan2(TARGET) + x.pow(x) + x.sinc() + x.lgamma(),
    "solved": lambda x: torch.linalg.solve(x[:, :3] + 5 * torch.eye(3), x).sum() + torch.linalg.det(x[:, :3]),
    "decomposed": lambda x: torch.linalg.svdvals(x) + torch.linalg.qr(x)[1].sum() + torch.linalg.cholesky(x @ x.T + torch.eye(3)).sum(),
    "inverted": lambda x: torch.linalg.inv(x[:, :3] + 5 * torch.eye(3)) + torch.matrix_exp(x[:, :3]) + torch.linalg.eigh(x @ x.T)[0],
    "products": lambda x: torch.einsum("ij,kj->ik", x, x) + F.bilinear(x, x, torch.rand(3, 4, 4)) + torch.dot(x[0], x[1]),
    "segments": lambda x: torch.segment_reduce(x[0], "mean", lengths=torch.tensor([2, 2])),
    "quantized": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
    "rolled": lambda x: x.roll(1) + x.flip(0) + x.tril() + x.repeat(2, 1)[:3] + torch.cat([x, x])[:3] + x.T.contiguous().T,
    "sampled": lambda x: torch._standard_gamma(x + 1) + torch.distributions.Dirichlet(x + 1).rsample() + F.gumbel_softmax(x),
    "local": lambda x: F.cosine_similarity(x, TARGET).sum() + F.normalize(x) + F.pairwise_distance(x, TARGET).sum(),
    "checked": lambda x: torch.where(x > 0.5, x, TARGET) + torch.trace(x) + torch.trapezoid(x).sum() + x.renorm(2, 0, 0.5) + x.kron(x).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, there: str) -> None:
    x = X.clone().requires_grad_()
    step(lambda: FUNCTIONS[name](x).sum())


def test_vision_models(there: str) -> None:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "embed_dim": 12, "num_heads": 2}
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, **sizes)
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=12, depths=(2, 1), num_heads=(1, 2)
    )
    convnext = timm.create_model("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))
    x = torch.randn(1, 3, 32, 32)
    for model in (vit, swin, convnext):
        step(lambda model=model: model(x).logsumexp(1).sum())


def test_a_detector() -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    settings = {"weights": None, "weights_backbone": None, "num_classes": 3, "min_size": 64, "max_size": 64}
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(**settings)
    target = {"boxes": torch.tensor([[4.0, 4.0, 40.0, 40.0]]), "labels": torch.tensor([1])}
    step(lambda: sum(model([torch.rand(3, 64, 64)], [target]).values()))


def test_language_models(there: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    ids = torch.tensor([[1, 2, 3, 4]])
    configs = [
        transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8),
        transformers.LlamaConfig(**small, num_key_value_heads=1, pad_token_id=0),
        transformers.T5Config(
            vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        ),
    ]
    for config, auto in zip(configs, ("CausalLM", "CausalLM", "Seq2SeqLM"), strict=True):
        fused = config.model_type != "t5" or transformers.T5ForConditionalGeneration._supports_sdpa
        for kernel in ("sdpa", "eager") if fused else ("eager",):
            model = getattr(transformers, f"AutoModelFor{auto}").from_config(config, attn_implementation=kernel)
            step(lambda model=model: model(input_ids=ids, labels=ids).loss)
    bert = transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**small))
    step(lambda: bert(input_ids=ids, attention_mask=torch.tensor([[1, 1, 1, 0]]), labels=ids).loss)


RENAMED = {
    "input": ["self"],
    "output": ["out"],
    "grad_output": ["grad", "grad_in"],
    "save_invstd": ["save_var"],
    "train": ["update"],
}
GRADIENTS = {
    (key, entry.function)
    for key, entry in BASE.items()
    if isinstance(key, str) and "aten::" in key and entry.function is not None and entry.op.endswith("_backward")
}


def test_parameters_stand_where_the_operator_has_them() -> None:
    """Compare names with the schemas: most kernels of other devices do not run here, and each torch version lacks some operators."""
    compared, apart = 0, []
    for name, function in sorted(GRADIENTS, key=str):
        packet = getattr(aten, name.removeprefix("aten::"), None)
        if packet is None:
            continue
        schema = getattr(packet, next(form for form in packet.overloads() if "out" not in form))._schema
        given = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        parameters = inspect.signature(function).parameters.values()
        ours = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        compared += 1
        for mine, theirs in zip(ours, given, strict=False):
            if theirs not in (mine, *RENAMED.get(mine, ())):
                apart.append(f"{name}: {mine} of {function.__name__} stands where the operator has {theirs}")
    assert compared > 80
    assert apart == []
