"""Known causes of disagreements: patterns for the entry, the check and the case, then the reason."""

from __future__ import annotations

ANY = ".*"
CAUSES: list[tuple[str, str, str, str]] = [
    ("op/.*conv.*", "MACs.*", "complex64 .*", "torch writes a complex convolution as three real ones (Gauss's trick): 3/4 of the textbook's products"),
    ("op/.*conv.*", "vmap", "complex64 .*", "torch writes a complex convolution as three real ones (Gauss's trick): 3/4 of the textbook's products"),
    ("op/.*conv.*", "MACs backward.*", ANY, "FlopCounterMode counts the backward pass of a grouped convolution `groups` times"),
    ("op/addbmm", "MACs.*", ANY, "FlopCounterMode does not know addbmm"),
    ("op/(addr|outer|ger|kron)", "vmap", ANY, "vmap writes an outer product as a multiplication, which has no MACs"),
    ("op/inner", "vmap", ANY, "vmap writes the inner product with a number as a multiplication, which has no MACs"),
    ("op/tensordot", "vmap", ANY, "vmap writes a sum over all dimensions as a multiplication and a sum, which have no MACs"),
    ("op/(pinverse|linalg.pinv.*|linalg.matrix_sqrth|linalg.polar)", "MACs backward.*", ANY, "FlopCounterMode does not count the forward of a factorization"),
    ("op/(pinverse|linalg.pinv.*)", "memory", "complex64 .*", "inside pinv torch conjugates a factor in a copy, below what a dispatch mode sees"),
    ("op/sgn", "memory backward", ANY, "the gradient is a tensor of zeros without memory, and predicted with memory"),
    ("op/.*linear_cross_entropy.*", "MACs backward.*", ANY, "FlopCounterMode does not know dot"),
    ("module/nn_LinearCrossEntropyLoss", "MACs backward.*", ANY, "FlopCounterMode sees no forward of the loss in chunks, and does not know dot and addmm_"),
    ("op/combinations", "no silent zero", ANY, "torch compares places to find the pairs, which belongs to the lookup"),
    ("op/take_along_dim", "no silent zero", ANY, "torch wraps negative indices by a remainder, which belongs to the lookup"),
    ("hop/map.*", "memory backward", ANY, "torch's derivative of map is a second map, which it traces first, with the generator's state in a tensor; counted are the rows' own derivatives"),
    ("hop/invoke_quant_packed.*", "memory backward", ANY, "its derivative is traced anew in each backward pass: what the trace runs is counted, and its torch.empty is listed as unseen"),
    ("optim/LBFGS", "count optimizer raises", ANY, "refused with advice: LBFGS runs the model again in each step, so only profile sees one"),
]  # fmt: skip
