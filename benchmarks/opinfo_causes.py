"""Why something disagrees: patterns of the entry, of the check and of the case, then the reason."""

from __future__ import annotations

ANY = ".*"
CAUSES: list[tuple[str, str, str, str]] = [
    ("op/item", "a call for what runs", ANY, "item() reads a value, and computes nothing"),
    ("op/.*conv.*", "MACs.*", "complex64 .*", "torch writes a complex convolution as three real ones (Gauss's trick): 3/4 of the textbook's products"),
    ("op/.*conv.*", "vmap", "complex64 .*", "torch writes a complex convolution as three real ones (Gauss's trick): 3/4 of the textbook's products"),
    ("op/.*conv.*", "MACs backward.*", ANY, "FlopCounterMode counts the backward pass of a grouped convolution `groups` times"),
    ("op/addbmm", "MACs.*", ANY, "FlopCounterMode does not know addbmm"),
    ("op/addr", "vmap", ANY, "vmap writes an outer product as a multiplication, which has no MACs"),
    (".*linear_cross_entropy.*", "MACs backward.*", ANY, "FlopCounterMode does not know dot"),
    ("optim/LBFGS", "count optimizer raises", ANY, "refused with advice: LBFGS runs the model again in each step, so only profile sees one"),
    ("(op|module)/.*([Ee]mbedding|nearest.*)", "no silent zero", ANY, "the formula says zero: rows or neighbours are looked up (by other arguments it would compute)"),
]  # fmt: skip
