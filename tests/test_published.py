"""Every number printed in the documentation of five other counters, except those that depend on the machine's speed."""

from __future__ import annotations

import io
import json
import re
from ast import literal_eval
from collections import Counter
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn

from compare import SimpleModel
from fxflops import Report, count
from fxflops.adapters import flops_profiler, flowflops, ptflops, pytorch_profiler, thop
from fxflops.adapters.fvcore import ActivationCountAnalysis, FlopCountAnalysis
from tests.test_compare import invoked

# torch_flops: its README, and its comparison of a model with one Linear


def test_torch_flops_readme() -> None:
    vit = timm.create_model("vit_base_patch16_224")
    for block in vit.blocks:
        block.attn.fused_attn = False
    x = torch.empty(1, 3, 224, 224)
    assert count(vit, x, convention="torch_flops").total_flops == 35_164_979_282
    assert count(timm.create_model("resnet50"), x, convention="torch_flops").total_flops == 8_227_340_288


THOP_PRINTED = """\
[INFO] Register count_linear() for <class 'torch.nn.modules.linear.Linear'>.
thop: 20 MACs
"""


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "linear_no_bias"])
@pytest.mark.parametrize("add_one", [False, True], ids=["", "add_one"])
def test_simple_model_by_thop(bias: bool, add_one: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = SimpleModel(bias, add_one), torch.randn(1, 5)
    macs, params = thop.profile(model, inputs=(x,))
    print(f"thop: {macs:.0f} MACs")
    assert capsys.readouterr().out == THOP_PRINTED
    assert params == (24 if bias else 20)
    report = count(model, x)
    assert report.recount("thop").total_flops == 20
    # "torchinfo is not compared here but it does not have this ability": torchinfo does count the bias, but not the +=.
    assert report.recount("torchinfo").total_flops == (24 if bias else 20)
    assert report.total_flops == (40 if bias else 36) + (4 if add_one else 0)


def test_a_matrix_by_a_vector_is_m_n_macs() -> None:
    m, n = 7, 9
    assert thop.profile(nn.Linear(n, m), inputs=(torch.randn(n),), verbose=False)[0] == m * n


PRINTED = {"torch_flops": 40, "torchanalyse": 40, "thop": 20, "ptflops": 24}
FLOPS = {tool: number for tool, number in PRINTED.items() if find_spec(tool)}
UNITS = {"torch_flops": "FLOPs", "torchanalyse": "FLOPs", "thop": "MACs", "ptflops": "MACs"}
PTFLOPS = """\
Warning: module SimpleModel is treated as a zero-op.
SimpleModel(
  24, 100.000% Params, 24.0 Mac, 100.000% MACs, 
  (layer): Linear(24, 100.000% Params, 24.0 Mac, 100.000% MACs, in_features=5, out_features=4, bias=True)
)
ptflops: 24 MACs
"""  # noqa: W291


@pytest.mark.parametrize("options", [(), ("--add_one",)])
def test_torch_flops_comparison(options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    ran = invoked(*options, "--tools", ",".join(FLOPS), "--json", str(file))
    assert ran.exit_code == 0, ran.stderr
    text = ran.stdout
    rows = {row["tool"]: row for row in json.loads(file.read_text())["rows"]}
    expected = {**FLOPS, "torch_flops": 44} if options else FLOPS
    assert {tool: row["number"] for tool, row in rows.items()} == expected
    assert {tool: row["fxflops"] for tool, row in rows.items()} == expected
    for tool, number in expected.items():
        assert f"\n{tool}: {number} {UNITS[tool]}\n" in text
    assert PTFLOPS in text
    assert "[INFO] Register count_linear() for <class 'torch.nn.modules.linear.Linear'>." in text
    assert ("<built-in function add>" in text) == bool(options)


# fvcore


class Addmm(nn.Linear):
    """A linear layer as torch traced it when the documentation was written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight.t())


class LeNet(nn.Module):
    """The network of torch's tutorials at that time, for 32 x 32 pixels."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2, self.fc3 = linear(16 * 6 * 6, 120), linear(120, 84), linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


@pytest.mark.parametrize(("linear", "op"), [(Addmm, "addmm"), (nn.Linear, "linear")])
def test_fvcores_documentation(linear: type[nn.Linear], op: str) -> None:
    flops = FlopCountAnalysis(LeNet(linear), torch.ones(1, 1, 32, 32))
    assert flops.total() == 274656
    assert flops.by_operator() == Counter({"conv": 194616, op: 80040})
    modules = {"conv1": 48600, "conv2": 146016, "fc1": 69120, "fc2": 10080, "fc3": 840}
    assert flops.by_module() == Counter({"": 274656, **modules})
    assert flops.by_module_and_operator() == {
        "": Counter({"conv": 194616, op: 80040}),
        **{name: Counter({"conv" if "conv" in name else op: modules[name]}) for name in modules},
    }


def test_resnet50() -> None:
    report = count(torchvision.models.resnet50(), torch.ones(1, 3, 224, 224), convention="fvcore")
    assert report.total_macs == 4_089_184_256
    assert report.total_flops == 4_111_512_576
    flops = {op: row.total.flops for op, row in report.by_operator().items() if row.total.flops}
    assert flops["conv"] + flops["linear"] == 4_089_184_256
    assert flops["batch_norm"] + flops["adaptive_avg_pool"] == 4_111_512_576 - 4_089_184_256


def test_the_operators_that_fvcore_skipped_then() -> None:
    """The skipped operators include the ones that fvcore counts today. Activations are still only those of contractions."""
    analysis = ActivationCountAnalysis(torchvision.models.resnet50().eval(), torch.ones(1, 3, 224, 224))
    analysis.unsupported_ops_warnings(False).total()
    assert analysis.unsupported_ops() == Counter(
        {"aten::batch_norm": 53, "aten::max_pool2d": 1, "aten::add_": 16, "aten::adaptive_avg_pool2d": 1}
    )


# flowflops, and ptflops next to torch_flops


FLOWFLOPS_TABLE = {
    "alexnet": ("61.1 M", "718.16 MMac", "718.16 MMac"),
    "vgg11": ("132.86 M", "7.63 GMac", "7.63 GMac"),
    "vgg11_bn": ("132.87 M", "7.64 GMac", "7.64 GMac"),
    "squeezenet1_0": ("1.25 M", "830.05 MMac", "830.05 MMac"),
    "squeezenet1_1": ("1.24 M", "355.86 MMac", "355.86 MMac"),
    "resnet18": ("11.69 M", "1.82 GMac", "1.82 GMac"),
    "resnet50": ("25.56 M", "4.12 GMac", "4.13 GMac"),
    "resnext50_32x4d": ("25.03 M", "4.27 GMac", "4.28 GMac"),
    "shufflenet_v2_x0_5": ("1.37 M", "43.65 MMac", "43.7 MMac"),
    "regnet_x_16gf": ("54.28 M", "16.01 GMac", "16.02 GMac"),
    "efficientnet_b0": ("5.29 M", "401.67 MMac", "410.35 MMac"),
    "densenet121": ("7.98 M", "2.88 GMac", "2.88 GMac"),
}
"""flowflops's table of flowvision's models: parameters, FLOPs in mode "eager", FLOPs in mode "graph"."""


def flowvisions(name: str) -> nn.Module:
    """The torchvision model that flowvision ported, with flowvision's changes, on meta if possible."""
    # A RegNet reads its widths from a tensor while it is built.
    reads_widths = name.startswith("regnet")
    with torch.device("cpu" if reads_widths else "meta"):
        model = torchvision.models.get_model(name)
    if name == "regnet_x_16gf":
        # flowvision's first convolution has no padding: its output is 111 x 111, not 112 x 112.
        model.stem[0].padding = (0, 0)
    return model


@pytest.mark.parametrize("name", FLOWFLOPS_TABLE)
def test_flowflops_table(name: str) -> None:
    # The table's AlexNet got 227 x 227 inputs: its first output is 56 x 56, not 55 x 55.
    size = 227 if name == "alexnet" else 224
    params, *flops = FLOWFLOPS_TABLE[name]
    model = flowvisions(name)
    for mode, expected in zip(("eager", "graph"), flops, strict=True):
        found = flowflops.get_model_complexity_info(model, (1, 3, size, size), print_per_layer_stat=False, mode=mode)
        assert found == (expected, params)


def test_the_entries_of_the_table_that_torchvisions_models_do_not_give_on_224() -> None:
    found = {
        (name, mode): flowflops.get_model_complexity_info(
            torchvision.models.get_model(name), (1, 3, 224, 224), print_per_layer_stat=False, mode=mode
        )[0]
        for name in ("alexnet", "regnet_x_16gf")
        for mode in ("eager", "graph")
    }
    assert found == {
        ("alexnet", "eager"): "715.56 MMac",  # printed: 718.16
        ("alexnet", "graph"): "715.56 MMac",  # printed: 718.16
        ("regnet_x_16gf", "eager"): "16.02 GMac",  # printed: 16.01
        ("regnet_x_16gf", "graph"): "16.02 GMac",
    }


def test_flowflops_example() -> None:
    model, dsize = torchvision.models.resnet50(), (1, 3, 224, 224)
    settings: dict[str, Any] = {"as_strings": False, "print_per_layer_stat": False}
    found = [flowflops.get_model_complexity_info(model, dsize, **settings, mode=mode) for mode in ("eager", "graph")]
    assert found == [(4121925096, 25557032), (4127444456, 25557032)]


def test_what_flowflops_says_of_resnet50() -> None:
    report = count(torchvision.models.resnet50(), torch.empty(1, 3, 224, 224), convention="flowflops_graph")
    assert report.total_flops - report.recount("flowflops_eager").total_flops == 5519360
    assert report.by_operator()["add"].total.flops == 5519360
    sums = [counted.call.out for counted in report.counted if counted.call.op == "add"]
    stages = ((1, 256, 56, 56), 3), ((1, 512, 28, 28), 4), ((1, 1024, 14, 14), 6), ((1, 2048, 7, 7), 3)
    assert sums == [shape for shape, blocks in stages for _ in range(blocks)]
    # Like fvcore at that time, without the four kinds of operators that it skipped.
    assert report.total_macs == 4089184256
    skipped = {op: report.by_operator()[op].calls for op in ("batch_norm", "max_pool", "add", "adaptive_avg_pool")}
    assert skipped == {"batch_norm": 53, "max_pool": 1, "add": 16, "adaptive_avg_pool": 1}


@pytest.mark.parametrize("add_one", [False, True])
def test_what_ptflops_says_of_the_simple_model(add_one: bool) -> None:
    printed = io.StringIO()
    macs, params = ptflops.get_model_complexity_info(
        SimpleModel(add_one=add_one), (5,), as_strings=False, print_per_layer_stat=True, verbose=True, ost=printed
    )
    assert (macs, params) == (24, 24)
    assert printed.getvalue() == (
        "Warning: module SimpleModel is treated as a zero-op.\n"
        "SimpleModel(\n"
        "  24, 100.000% Params, 24.0 Mac, 100.000% MACs, \n"
        "  (layer): Linear(24, 100.000% Params, 24.0 Mac, 100.000% MACs, in_features=5, out_features=4, bias=True)\n"
        ")\n"
    )
    assert count(SimpleModel(add_one=add_one), torch.empty(1, 5), convention="ptflops").total_flops == 24


# pytorch-profiler


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features = nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)
        self.feature_extractor = nn.Sequential(*features, nn.Conv2d(16, 120, 5), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.classifier(self.feature_extractor(x).flatten(1)), dim=1)


LENET5 = """\
LeNet5(
  61.71 k, 100.000% Params, 429.248 KMac, 100.000% MACs, <time>
  (feature_extractor): Sequential(
    50.69 k, 82.151% Params, 418.328 KMac, 97.456% MACs, <time>
    (0): Conv2d(156, 0.253% Params, 122.304 KMac, 28.493% MACs, <time> 1, 6, kernel_size=(5, 5), stride=(1, 1))
    (1): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (2): AvgPool2d(0, 0.000% Params, 4.704 KMac, 1.096% MACs, <time> kernel_size=2, stride=2, padding=0)
    (3): Conv2d(2.42 k, 3.915% Params, 241.6 KMac, 56.284% MACs, <time> 6, 16, kernel_size=(5, 5), stride=(1, 1))
    (4): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (5): AvgPool2d(0, 0.000% Params, 1.6 KMac, 0.373% MACs, <time> kernel_size=2, stride=2, padding=0)
    (6): Conv2d(48.12 k, 77.983% Params, 48.12 KMac, 11.210% MACs, <time> 16, 120, kernel_size=(5, 5), stride=(1, 1))
    (7): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
  )
  (classifier): Sequential(
    11.01 k, 17.849% Params, 10.92 KMac, 2.544% MACs, <time>
    (0): Linear(10.16 k, 16.472% Params, 10.08 KMac, 2.348% MACs, <time> in_features=120, out_features=84, bias=True)
    (1): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (2): Linear(850, 1.377% Params, 840 Mac, 0.196% MACs, <time> in_features=84, out_features=10, bias=True)
  )
)
Top 3 modules in flops at depth 2 are {'Conv2d': '412.02 KMac', 'Linear': '10.92 KMac', 'AvgPool2d': '6.3 KMac'}
Top 3 modules in params at depth 2 are {'Conv2d': '50.69 k', 'Linear': '11.01 k', 'Tanh': '0'}
Number of multiply-adds:        429.25 KMac
Number of parameters:           61.71 k
"""


def test_pytorch_profilers_lenet5(capsys: pytest.CaptureFixture[str]) -> None:
    macs, params = pytorch_profiler.get_model_profile(LeNet5(), (1, 32, 32), warm_up=1)
    print("{:<30}  {:<8}".format("Number of multiply-adds: ", macs))
    print("{:<30}  {:<8}".format("Number of parameters: ", params))
    printed = re.sub(r"[\d.e-]+ (s|ms|us), [\d.]+% time, [\d.]+ TFLOPS,", "<time>", capsys.readouterr().out)
    printed = re.sub(r" +$", "", re.sub(r"Top \d+ modules in time.*\n", "", printed), flags=re.MULTILINE)
    assert printed == LENET5


def test_pytorch_profilers_lenet5_as_a_convention() -> None:
    report = count(LeNet5(), torch.ones(1, 1, 32, 32), convention="pytorch_profiler")
    assert (report.total_flops, report.total_params) == (429_248, 61_706)


# flops-profiler


BERT_ROWS = """\
BertModel | 109.48 M 100.00%, 22.36 G 100.00%, 11.17 GMACs 100.00% | embedding: 0 0.00%, 0 MACs 0.00% | layer_norm: 12.29 M 0.05%, 0 MACs 0.00% | matmul: 603.98 M 2.70%, 301.99 MMACs 2.70% | softmax: 2.36 M 0.01%, 0 MACs 0.00% | linear: 21.74 G 97.23%, 10.87 GMACs 97.30%
embeddings | 23.84 M 21.77%, 491.52 K 0.00%, 0 MACs 0.00% | embedding: 0 0.00%, 0 MACs 0.00% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
embeddings.word_embeddings | 23.44 M 21.41%, 0 0.00%, 0 MACs 0.00% | embedding: 0 0.00%, 0 MACs 0.00%
embeddings.position_embeddings | 393.22 k 0.36%, 0 0.00%, 0 MACs 0.00% | embedding: 0 0.00%, 0 MACs 0.00%
embeddings.token_type_embeddings | 1.54 k 0.00%, 0 0.00%, 0 MACs 0.00% | embedding: 0 0.00%, 0 MACs 0.00%
embeddings.LayerNorm | 1.54 k 0.00%, 491.52 K 0.00%, 0 MACs 0.00% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
embeddings.dropout | 0 0.00%, 0 0.00%, 0 MACs 0.00%
encoder | 85.05 M 77.69%, 22.36 G 99.99%, 11.17 GMACs 99.99% | matmul: 603.98 M 2.70%, 301.99 MMACs 2.70% | softmax: 2.36 M 0.01%, 0 MACs 0.00% | linear: 21.74 G 97.23%, 10.87 GMACs 97.29% | layer_norm: 11.8 M 0.05%, 0 MACs 0.00%
encoder.layer | 85.05 M 77.69%, 22.36 G 99.99%, 11.17 GMACs 99.99% | matmul: 603.98 M 2.70%, 301.99 MMACs 2.70% | softmax: 2.36 M 0.01%, 0 MACs 0.00% | linear: 21.74 G 97.23%, 10.87 GMACs 97.29% | layer_norm: 11.8 M 0.05%, 0 MACs 0.00%
encoder.layer.0 | 7.09 M 6.47%, 1.86 G 8.33%, 931.14 MMACs 8.33% | matmul: 50.33 M 0.23%, 25.17 MMACs 0.23% | softmax: 196.61 K 0.00%, 0 MACs 0.00% | linear: 1.81 G 8.10%, 905.97 MMACs 8.11% | layer_norm: 983.04 K 0.00%, 0 MACs 0.00%
encoder.layer.0.attention | 2.36 M 2.16%, 655.0 M 2.93%, 327.16 MMACs 2.93% | matmul: 50.33 M 0.23%, 25.17 MMACs 0.23% | softmax: 196.61 K 0.00%, 0 MACs 0.00% | linear: 603.98 M 2.70%, 301.99 MMACs 2.70% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
encoder.layer.0.attention.self | 1.77 M 1.62%, 503.51 M 2.25%, 251.66 MMACs 2.25% | matmul: 50.33 M 0.23%, 25.17 MMACs 0.23% | softmax: 196.61 K 0.00%, 0 MACs 0.00% | linear: 452.98 M 2.03%, 226.49 MMACs 2.03%
encoder.layer.0.attention.self.query | 590.59 k 0.54%, 150.99 M 0.68%, 75.5 MMACs 0.68% | linear: 150.99 M 0.68%, 75.5 MMACs 0.68%
encoder.layer.0.attention.self.key | 590.59 k 0.54%, 150.99 M 0.68%, 75.5 MMACs 0.68% | linear: 150.99 M 0.68%, 75.5 MMACs 0.68%
encoder.layer.0.attention.self.value | 590.59 k 0.54%, 150.99 M 0.68%, 75.5 MMACs 0.68% | linear: 150.99 M 0.68%, 75.5 MMACs 0.68%
encoder.layer.0.attention.self.dropout | 0 0.00%, 0 0.00%, 0 MACs 0.00%
encoder.layer.0.attention.output | 592.13 k 0.54%, 151.49 M 0.68%, 75.5 MMACs 0.68% | linear: 150.99 M 0.68%, 75.5 MMACs 0.68% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
encoder.layer.0.attention.output.dense | 590.59 k 0.54%, 150.99 M 0.68%, 75.5 MMACs 0.68% | linear: 150.99 M 0.68%, 75.5 MMACs 0.68%
encoder.layer.0.attention.output.LayerNorm | 1.54 k 0.00%, 491.52 K 0.00%, 0 MACs 0.00% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
encoder.layer.0.attention.output.dropout | 0 0.00%, 0 0.00%, 0 MACs 0.00%
encoder.layer.0.intermediate | 2.36 M 2.16%, 603.98 M 2.70%, 301.99 MMACs 2.70% | linear: 603.98 M 2.70%, 301.99 MMACs 2.70%
encoder.layer.0.intermediate.dense | 2.36 M 2.16%, 603.98 M 2.70%, 301.99 MMACs 2.70% | linear: 603.98 M 2.70%, 301.99 MMACs 2.70%
encoder.layer.0.intermediate.intermediate_act_fn | 0 0.00%, 0 0.00%, 0 MACs 0.00%
encoder.layer.0.output | 2.36 M 2.16%, 604.47 M 2.70%, 301.99 MMACs 2.70% | linear: 603.98 M 2.70%, 301.99 MMACs 2.70% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
encoder.layer.0.output.dense | 2.36 M 2.16%, 603.98 M 2.70%, 301.99 MMACs 2.70% | linear: 603.98 M 2.70%, 301.99 MMACs 2.70%
encoder.layer.0.output.LayerNorm | 1.54 k 0.00%, 491.52 K 0.00%, 0 MACs 0.00% | layer_norm: 491.52 K 0.00%, 0 MACs 0.00%
encoder.layer.0.output.dropout | 0 0.00%, 0 0.00%, 0 MACs 0.00%
pooler | 590.59 k 0.54%, 1.18 M 0.01%, 589.82 KMACs 0.01% | linear: 1.18 M 0.01%, 589.82 KMACs 0.01%
pooler.dense | 590.59 k 0.54%, 1.18 M 0.01%, 589.82 KMACs 0.01% | linear: 1.18 M 0.01%, 589.82 KMACs 0.01%
pooler.activation | 0 0.00%, 0 0.00%, 0 MACs 0.00%
"""  # fmt: skip
"""The printed parameters, flops and macs of each module, with percentages, then the same for its functions."""

BERT_AGGREGATED = """\
Top 10 modules in terms of params, flops, MACs or duration at different model depths:
depth 0:
    params      - {'BertModel': '109.48 M'}
    flops       - {'BertModel': '22.36 G'}
    MACs        - {'BertModel': '11.17 GMACs'}
depth 1:
    params      - {'BertEncoder': '85.05 M', 'BertEmbeddings': '23.84 M', 'BertPooler': '590.59 k'}
    flops       - {'BertEncoder': '22.36 G', 'BertPooler': '1.18 M', 'BertEmbeddings': '491.52 K'}
    MACs        - {'BertEncoder': '11.17 GMACs', 'BertPooler': '589.82 KMACs', 'BertEmbeddings': '0 MACs'}
depth 2:
    params      - {'ModuleList': '85.05 M', 'Embedding': '23.84 M', 'Linear': '590.59 k', 'LayerNorm': '1.54 k', 'Dropout': '0', 'Tanh': '0'}
    flops       - {'ModuleList': '22.36 G', 'Linear': '1.18 M', 'LayerNorm': '491.52 K', 'Embedding': '0', 'Dropout': '0', 'Tanh': '0'}
    MACs        - {'ModuleList': '11.17 GMACs', 'Linear': '589.82 KMACs', 'Embedding': '0 MACs', 'LayerNorm': '0 MACs', 'Dropout': '0 MACs', 'Tanh': '0 MACs'}
depth 3:
    params      - {'BertLayer': '85.05 M'}
    flops       - {'BertLayer': '22.36 G'}
    MACs        - {'BertLayer': '11.17 GMACs'}
depth 4:
    params      - {'BertAttention': '28.37 M', 'BertIntermediate': '28.35 M', 'BertOutput': '28.34 M'}
    flops       - {'BertAttention': '7.86 G', 'BertOutput': '7.25 G', 'BertIntermediate': '7.25 G'}
    MACs        - {'BertAttention': '3.93 GMACs', 'BertIntermediate': '3.62 GMACs', 'BertOutput': '3.62 GMACs'}
depth 5:
    params      - {'Linear': '56.67 M', 'BertSelfAttention': '21.26 M', 'BertSelfOutput': '7.11 M', 'LayerNorm': '18.43 k', 'GELUActivation': '0', 'Dropout': '0'}
    flops       - {'Linear': '14.5 G', 'BertSelfAttention': '6.04 G', 'BertSelfOutput': '1.82 G', 'LayerNorm': '5.9 M', 'GELUActivation': '0', 'Dropout': '0'}
    MACs        - {'Linear': '7.25 GMACs', 'BertSelfAttention': '3.02 GMACs', 'BertSelfOutput': '905.97 MMACs', 'GELUActivation': '0 MACs', 'LayerNorm': '0 MACs', 'Dropout': '0 MACs'}
"""

BERT_SUMMARY = {
    "params per device": "109.48 M",
    "params of model = params per device * mp_size": "109.48 M",
    "fwd MACs per device": "11.17 GMACs",
    "fwd flops per device": "22.36 G",
    "fwd flops of model = fwd flops per device * mp_size": "22.36 G",
}

TOKENS = {"input_ids": torch.ones(1, 128, dtype=torch.long)}


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))


@pytest.fixture(scope="module")
def text(bert: nn.Module) -> str:
    """The printed profile of BERT."""
    with redirect_stdout(io.StringIO()) as out, torch.no_grad():
        numbers = flops_profiler.get_model_profile(bert, kwargs=TOKENS, warm_up=0, as_string=True)
    assert numbers == ("22.36 G", "11.17 GMACs", "109.48 M")
    return out.getvalue()


@pytest.fixture(scope="module")
def printed(text: str) -> dict[str, str]:
    """The printed rows by module path, in the format of BERT_ROWS."""
    rows, stack = {}, []
    for line in text.splitlines():
        start = re.match(r"( *)(?:\((\w+)\): )?(\w+)\(", line)
        if start and not line.strip().startswith("module = "):
            stack[len(start[1]) // 2 :] = [start[2] or ""]
        found = re.search(r"module = ({.*?}), functionals = ({.*?}), functionals_duration", line)
        if found:
            module, functions = literal_eval(found[1]), literal_eval(found[2])
            path = ".".join(filter(None, stack))
            parts = [path or "BertModel", f"{module['param']} {module['params%']}, {figures(module)}"]
            rows[path] = " | ".join([*parts, *(f"{name}: {figures(each)}" for name, each in functions.items())])
    return rows


def figures(row: dict[str, str]) -> str:
    return f"{row['flops']} {row['flops%']}, {row['macs']} {row['macs%']}"


def test_the_rows_of_bert(bert: nn.Module, printed: dict[str, str]) -> None:
    published = {row.partition(" ")[0]: row for row in BERT_ROWS.splitlines()}
    # PyTorch no longer prints a ModuleList's line.
    rows = {**printed, "BertModel": printed[""], "encoder.layer": row_of_the_layers(bert)}
    assert {path: rows.get(path) for path in published} == published


def row_of_the_layers(bert: nn.Module) -> str:
    flops = count(bert, kwargs=TOKENS, convention="flops_profiler")
    macs = flops.recount("flops_profiler_macs")
    params = flops["encoder.layer"].params
    parts = [f"{params / 10**6:.2f} M {params / flops.total_params:.2%}, {share(flops, macs, None)}"]
    for op in ("matmul", "softmax", "linear", "layer_norm"):
        parts.append(f"{op}: {share(flops, macs, op)}")
    return " | ".join(["encoder.layer", *parts])


def share(flops: Report, macs: Report, op: str | None) -> str:
    """What encoder.layer is charged, in total or for one operator, with percentages."""
    texts = []
    for report, written in ((flops, flops_profiler.num_to_string), (macs, flops_profiler.macs_to_string)):
        path = "encoder.layer"
        row = report[path] if op is None else report.by_module_and_operator()[path][op]
        texts.append(f"{written(row.total.flops)} {row.total.flops / report.total_flops:.2%}")
    return ", ".join(texts)


def test_the_aggregated_profile_of_bert(text: str) -> None:
    lines = [line for line in text.splitlines() if "fwd latency - " not in line]
    start = lines.index(BERT_AGGREGATED.splitlines()[0])
    assert lines[start : start + len(BERT_AGGREGATED.splitlines())] == BERT_AGGREGATED.splitlines()


def test_the_summary_of_bert(text: str) -> None:
    published = {f"{title + ': ':<60}  {value:<8}" for title, value in BERT_SUMMARY.items()}
    assert published - {*text.splitlines()} == set()
