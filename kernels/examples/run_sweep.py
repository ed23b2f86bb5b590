"""Measure a small sweep in a checkout, from Python, and print its times: `python -m kernels.examples.run_sweep`."""

import time

from results.files import library  # a checkout has it, the package attnbench does not
from runner import launch
from runner.launch import SweepRequest

request = SweepRequest(
    sweep="quick",
    implementations=("torch_naive", "torch_sdpa_auto"),
    changes={"seqlen": "64", "head_dim": "32"},
    device=launch.devices()[0]["id"],  # the first GPU, or the CPU
    protocol="quick",
)
run = launch.start(request)  # a process of its own measures, so that a fault in CUDA does not end this one
while launch.status(run).state == "running":
    time.sleep(0.2)
print(f"{run}: {launch.status(run).state}")
for m in library.read(library.find(run))[1]:
    if m.metric == "latency_ms" and m.status == "ok":
        print(f"{m.implementation:16} {m.mode:8} {m.timing:7} {m.value:.4f} ms ({m.n} samples)")
