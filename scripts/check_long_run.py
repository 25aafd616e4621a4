#!/usr/bin/env python3
"""check_long_run.py - generates 4,096 tokens and looks at what the report says of the graph and the cache.

A step is captured once and replayed for every token after the first, with nothing outside of the graph, and the cache grows
without moving a byte. On a GPU the speed of its memory must have been measured, and lie below what the memory gives.

  scripts/check_long_run.py --genai build/genai                                      # a tiny model of ../shared, on the host
  scripts/check_long_run.py --genai build/genai --model m.gguf -- --device cuda

Exit code 0: all as it should be; 1: something is not; 77: no model found.
"""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 4096
CONTEXT = TOKENS + 64
EXPECTED = {"generated_tokens": TOKENS, "finish_reason": "length", "decode_steps": TOKENS - 1, "captures": 1,
            "replays": TOKENS - 1, "fallbacks": 0, "invalidations": 0, "segments": 1, "eager_nodes": 0,
            "kv_bytes_moved": 0}
# Bytes are those that a step must read; a model that fits the device's cache may read them faster than memory gives them.
HIGHEST_FRACTION = 1.05


def faults_of(report):
    faults = [f"{name} is {report.get(name)}, expected {value}" for name, value in EXPECTED.items()
              if report.get(name) != value]
    if not report.get("kv_growth_events"):
        faults.append("the cache never grew")
    is_gpu = "sm_count" in report["device"]
    if is_gpu != ("hbm_gbps" in report):
        faults.append("hbm_gbps stands in the report of a GPU and in no other")
    if report.get("roofline_fraction", 0.0) > HIGHEST_FRACTION:
        faults.append(f"roofline_fraction {report['roofline_fraction']}: faster than the memory")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("GENAI_SHARED_DIR") or os.path.join(ROOT, "..", "shared")
    parser.add_argument("--genai", default=os.path.join(ROOT, "build", "genai"))
    parser.add_argument("--model", default=os.path.join(shared, "data", "reference", "tiny", "tiny-llama-Q4_0.gguf"))
    parser.add_argument("flags", nargs="*", help="flags of `genai run`, after --")
    args = parser.parse_args()
    if not os.path.exists(args.model):
        print(f"SKIPPED: {args.model} is not there")
        return 77
    command = [args.genai, "run", "-m", args.model, "-p", "Once upon a time", "-n", str(TOKENS), "-c", str(CONTEXT),
               "--ignore-eos", "--report", "json", "-q", "--lane-speeds", "none", *(args.flags or ["--device", "cpu"])]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        print(f"{' '.join(command)}\nexit code {result.returncode}: {result.stderr.strip()}")
        return 1
    report = json.loads(result.stderr.strip().splitlines()[-1])
    faults = faults_of(report)
    for fault in faults:
        print(fault)
    shown = ("decode_tokens_per_second", "kv_growth_events", "hbm_gbps", "read_peak_gbps", "roofline_fraction")
    print(f"{os.path.basename(args.model)}: {TOKENS} tokens, {len(faults)} faults;",
          ", ".join(f"{name} {report[name]}" for name in shown if name in report))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
