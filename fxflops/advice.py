"""Advice on errors. An error carries keys of advice; Python, ``summary`` and the command line each have their own words for a key."""

from __future__ import annotations

WORDS = {
    "backward": ": count(model, args, backward=True) makes them, and analyze does",
    "optimizer": ": count(model, args, backward=True, optimizer=optimizer) makes them",
    "backward before a step": ": fxflops.count(..., backward=True, optimizer=...)",
    "backward in a form": ": closed_form(model, args, backward=True) counts it",
    "counted backward": ": count(model, args, backward=True) counts it",
    "batch dimension": ", by x.unsqueeze(0)",
    "cap": ": give a smaller input, or use analyze(model, args), which has no cap",
    "cast": "\n  cast the inputs or the model, .to(dtype), or run it under torch.autocast",
    "config": ": it looks like a transformers config, whose model is counted",
    "convention": ": give recount(convention)",
    "dataloader": "\n  a DataLoader has many batches: give the inputs of one, batch = next(iter(loader))",
    "dataset": "\n  a dataset has many samples: give the inputs of a batch, as its DataLoader makes one",
    "image": "\n  an image is not a tensor: give torchvision.transforms.functional.to_tensor(image)[None]",
    "inputs": "; inputs go in a tuple args=(a, b) by position and kwargs={...} by name",
    "list": "\n  a list is one input: give a single input as it is, several as a tuple, (a, b)",
    "mapping": "\n  a mapping is one input: by the names of forward's parameters they go into kwargs",
    "meta": "\n  count(model, args) takes a model on meta, with inputs on any device",
    "ndarray": "\n  a numpy array is not a tensor: give torch.from_numpy(array)",
    "numbers": "\n  numbers are not a tensor: give torch.tensor(numbers)",
    "real tensors": ": give a model with real tensors",
    "record": '\nfxflops.analyze(model, args, trace="record") records a run of the model instead',
    "report": ": report.save('report.json') writes a report",
    "several": "\n  several inputs go in a tuple, (*inputs,)",
    "token ids": "\n  its input is token ids: give integers, of dtype torch.long",
    "unsafe": "; to load a file that you trust, use fxflops.load_model(path, unsafe=True)",
}
"""The words of each piece of advice in Python, with the separator after the problem."""

SUMMARY = {
    **WORDS,
    "batch dimension": " by input_size or by batch_dim=0",
    "inputs": """; inputs go in input_size=[(1, 3), (1, 5)], or in input_data=[a, b] by position, {"name": a, ...} by name""",
    "token ids": "\n  its input is token ids: give dtypes=[torch.long], a dtype for each input",
}
"""The words of ``summary``, ours and torchinfo's."""

COMMAND = {
    **WORDS,
    "backward": ": --backward makes them",
    "optimizer": ": --backward --optimizer AdamW makes them",
    "backward before a step": ": --backward",
    "backward in a form": ": --backward counts it",
    "counted backward": ": --backward counts it",
    "batch dimension": "",
    "cap": ": give a smaller input, or use fxflops run without --counts-only, which has no cap",
    "cast": "\n  --dtype sets the dtype of the weights, --input SHAPE:DTYPE the dtype of an input",
    "config": ": it looks like a transformers config, whose model is hf:path/to/config.json",
    "convention": ": give --convention",
    "meta": "\n  --counts-only takes a model on meta, with inputs on any device",
    "record": "\n--trace record records a run of the model instead",
    "report": ": --save report.json writes a report",
    "token ids": "\n  its input is token ids: give integers: --input-ids 1,128 or --input 1,128:i64",
    "unsafe": "; to load a file that you trust, use --unsafe",
}
"""The words of the command line."""


_RUNS = "warm-up runs come first by themselves; repeats=10 is the number of timed runs"
SCHEDULED = """fxflops.profile(model, schedule=torch.profiler.schedule(wait=2, warmup=0, active=1, repeat=1)) observes
the third iteration of a loop in its with block; p.step() ends an iteration"""
_SPLIT = """one device holds the whole model here; fxflops.distributed.simulate(...) runs a model that is split over several,
and shows what each computes and sends"""
_COUNT = {
    ("depth", "module_depth", "max_depth"): "report.tree(depth=2) cuts the tree of modules",
    ("top", "top_modules", "top_num"): 'report.by_module().select(sort_by="flops", top=5) has the largest modules',
    ("output_file", "output_path"): (
        'report.save("report.html") writes a file in the format of its suffix: html, json, csv, md, tex'
    ),
    ("ignore_modules", "ignore_list"): 'all modules are counted; report["path"].total has what one of them adds',
    ("profile_step",): SCHEDULED,
    ("warm_up", "warmup"): _RUNS,
    ("world_size", "dp_world_size"): (
        "report.gather() adds up processes of torchrun; fxflops.distributed.simulate(...) runs those you lack"
    ),
    ("device", "devices"): "the model runs where it and its inputs are: model.to(device), x.to(device)",
    ("custom_ops", "supported_ops", "custom_modules_hooks"): (
        "formulas={torch.relu: lambda x, *, out: out.numel()} counts an operation with your own function"
    ),
    ("train", "training"): 'mode="train" runs it in train mode',
    ("max_new_tokens", "max_length"): 'kwargs={"max_new_tokens": 8} are arguments of the call',
    ("runs", "num_runs", "iterations"): "analyze(model, x, repeats=10) times 10 runs",
    (
        "verbose",
        "as_string",
        "as_strings",
        "print_profile",
        "print_results",
        "detailed",
    ): "print() shows the result",
}
_OTHERS: dict[str, dict[tuple[str, ...], str]] = {
    "profile": {("warm_up", "warmup", "wait", "active", "repeats"): SCHEDULED},
    "summary": {
        ("col_names",): 'columns="inputs, output, params" chooses columns',
        ("args",): "input_data=[a, b] passes several inputs",
    },
    "serving": {
        ("tp", "tensor_parallel_size", "pp", "pipeline_parallel_size", "gpus", "world_size"): _SPLIT,
        ("max_new_tokens", "output_len", "max_tokens"): "new_tokens is the number of tokens to generate",
        ("batch_size", "concurrency", "max_num_seqs"): "batch is the number of sequences",
        ("input_len", "prompt_len", "prompt_tokens", "seq_len"): "prompt is the number of tokens in each prompt",
        ("dtype", "quantization"): "it takes the dtype of the model's weights: model.to(torch.bfloat16)",
    },
}


def for_argument(function: str, name: str) -> str:
    """Return advice on an argument that another tool's function takes and this one does not; "" if there is none."""
    tables = [_OTHERS.get(function, {}), *([_COUNT] if function in ("count", "analyze", "profile", "summary") else [])]
    return next((said for table in tables for names, said in table.items() if name in names), "")
