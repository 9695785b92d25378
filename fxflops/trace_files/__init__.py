"""Read trace files of torch.profiler, and make the record of a run from each."""
