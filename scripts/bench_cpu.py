#!/usr/bin/env python3
"""Decode and prefill speed on the host, beside llama.cpp on the same file in the same run.

Both sides run in turn, A B A B ..., so that a machine whose speed drifts is unfair to neither. Prints medians and ranges,
GB/s of weights beside the read peak of the same cores, and the ratio; writes everything raw to a JSON file.

  scripts/bench_cpu.py --genai build/genai --read-peak build/genai_read_peak --llama-bench PATH -m FILE [-m FILE ...]
                       [--threads 2] [--repeats 5] [--depths 0,1024] [--prefill 512] [--out tests/bench/runs/NAME/raw.json]

Without --llama-bench only genai is measured. llama-bench comes with the source package `llama-cpp-python` on PyPI:
cmake -B build -DCMAKE_BUILD_TYPE=Release vendor/llama.cpp && cmake --build build --target llama-bench
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time


def run(command, **kwargs):
    return subprocess.run(command, check=True, capture_output=True, text=True, **kwargs)


def prompt_of(genai, model, token_count):
    """A text that the model's tokenizer turns into exactly `token_count` tokens."""
    words = token_count
    for _ in range(20):
        text = "one" + " one" * max(0, words - 1)
        out = run([genai, "tokenize", "-m", model, "-p", text, "--json"]).stdout
        count = json.loads(out)["count"]
        if count == token_count:
            return text
        words += token_count - count
    raise SystemExit(f"no prompt of {token_count} tokens found for {model}")


def genai_run(args, model, prompt_file, tokens, context):
    result = run([args.genai, "run", "-m", model, "-f", prompt_file, "-n", str(tokens), "-c", str(context), "--ignore-eos",
                  "-t", str(args.threads), "--device", "cpu", "--report", "json", "--log-level", "error"])
    return json.loads(result.stderr.strip().splitlines()[-1])


def llama_run(args, model, prefill, decode, depth):
    command = [args.llama_bench, "-m", model, "-t", str(args.threads), "-r", "1", "-o", "json", "-ngl", "0",
               "-p", str(prefill), "-n", str(decode), "-d", str(depth)]
    return json.loads(run(command).stdout)[0]["avg_ts"]


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", required=True)
    parser.add_argument("--genai", default="build/genai")
    parser.add_argument("--read-peak", default="build/genai_read_peak")
    parser.add_argument("--llama-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--depths", default="0,1024")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out")
    args = parser.parse_args()

    peak = json.loads(run([args.read_peak, str(args.threads)]).stdout)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.model:
            cases = [("prefill", args.prefill, 0)] + [("decode", args.tokens, int(d)) for d in args.depths.split(",")]
            for kind, count, depth in cases:
                # A decode at depth d begins behind a prompt of d tokens, one at least.
                prompt_tokens = count if kind == "prefill" else max(depth, 1)
                prompt_file = os.path.join(folder, "prompt.txt")
                with open(prompt_file, "w") as file:
                    file.write(prompt_of(args.genai, model, prompt_tokens))
                ours, theirs, gbps = [], [], []
                for _ in range(args.repeats + 1):  # the first round warms caches and is not counted
                    new_tokens = 1 if kind == "prefill" else count + 1
                    report = genai_run(args, model, prompt_file, new_tokens, prompt_tokens + new_tokens + 64)
                    assert report["prompt_tokens"] == prompt_tokens, report
                    ours.append(report[f"{kind}_tokens_per_second"])
                    if kind == "decode":
                        gbps.append(report["resident_bytes"] * ours[-1] / 1e9)
                    if args.llama_bench:
                        pair = (count, 0) if kind == "prefill" else (0, count)
                        theirs.append(llama_run(args, model, *pair, depth))
                entry = {"model": os.path.basename(model), "kind": kind, "tokens": count, "depth": depth,
                         "genai": summary(ours[1:])}
                line = f"{entry['model']:40} {kind:8} {count:5} at {depth:5}: genai {entry['genai']['median']:8.1f} tok/s"
                if gbps:
                    entry["resident_gbps"] = summary(gbps[1:])
                    line += f" ({entry['resident_gbps']['median']:.1f} of {peak['read_gbps_max']:.1f} GB/s)"
                if theirs:
                    entry["llama_cpp"] = summary(theirs[1:])
                    entry["ratio"] = summary([a / b for a, b in zip(ours[1:], theirs[1:])])
                    line += (f", llama.cpp {entry['llama_cpp']['median']:8.1f}, ratio {entry['ratio']['median']:.2f}"
                             f" ({entry['ratio']['min']:.2f} to {entry['ratio']['max']:.2f})")
                print(line, flush=True)
                results.append(entry)

    document = {"command": sys.argv, "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(),
                "cpu": next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), ""),
                "genai_version": run([args.genai, "--version"]).stdout.strip(), "read_peak": peak, "results": results}
    if args.out:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        with open(args.out, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
