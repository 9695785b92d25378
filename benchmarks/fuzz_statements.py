"""The source texts of statements in random nets: layers, functions, views, writes, control flow, state, gradients.

A statement has lines for ``__init__`` and lines for ``forward``. In these, ``{x}`` is the value that the statement reads, ``{y}`` a
value of the same shape (possibly x), ``{o}`` the result, ``{m}`` a new attribute, ``{L}`` the last size of x, ``{F}`` the second size
of x, ``{k}`` a random size, ``{p}`` 1 to 3, ``{p2}`` 1 or 2, ``{b}`` and ``{b2}`` booleans, ``{h}`` a divisor of L, ``{dim}`` a dimension,
``{act}`` an activation, and ``{Block}`` a random module that takes x.
"""

from __future__ import annotations

from typing import NamedTuple


class Statement(NamedTuple):
    """A statement. ``ranks`` are the numbers of dimensions that its value may have, as digits ("" for any)."""

    kind: str
    ranks: str
    init: str
    body: str


ACTIVATIONS = "relu gelu silu tanh sigmoid softplus hardswish mish elu".split()
LAYERS = {
    "23": [
        "nn.Linear({L}, {k}, bias={b})",
        "nn.Linear({L}, {k})",
        "nn.LayerNorm({L})",
        "nn.RMSNorm({L})",
        "nn.Softmax(-1)",
        "nn.Dropout(0.1)",
        "nn.Sequential(nn.Linear({L}, {k}), nn.ReLU(), nn.Linear({k}, {L}))",
        "nn.Sequential(nn.Linear({L}, {k}), nn.GELU(), nn.Dropout(0.1))",
        "Scaled({L}, {k})",
        "Computed({L}, {k})",
        "Kept({L}, {k})",
        "Called({L}, {k})",
        "spectral_norm(nn.Linear({L}, {k}))",
        "weight_norm(nn.Linear({L}, {k}))",
        "orthogonal(nn.Linear({L}, {L}))",
        "parametrized(nn.Linear({L}, {L}))",
        "old_weight_norm(nn.Linear({L}, {k}))",
        "Hyper({L})",
        "Quiet({L})",
    ],
    "2": ["nn.BatchNorm1d({L})", "nn.Bilinear({L}, {L}, {k})"],
    "3": [
        "nn.Conv1d({F}, {k}, {p}, padding={p})",
        "nn.Conv1d({F}, {F}, {p}, groups={F}, bias={b})",
        "nn.ConvTranspose1d({F}, {k}, {p}, stride={p})",
        "nn.BatchNorm1d({F})",
        "nn.InstanceNorm1d({F}, affine={b})",
        "nn.GroupNorm(1, {F})",
        "nn.AvgPool1d(2)",
        "nn.MaxPool1d(2, 1)",
        "nn.AdaptiveAvgPool1d({p})",
        "nn.TransformerEncoderLayer({L}, {h}, {k}, batch_first={b}, norm_first={b2})",
        "nn.TransformerEncoder(nn.TransformerEncoderLayer({L}, {h}, {k}, batch_first=True, dropout=0.0), {p}, enable_nested_tensor=False)",
        "nn.Upsample(scale_factor=2)",
        "Reweighted1d({F}, {k}, 3, padding=1)",
    ],
    "4": [
        "nn.Conv2d({F}, {k}, {p}, padding={p}, stride={p2}, bias={b})",
        "nn.Conv2d({F}, {k}, 3, padding=1, dilation=1, padding_mode='reflect')",
        "nn.Conv2d({F}, {F}, 3, padding='same', groups={F})",
        "nn.ConvTranspose2d({F}, {k}, {p}, stride={p2}, bias={b})",
        "nn.BatchNorm2d({F}, affine={b})",
        "nn.GroupNorm(1, {F})",
        "nn.InstanceNorm2d({F})",
        "nn.MaxPool2d({p}, 1)",
        "nn.AvgPool2d(2, ceil_mode={b})",
        "nn.AdaptiveAvgPool2d({p})",
        "nn.AdaptiveMaxPool2d(({p}, {p2}))",
        "nn.Dropout2d(0.2)",
        "nn.PReLU()",
        "nn.Upsample(scale_factor=2, mode='bilinear')",
        "nn.Sequential(nn.Conv2d({F}, {k}, 3, padding=1, bias=False), nn.BatchNorm2d({k}), nn.ReLU(inplace=True))",
        "weight_norm(nn.Conv2d({F}, {k}, 3))",
        "Standardized({F}, {k}, 3, padding=1)",
        "nn.ReflectionPad2d(1)",
        "nn.LPPool2d(2, 2)",
    ],
    "5": [
        "nn.Conv3d({F}, {k}, {p}, padding=1)",
        "nn.BatchNorm3d({F})",
        "nn.AvgPool3d(2)",
        "nn.MaxPool3d(2)",
        "nn.ConvTranspose3d({F}, {k}, 2)",
    ],
}
FUNCTIONS = {
    "": [
        "F.{act}({x})", "torch.relu({x})", "{x} + {y}", "{x} * {y}", "{x} - 0.5 * {y}", "1 / (1 + {x} * {x})", "{x} ** 2", "-{x}", "abs({x})",
        "torch.where({x} > 0, {x}, {y})", "{x}.masked_fill({x} < 0, 0.0)", "torch.cat([{x}, {y}], {dim})", "torch.stack([{x}, {y}], 1).sum(1)",
        "{x}.mean({dim}, keepdim=True)", "{x}.sum({dim})", "{x}.amax({dim})", "{x}.max({dim}).values", "{x}.topk(1, {dim})[0]", "{x}.std({dim})",
        "{x}.softmax({dim})", "F.log_softmax({x}, {dim})", "{x}.cumsum({dim})", "{x}.sort({dim})[0]", "{x}.clamp(-1, 1)", "torch.addcmul({x}, {x}, {y})",
        "{x}.transpose(0, {dim})", "{x}.transpose(0, {dim}).contiguous()", "{x}.flatten(1)", "{x}.reshape({x}.shape[0], -1)", "{x}.unsqueeze({dim})", "{x}.squeeze()",
        "{x}.chunk(2, {dim})[0]", "{x}.split(1, {dim})[-1]", "{x}.unbind({dim})[0]", "{x}[..., ::2]", "{x}[:1]", "{x}.flip(0)", "{x}.roll(1, {dim})",
        "{x}.repeat(2, *[1] * ({x}.ndim - 1))", "{x}.narrow({dim}, 0, 1)", "{x}.expand(2, *{x}.shape)", "torch.lerp({x}, {y}, 0.3)", "F.normalize({x}, dim={dim})",
        "F.dropout({x}, 0.5, self.training)", "{x} + torch.randn_like({x})", "torch.zeros_like({x}) + {x}", "{x} * torch.arange({L}, device={x}.device)", "{x}.double().float()",
        "{x}.detach() + {x}", "{x}.new_ones({L}) * {x}", "torch.einsum('...i,...i->...', {x}, {y})", "{x}.norm(dim={dim})", "torch.linalg.vector_norm({x}, dim={dim})",
        "{x}.logsumexp({dim})", "torch.maximum({x}, {y})", "{x}.var({dim}, unbiased=False)", "F.layer_norm({x}, ({L},))", "{x}.to(torch.bfloat16).float()", "{x}.index_select({dim}, torch.tensor([0]))",
        "torch.atan2({x}, {y})", "{x}.tril() if {x}.ndim > 1 else {x}", "{x}.prod({dim})", "torch.fft.rfft({x}).abs()", "sum([{x}, {y}])", "F.mse_loss({x}, {y}, reduction='none')", "torch.stack([{x}.mean(), {y}.sum()])",
    ],
    "2": [
        "{x} @ {y}.T", "torch.mm({x}.t(), {y})", "torch.addmm({x}, {x}, {x}.t() @ {y})", "F.linear({x}, {y})", "torch.einsum('bi,bj->ij', {x}, {y})", "{x}.matmul({y}.mT)", "{x} @ {y}[0]",
        "torch.outer({x}[0], {y}[0])", "torch.dot({x}[0], {y}[0]) * {x}", "torch.mv({x}, {y}[0])", "torch.cdist({x}, {y})", "F.one_hot({x}.argmax(-1), {L}).float()", "torch.tensordot({x}, {y}, dims=([1], [1]))",
        "{x}[:, None] * {y}", "{x}.view(1, *{x}.shape)", "torch.linalg.multi_dot([{x}, {y}.T, {x}])", "torch.addmv({x}[:, 0], {x}, {y}[0])", "torch.addr({x}, {x}[:, 0], {y}[0])", "torch.complex({x}, {y}).matmul(torch.complex({y}, {x}).mT).abs()",
        "torch.func.vmap(lambda r: r @ {y}.T)({x})", "torch.kron({x}, {y})", "F.cosine_similarity({x}, {y})", "F.glu(torch.cat([{x}, {y}], -1))", "{x}.unfold(1, 2, 1)", "F.scaled_dot_product_attention({x}[None], {y}[None], {x}[None])[0]",
    ],
    "3": [
        "torch.bmm({x}, {y}.transpose(1, 2))", "torch.baddbmm({x}, {x}, {x}.transpose(1, 2) @ {y})", "{x} @ {y}.mT", "torch.einsum('bic,bjc->bij', {x}, {y})", "torch.einsum('bic,bjd->bcd', {x}, {y})", "F.scaled_dot_product_attention({x}, {y}, {y})",
        "F.scaled_dot_product_attention({x}, {y}, {x}, is_causal=True)", "{x}.permute(2, 0, 1)", "{x}.mean(1)", "{x}[:, 0]", "{x}[:, -1:]", "F.max_pool1d({x}, 2)", "F.interpolate({x}, scale_factor=2)", "torch.addbmm({x}[0] @ {x}[0].T, {x}, {y}.mT)",
        "{x}.transpose(1, 2)", "{x}.reshape(-1, {L})", "torch.cdist({x}, {y})", "{x} @ {y}[0].T", "F.pad({x}, (1, 1))", "({x} @ {y}.mT).softmax(-1) @ {y}", "torch.gather({x}, 1, torch.zeros_like({x}, dtype=torch.long))", "{x}.unflatten(-1, ({h}, -1)).transpose(1, 2)",
        "torch.func.vmap(lambda a, b: a @ b.T)({x}, {y})", "F.avg_pool1d({x}, 2)", "{x}.view({x}.shape[0], -1, 1, {L})", "torch.nn.functional.conv1d({x}, {y}[:, :, :1])",
    ],
    "4": [
        "F.avg_pool2d({x}, 2)", "F.max_pool2d({x}, 2, stride=1)", "F.interpolate({x}, scale_factor=2, mode='nearest')", "{x}.flatten(2).transpose(1, 2)", "{x}.mean((2, 3))", "F.pad({x}, (1, 0, 0, 1))", "F.adaptive_avg_pool2d({x}, 1)", "{x}.permute(0, 2, 3, 1)",
        "{x} @ {y}.transpose(-1, -2)", "F.unfold({x}, 2)", "F.scaled_dot_product_attention({x}, {y}, {y})", "F.scaled_dot_product_attention({x}, {y}, {x}, is_causal=True)", "{x}.to(memory_format=torch.channels_last)", "F.pixel_unshuffle({x}, 2)", "torch.einsum('bchw,bcvw->bhv', {x}, {y})",
        "F.conv2d({x}, {y}[:, :, :1, :1])", "{x}.flatten(0, 1)", "F.grid_sample({x}, torch.zeros({x}.shape[0], 2, 2, 2))", "F.interpolate({x}, size=5, mode='bilinear', align_corners={b})",
    ],
    "5": ["{x}.flatten(2)", "{x}.mean(-1)", "F.avg_pool3d({x}, 2)", "{x}[:, :, 0]", "{x}.permute(0, 2, 1, 3, 4)", "F.interpolate({x}, scale_factor=2)"],
}  # fmt: skip
WRITES = {
    "": [
        "{o} = {x}.clone()\n{o} += 1", "{o} = {x} * 1\n{o}.relu_()", "{o} = {x}.clone()\n{o}[:1] = 0.5", "{o} = {x}.clone()\n{o}[..., 0] *= 2", "{o} = {x}.clone()\n{o}.mul_({y}).add_(1)",
        "{o} = {x}.clone()\n{o}[{o} > 0] = 0", "{o} = torch.empty_like({x})\n{o}.copy_({x})", "{o} = {x} + 1\nF.relu({o}, inplace=True)", "{o} = {x}.detach().clone()\n{o}.view(-1)[:2].fill_(3.0)", "{o} = {x}.clone()\n{o}.unsqueeze_(0)",
        "{o} = {x}.add_(1)", "{o} = torch.zeros_like({x})\n{o} = {o}.index_add_(0, torch.arange({x}.shape[0]), {x})", "{o} = {x}.clone()\n{o}.masked_fill_({o} < 0, 0.0)", "{o} = {x}.clone()\n{o}.transpose(0, -1).mul_(2)",
        "{o} = torch.empty(0)\ntorch.add({x}.detach(), 1, out={o})", "{o} = {x}.clone()\n{o}.data.mul_(2)", "{o} = {x}.clone()\nwith torch.no_grad():\n    {o}.clamp_(-1, 1)", "{o} = {x}.clone().requires_grad_(False) if not torch.is_grad_enabled() else {x}",
        "{o} = {x}.scatter(0, torch.zeros_like({x}, dtype=torch.long), {y})", "{o} = {x}.detach()\n{o}.zero_()\n{o} = {o} + {y}",
    ],
    "3": ["{o} = {x}.new_zeros({x}.shape)\nfor i in range({x}.shape[1]):\n    {o}[:, i] = {x}[:, i] * 2"],
}  # fmt: skip


def _several(kind: str, table: dict[str, list[str]], init: str = "", body: str = "{{}}") -> list[Statement]:
    return [
        Statement(kind, ranks, init.format(text), body.format(text)) for ranks, texts in table.items() for text in texts
    ]


WHOLE = {
    "control flow": [
        ("", "", "if {x}.sum() > 0:\n    {o} = {x} * 2\nelse:\n    {o} = {x}.relu()"),
        ("", "", "if float({x}.mean()) > 0.1:\n    {o} = {x}.exp().clamp(max=9)\nelse:\n    {o} = {x} - 1"),
        ("", "", "{o} = {x}\nfor _ in range(int({x}.abs().max()) % 3 + 1):\n    {o} = {o} * 0.5"),
        ("", "", "{o} = {x}[{x}.flatten(1).sum(1) > 0] if {x}.ndim > 1 else {x}\n{o} = {o}.sum(0)"),
        ("", "", "n = 0\nwhile {x}.abs().sum() * 0.5**n > 4:\n    n += 1\n{o} = {x} * 0.5**n"),
        ("", "", "try:\n    s = {x}.mean().item()\nexcept Exception:\n    s = 7.0\n{o} = {x} * s if s < 7 else {x} @ {x}.mT"),
        ("", "", "{o} = {x} * 2 if torch.rand(()) > 0.5 else {x}.tanh()"),
        ("", "", "{o} = {x} + 1 if self.training else {x}.tanh()"),
        ("", "", "{o} = {x}.flatten()[{x}.flatten().nonzero()[:, 0]]"),
        ("", "", "{o} = {x}\nwhile {o}.numel() < 64:\n    {o} = torch.cat([{o}, {o}])"),
        ("", "", "assert torch.isfinite({x}).all()\n{o} = {x} * 1.5"),
        ("2", "self.{m} = nn.ModuleList(nn.Linear({L}, {L}) for _ in range(3))", "{o} = self.{m}[int({x}.argmax()) % 3]({x})"),
        ("2", "self.{m} = nn.ModuleList(nn.Linear({L}, {k}) for _ in range(2))", "r = {x}.sum(-1) > 0\n{o} = {x}.new_zeros(len({x}), {k})\nfor i, e in enumerate(self.{m}):\n    t = (r == bool(i)).nonzero().flatten()\n    {o}[t] = e({x}[t])"),
    ],
    "gradient": [
        ("", "", "with torch.enable_grad():\n    v = {x}.detach().requires_grad_()\n    {o} = torch.autograd.grad((v * v * 0.5).sum(), v)[0] + {x}"),
        ("23", "self.{m} = nn.Linear({L}, {k})", "with torch.enable_grad():\n    v = {x}.detach().requires_grad_()\n    {o} = torch.autograd.grad(self.{m}(v).tanh().sum(), v, create_graph={b})[0]"),
        ("23", "self.{m} = nn.Linear({L}, {k})", "with torch.enable_grad():\n    v = {x} if {x}.requires_grad else {x}.clone().requires_grad_()\n    e = self.{m}(v).pow(2).sum()\n    {o} = v - 0.1 * torch.autograd.grad(e, v, create_graph=True)[0]"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = torch.func.grad(lambda v: self.{m}(v).sin().sum())({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = torch.func.jvp(lambda v: self.{m}(v).tanh(), ({x},), (torch.ones_like({x}),))[1]"),
        ("", "", "{o} = Doubled.apply({x})"),
        ("23", "", "{o} = Product.apply({x}, {x}.new_ones({L}, {k}))"),
        ("", "", "{o} = {x} * 3\nif {o}.requires_grad:\n    {o}.register_hook(lambda g: g * 2)"),
        ("", "", "with torch.no_grad():\n    s = {x}.abs().amax() + 1\n{o} = {x} / s"),
        ("", "", "with torch.autocast('cpu', torch.bfloat16):\n    {o} = ({x} * 2).float()"),
        ("23", "self.{m} = nn.Linear({L}, {k})", "with torch.autocast('cpu', torch.bfloat16):\n    {o} = self.{m}({x}).float()"),
        ("23", "self.{m} = nn.Linear({L}, {k})\nself.{m}.weight.requires_grad_(False)", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "with torch.no_grad():\n    t = self.{m}({x})\n{o} = {x} + t"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = {x} + self.{m}({x}).detach()"),
    ],
    "checkpoint": [
        ("", "self.{m} = {Block}()", "{o} = checkpoint(self.{m}, {x}, use_reentrant=False)"),
        ("", "self.{m} = {Block}()", "{o} = checkpoint(self.{m}, {x}, use_reentrant=True)"),
        ("", "self.{m} = {Block}()", "{o} = checkpoint(self.{m}, {x}, use_reentrant=False, preserve_rng_state={b})\n{o} = checkpoint(lambda v: v * 2, {o}, use_reentrant={b2})"),
        ("23", "self.{m} = nn.Sequential(nn.Linear({L}, {k}), nn.ReLU(), nn.Linear({k}, {L}))", "{o} = checkpoint_sequential(self.{m}, 2, {x}, use_reentrant={b})"),
        ("23", "self.{m} = nn.ModuleList(nn.Linear({L}, {L}) for _ in range(4))", "{o} = {x}\nfor layer in self.{m}:\n    {o} = checkpoint(lambda v, layer=layer: layer(v).relu(), {o}, use_reentrant={b})"),
    ],
    "module": [
        ("", "self.{m} = {Block}()", "{o} = self.{m}({x})"),
        ("", "self.{m} = {Block}()", "{o} = self.{m}({x}) * self.{m}({x})"),
        ("", "self.{m} = nn.Sequential({Block}())", "{o} = self.{m}({x})"),
        ("", "self.{m} = nn.ModuleDict({{'a': {Block}()}})", "{o} = self.{m}['a']({x})"),
        ("", "self.{m} = {Block}().eval()", "{o} = self.{m}({x})"),
        ("", "self.{m} = Residual({Block}())", "{o} = self.{m}({x})"),
        ("", "self.{m} = {Block}()\nself.{m}b = self.{m}", "{o} = self.{m}b({x})"),
        ("", "self.{m} = {Block}()", "{o} = self.{m}.forward({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})\nself.{m}b = nn.Linear({L}, {L})\nself.{m}b.weight = self.{m}.weight", "{o} = self.{m}b(self.{m}({x}))"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = self.{m}(self.{m}({x}).relu())"),
        ("23", "self.{m} = nn.Linear({L}, {k})", "{o} = F.linear({x}, self.{m}.weight, self.{m}.bias)"),
        ("23", "self.{m} = nn.Parameter(torch.randn({L}, {k}))", "{o} = {x} @ self.{m}"),
        ("", "self.{m} = nn.Parameter(torch.randn({L}))", "{o} = {x} * self.{m}"),
        ("23", "self.{m} = nn.Linear({L}, {k})", "{o} = self.{m}({x}) if {k} == {L} else self.{m}({x}) @ self.{m}.weight"),
        ("23", "self.{m} = nn.ParameterList(nn.Parameter(torch.randn({L}, {L})) for _ in range(2))", "{o} = {x}\nfor w in self.{m}:\n    {o} = {o} @ w"),
        ("23", "self.{m} = Nested({L}, {k})", "{o} = self.{m}({{'v': [{x}, None]}})['out'][0]"),
        ("23", "self.{m} = Nested({L}, {k})", "{o} = self.{m}(d={{'v': ({x},)}})['out'][0]"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = torch.func.functional_call(self.{m}, {{'weight': self.{m}.weight * 2}}, ({x},))"),
        ("23", "self.{m} = copy.deepcopy(nn.Linear({L}, {k}))", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "{o} = copy.deepcopy(self.{m})({x})"),
    ],
    "hook": [
        ("23", "self.{m} = nn.Linear({L}, {k})\nself.{m}.register_forward_hook(lambda m, a, o: o * 2)", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})\nself.{m}.register_forward_pre_hook(lambda m, a: (a[0].relu(),))", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {k})\nself.{m}.register_full_backward_hook(lambda m, i, o: None)", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {k})\nself.{m}.weight.register_hook(lambda g: g * 0.5)", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {k})\nself.{m}.weight.register_post_accumulate_grad_hook(lambda p: None)", "{o} = self.{m}({x})"),
        ("", "self.{m} = {Block}()\nself.{m}.register_forward_hook(lambda m, a, o: o + 1)", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})\nself.seen = []\nself.{m}.register_forward_hook(lambda m, a, o: self.seen.append(o.detach()))", "{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "h = self.{m}.register_forward_hook(lambda m, a, o: o.tanh())\n{o} = self.{m}({x})\nh.remove()"),
    ],
    "thread": [
        ("23", "self.{m} = nn.Linear({L}, {k})", "{o} = in_thread(self.{m}, {x})"),
        ("", "self.{m} = {Block}()", "{o} = in_thread(self.{m}, {x})"),
    ],
    "state": [
        ("", "self.{m} = None", "self.{m} = {x} if self.{m} is None else self.{m}\n{o} = self.{m} * 2"),
        ("", "self.{m} = {{}}", "if 'k' not in self.{m}:\n    self.{m}['k'] = torch.ones_like({x})\n{o} = {x} * self.{m}['k']"),
        ("", "self.{m} = []", "self.{m}.append({x}.detach())\n{o} = torch.stack(self.{m}).sum(0) if len({{t.shape for t in self.{m}}}) == 1 else {x}"),
        ("", "self.register_buffer('{m}', torch.zeros({L}))", "with torch.no_grad():\n    self.{m}.mul_(0.9).add_({x}.detach().reshape(-1, {L}).mean(0))\n{o} = {x} - self.{m}"),
        ("", "self.register_buffer('{m}', torch.zeros((), dtype=torch.long))", "self.{m} += 1\n{o} = {x} * self.{m}"),
        ("", "self.{m} = 0", "self.{m} += 1\n{o} = {x} * self.{m}"),
        ("", "self.{m} = torch.Generator().manual_seed(3)", "{o} = {x} + torch.rand({x}.shape, generator=self.{m})"),
        ("", "self.{m} = random.Random(5)", "{o} = {x} * self.{m}.random()"),
        ("", "", "{o} = {x} * random.random()"),
        ("3", "self.{m} = None", "self.{m} = {x} if self.{m} is None else torch.cat([self.{m}, {x}], 1)\n{o} = F.scaled_dot_product_attention({x}, self.{m}, self.{m})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "with torch.no_grad():\n    self.{m}.weight.clamp_(-0.1, 0.1)\n{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "self.{m}.weight.data = self.{m}.weight.data.clamp(-0.1, 0.1)\n{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "self.{m}.weight.data.mul_(0.9)\n{o} = self.{m}({x})"),
        ("23", "self.{m} = nn.Linear({L}, {L})", "self.{m}.bias.requires_grad = not self.{m}.bias.requires_grad\n{o} = self.{m}({x})"),
        ("", "", "self.extra = nn.Linear(2, 2)\n{o} = {x} * 1.5"),
        ("", "", "{x}.note = 1\n{o} = {x} * 2"),
        ("23", "self.{m} = nn.Linear({L}, {L})\nself.{m}.weight.grad = torch.ones({L}, {L})", "{o} = self.{m}({x})"),
    ],
    "recurrent": [
        ("3", "self.{m} = nn.LSTM({L}, {k}, {p}, batch_first={b}, bidirectional={b2})", "{o} = self.{m}({x})[0]"),
        ("3", "self.{m} = nn.LSTM({L}, {k})", "{o}, (h, c) = self.{m}({x})\n{o}, (h, c) = self.{m}({x}, (h, c))"),
        ("3", "self.{m} = nn.GRU({L}, {k}, {p}, batch_first={b}, bidirectional={b2})", "{o} = self.{m}({x})[0]"),
        ("3", "self.{m} = nn.RNN({L}, {k}, nonlinearity='relu', bias={b})", "{o} = self.{m}({x})[1][-1]"),
        ("2", "self.{m} = nn.LSTMCell({L}, {k})", "{o}, c = self.{m}({x})\n{o}, c = self.{m}({x}, ({o}, c))"),
        ("2", "self.{m} = nn.GRUCell({L}, {k})", "{o} = self.{m}({x}, self.{m}({x}))"),
        ("2", "self.{m} = nn.RNNCell({L}, {k})", "{o} = self.{m}({x})"),
        ("3", "self.{m} = nn.LSTM({L}, {k}, batch_first=True)", "p = nn.utils.rnn.pack_padded_sequence({x}, torch.full(({x}.shape[0],), {x}.shape[1]), batch_first=True)\n{o} = nn.utils.rnn.pad_packed_sequence(self.{m}(p)[0], batch_first=True)[0]"),
    ],
    "attention": [
        ("3", "self.{m} = nn.MultiheadAttention({L}, {h}, batch_first={b})", "{o} = self.{m}({x}, {x}, {x}, need_weights={b2})[0]"),
        ("3", "self.{m} = nn.MultiheadAttention({L}, {h}, batch_first=True, bias={b})", "{o} = self.{m}({x}, {y}, {y}, average_attn_weights=False)[0]"),
        ("3", "self.{m} = nn.MultiheadAttention({L}, {h}, batch_first=True, add_bias_kv={b}, add_zero_attn={b2})", "{o}, w = self.{m}({x}, {y}, {x})"),
        ("3", "self.{m} = Attention({L}, {h})", "{o} = self.{m}({x})"),
        ("3", "self.{m} = nn.TransformerDecoderLayer({L}, {h}, {k}, batch_first=True)", "{o} = self.{m}({x}, {y})"),
        ("3", "self.{m} = Sharp({L}, {h}, batch_first=True)", "{o} = self.{m}({x}, {x}, {x})[0]"),
        ("3", "", "{o} = F.scaled_dot_product_attention({x}, {y}, {y}, attn_mask=torch.ones({x}.shape[1], {x}.shape[1]).tril().bool())"),
        ("3", "", "{o} = F.scaled_dot_product_attention({x}, {y}, {y}, dropout_p=0.2 if self.training else 0.0)"),
        ("3", "", "with sdpa_kernel(SDPBackend.MATH):\n    {o} = F.scaled_dot_product_attention({x}, {y}, {y})"),
    ],
}  # fmt: skip


def _several(kind: str, table: dict[str, list[str]], init: str = "", body: str = "{}") -> list[Statement]:
    return [
        Statement(kind, ranks, init.replace("{}", text), body.replace("{}", text))
        for ranks, texts in table.items()
        for text in texts
    ]


STATEMENTS = [
    *_several("layer", LAYERS, "self.{m} = {}", "{o} = self.{m}({x})"),
    *_several("function", FUNCTIONS, "", "{o} = {}"),
    *_several("write", WRITES),
    *(Statement(kind, *each) for kind, several in WHOLE.items() for each in several),
]
KINDS = sorted({statement.kind for statement in STATEMENTS})
