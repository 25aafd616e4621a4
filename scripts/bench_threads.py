#!/usr/bin/env python3
"""Whether the default number of threads is a good one here: decode speed at `-t` 1, 2, ... and without `-t`, in turns.

  scripts/bench_threads.py -m FILE [--genai build/genai] [--most THREADS] [--repeats 3] [--tokens 64]

Prints the median of each and the reason that genai gives for its default. Exit code 1 if the default reaches less than
0.8 of the best.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

LEAST_SHARE = 0.8


def decode(arguments, threads):
    command = [arguments.genai, "run", "-m", arguments.model, "-p", "Once upon a time", "-n", str(arguments.tokens),
               "-c", "512", "--ignore-eos", "--device", "cpu", "--report", "json", "--log-level", "error"]
    if threads:
        command += ["-t", str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stderr.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--genai", default="build/genai")
    parser.add_argument("--most", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()

    speeds, hashes, host = {}, set(), {}
    for _ in range(arguments.repeats):
        for threads in [0, *range(1, arguments.most + 1)]:  # 0: the default
            report = decode(arguments, threads)
            speeds.setdefault(threads, []).append(report["decode_tokens_per_second"])
            hashes.add(report["logits_hash"])
            if threads == 0:
                host = report["host"]
    medians = {threads: statistics.median(values) for threads, values in speeds.items()}
    for threads, speed in medians.items():
        name = f"-t {threads}" if threads else f"default ({host['threads']}: {host['threads_reason']})"
        print(f"{speed:8.1f} tok/s ({min(speeds[threads]):.1f} to {max(speeds[threads]):.1f})  {name}")
    share = medians[0] / max(medians.values())
    print(f"the default reaches {share:.2f} of the best; one logits hash throughout: {len(hashes) == 1}")
    return 0 if share >= LEAST_SHARE and len(hashes) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
