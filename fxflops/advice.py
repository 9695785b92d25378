"""Advice at the end of error messages. An error has keys such as "backward". The text for a key differs between Python, ``summary`` and the
command line."""

from __future__ import annotations

WORDS = {
    "backward": ": pass backward=True to count() or analyze()",
    "optimizer": ": pass backward=True and optimizer=... to count()",
    "backward before a step": ": call fxflops.count(..., backward=True, optimizer=...)",
    "backward in a form": ": call closed_form(model, args, backward=True)",
    "counted backward": ": call count(model, args, backward=True)",
    "batch dimension": ", e.g. with x.unsqueeze(0)",
    "cap": ": pass a smaller input, or use analyze(model, args), which has no cap",
    "cast": "\n  cast the inputs or the model with .to(dtype), or run the model under torch.autocast",
    "class with a head": ": pass a model of this class",
    "config": ": it looks like a transformers config; build a model from the config and count this model",
    "convention": ": pass the convention itself to recount(convention)",
    "dataloader": "\n  a DataLoader has many batches: pass the inputs of one batch, e.g. batch = next(iter(loader))",
    "dataset": "\n  a dataset has many samples: pass the inputs of one batch, as a DataLoader returns them",
    "gradients": "\n  the model differentiates in its forward, and a count of a model runs without gradients: "
    "pass a function that calls the model, as in count(lambda x: model(x), x)",
    "image": "\n  an image is not a tensor: pass torchvision.transforms.functional.to_tensor(image)[None]",
    "inputs": "; pass positional inputs as a tuple, args=(a, b), and named inputs as a dict, kwargs={...}",
    "list": "\n  a list counts as one input: pass a single input without a list, and several inputs as a tuple, (a, b)",
    "mapping": "\n  a mapping counts as one input: to pass inputs by the names of forward's parameters, use kwargs",
    "meta": "\n  to run a model on meta, use count(model, args); the inputs can be on any device",
    "ndarray": "\n  a numpy array is not a tensor: pass torch.from_numpy(array)",
    "numbers": "\n  plain numbers are not a tensor: pass torch.tensor(numbers)",
    "real tensors": ": give a model with real tensors",
    "record": '\nfxflops.analyze(model, args, trace="record") records a run of the model instead',
    "report": "; to save a report, call report.save('report.json')",
    "several": "\n  pass several inputs as a tuple: (*inputs,)",
    "token ids": "\n  the model takes token ids: give integers of dtype torch.long",
    "unsafe": "; to load a file that you trust, use fxflops.load_model(path, unsafe=True)",
}
"""The text for each key, in Python. A text starts with the punctuation that separates it from the problem."""

SUMMARY = {
    **WORDS,
    "batch dimension": ", with input_size or batch_dim=0",
    "inputs": """; pass the shapes as input_size=[(1, 3), (1, 5)], or the inputs as input_data=[a, b] or input_data={"name": a, ...}""",
    "token ids": "\n  the model takes token ids: pass dtypes=[torch.long], with one dtype per input",
}
"""The text for each key, in fxflops's ``summary`` and in the adapter that replaces torchinfo's ``summary``."""

COMMAND = {
    **WORDS,
    "backward": ": add --backward",
    "optimizer": ": add --backward --optimizer AdamW",
    "backward before a step": ": add --backward",
    "backward in a form": ": add --backward",
    "counted backward": ": add --backward",
    "batch dimension": "",
    "cap": ": give a smaller input, or use fxflops run without --counts-only, which has no cap",
    "cast": "\n  --dtype sets the dtype of the weights, --input SHAPE:DTYPE sets the dtype of an input",
    "class with a head": ": give it as hf:CLASS, or in the architectures field of a config.json",
    "config": ": it looks like a transformers config; to count a model with this config, use hf:path/to/config.json",
    "convention": ": give --convention",
    "gradients": "\n  the model differentiates in its forward, and a count runs without gradients: add --backward",
    "meta": "\n  to run a model on meta, add --counts-only; the inputs can be on any device",
    "record": "\n--trace record records a run of the model instead",
    "report": "; to save a report, use fxflops run ... --save report.json",
    "token ids": "\n  the model takes token ids: give integers, with --input-ids 1,128 or --input 1,128:i64",
    "unsafe": "; to load a file that you trust, add --unsafe",
}
"""The text for each key, on the command line."""


_RUNS = "warm-up runs are automatic; repeats=10 sets the number of timed runs"
SCHEDULED = """fxflops.profile(model, schedule=torch.profiler.schedule(wait=2, warmup=0, active=1, repeat=1)) observes
only the third iteration of the loop in its with block; call p.step() at the end of each iteration"""
_SPLIT = """serving() assumes that one device holds the whole model; fxflops.distributed.simulate(...) runs a model that is
split over several devices, and shows what each device computes and sends"""
_COUNT = {
    ("depth", "module_depth", "max_depth"): "report.tree(depth=2) shows modules down to depth 2",
    ("top", "top_modules", "top_num"): 'report.by_module().select(sort_by="flops", top=5) lists the largest modules',
    ("output_file", "output_path"): (
        'report.save("report.html") writes a file; the suffix chooses the format: html, json, csv, md, tex'
    ),
    ("ignore_modules", "ignore_list"): 'all modules are counted; report["path"].total is the cost of one module',
    ("profile_step",): SCHEDULED,
    ("warm_up", "warmup"): _RUNS,
    ("world_size", "dp_world_size"): (
        "report.gather() adds up the processes of a torchrun job; fxflops.distributed.simulate(...) simulates processes without their devices"
    ),
    ("device", "devices"): "move the model and the inputs to the device to run on: model.to(device), x.to(device)",
    ("custom_ops", "supported_ops", "custom_modules_hooks"): (
        "formulas={torch.relu: lambda x, *, out: out.numel()} counts an operation with your own function"
    ),
    ("train", "training"): 'mode="train" runs the model in train mode',
    ("max_new_tokens", "max_length"): 'kwargs={"max_new_tokens": 8} passes max_new_tokens to the model',
    ("runs", "num_runs", "iterations"): "analyze(model, x, repeats=10) times 10 runs",
    (
        "verbose",
        "as_string",
        "as_strings",
        "print_profile",
        "print_results",
        "detailed",
    ): "print the returned object to see the result",
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
        (
            "dtype",
            "quantization",
        ): "serving() uses the dtype of the model's weights; model.to(torch.bfloat16) changes it",
    },
}


def for_argument(function: str, name: str) -> str:
    """Return advice for an argument that another tool takes but ``function`` does not; "" if there is no advice for this argument."""
    tables = [_OTHERS.get(function, {}), *([_COUNT] if function in ("count", "analyze", "profile", "summary") else [])]
    return next((said for table in tables for names, said in table.items() if name in names), "")
