#!/usr/bin/env python3
"""Decode speed of one model under budgets and offload modes: a table, its raw numbers, and a plot with the plan's bound.

Cells run in turn, all modes of a budget one after the other, and that several times, so that a machine whose speed drifts
is unfair to none. Fails where `auto` loses to a mode in which all cold rows go one way (stream, zerocopy, host): where
the median, over the rounds, of auto's speed over that mode's is below 1 - margin, and still is after as many rounds again,
twice. Where both came out as the same mode there is nothing to lose. Fails too where any two runs differ in their logits hash.

  scripts/sweep_budget.py -m FILE [--genai build/genai] [--budgets 100%,75%,50%,25%,min] [--rounds 5] [--margin 0.1]
                          [--modes auto,stream,zerocopy,host,split] [--tokens 64] [--prompt TEXT] [--out sweep]
                          [--peer points.json] [-- flags of genai, such as --device cuda -c 1024 -t 8]

Budgets are shares of what the model needs to be resident, sizes (6GiB), or min, the smallest that works. Writes OUT.csv
(medians), OUT.json (everything) and OUT.svg, or OUT.png with --png. The plot needs matplotlib (apt: python3-matplotlib);
without it all else is done, and said. --peer: points of another engine to show beside,
{"name": "...", "points": [{"budget_bytes": N, "tokens_per_second": X}, ...]}.

Exit code 0: fine; 1: auto lost or bits differ; 2: nothing could be run.
  scripts/sweep_budget.py --self-test    proves on made-up cells that each verdict can be given
"""
import argparse
import csv
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPT = "Once upon a time, in a small village by the sea, there lived an old clockmaker who"
MODES = ["auto", "stream", "zerocopy", "host", "split"]
ONE_WAY = ["stream", "zerocopy", "host"]  # what auto must not lose to
DOES_NOT_FIT = 5
ATTEMPTS = 3
MIB = 1 << 20
# Of a run's report, in the table's order.
FIELDS = ["mode", "committed_peak_bytes", "resident_bytes", "cold_bytes", "htod_bytes_per_token", "bottleneck",
          "predicted_tokens_per_second", "predicted_over_measured"]


def fail(message):
    print(f"sweep_budget: {message}", file=sys.stderr)
    sys.exit(2)


def run(command):
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def plan(args, budget=None):
    command = [args.genai, "plan", "-m", args.model, "--json", "-q", *args.flags]
    result = run(command + (["--gpu-budget", budget] if budget else []))
    if result.returncode != 0:
        fail(f"{shlex.join(command)}: exit code {result.returncode}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def budgets_of(args):
    """[(name, bytes)], the largest first."""
    whole = plan(args)
    if whole["cold_bytes"] > 0:
        whole = plan(args, "1000GiB")  # the device is too small for all of it: as if it were not
    budgets = []
    for name in args.budgets.split(","):
        if name == "min":
            budgets.append((name, whole["smallest_budget_bytes"]))
        elif name.endswith("%"):
            budgets.append((name, int(whole["committed_bytes"] * float(name[:-1]) / 100)))
        else:
            budgets.append((name, plan(args, name)["budget_bytes"]))
    return sorted(budgets, key=lambda budget: -budget[1])


def measure(args, budget_bytes, mode):
    """The report of one run; None where the mode does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [args.genai, "run", "-m", args.model, "-p", args.prompt, "-n", str(args.tokens), "--ignore-eos", "-q",
                   "--gpu-budget", f"{budget_bytes}B", "--weight-offload", mode, "--report-file", report, *args.flags]
        result = run(command)
        if result.returncode == DOES_NOT_FIT:
            return None
        if result.returncode != 0:
            fail(f"{shlex.join(command)}: exit code {result.returncode}: {result.stderr.strip()}")
        with open(report) as file:
            found = json.load(file)
    return {key: found.get(key) for key in [*FIELDS, "decode_tokens_per_second", "logits_hash", "device"]}


def sweep(args):
    cells = []
    for name, budget_bytes in budgets_of(args):
        row = {mode: {"budget": name, "budget_bytes": budget_bytes, "asked_mode": mode, "rounds": []} for mode in args.modes}
        for attempt in range(ATTEMPTS):
            for _ in range(args.rounds):
                for mode in args.modes:
                    found = measure(args, budget_bytes, mode)
                    if found:
                        row[mode]["rounds"].append(found)
            if not faults_of(row.values(), args.margin):
                break
        for cell in row.values():
            speeds = [found["decode_tokens_per_second"] for found in cell["rounds"]]
            cell["tokens_per_second"] = statistics.median(speeds) if speeds else None
            cells.append(cell)
            print(shown(cell), flush=True)
    return cells


def shown(cell):
    left = f"{cell['budget']:>8} {cell['budget_bytes'] / MIB:10.1f} MiB  {cell['asked_mode']:>9}: "
    if not cell["rounds"]:
        return left + "does not fit"
    last = cell["rounds"][-1]
    predicted = last["predicted_tokens_per_second"]
    return left + (f"{cell['tokens_per_second']:8.1f} tok/s as {last['mode']}, {last['cold_bytes'] / MIB:.1f} MiB cold" +
                   (f", predicted {predicted:.1f} ({last['bottleneck']})" if predicted else ", no prediction"))


def faults_of(cells, margin):
    cells, faults = list(cells), []
    hashes = {found["logits_hash"] for cell in cells for found in cell["rounds"]}
    if len(hashes) > 1:
        faults.append(f"runs differ in their logits: {', '.join(sorted(hashes))}")
    by_budget = {}
    for cell in cells:
        by_budget.setdefault(cell["budget_bytes"], {})[cell["asked_mode"]] = cell
    for budget_bytes, row in by_budget.items():
        if "auto" not in row:
            continue
        for mode in ONE_WAY:
            if mode not in row or not row[mode]["rounds"]:
                continue
            if row["auto"]["rounds"] and row["auto"]["rounds"][0]["mode"] == row[mode]["rounds"][0]["mode"]:
                continue
            ratios = [auto["decode_tokens_per_second"] / other["decode_tokens_per_second"]
                      for auto, other in zip(row["auto"]["rounds"], row[mode]["rounds"])]
            if not ratios:
                faults.append(f"{budget_bytes} bytes: auto does not fit, {mode} does")
            elif statistics.median(ratios) < 1 - margin:
                faults.append(f"{budget_bytes} bytes: auto has {statistics.median(ratios):.2f} of the speed of {mode}")
    return faults


def write_csv(cells, path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["budget", "budget_bytes", "asked_mode", "tokens_per_second", "slowest", "fastest", *FIELDS])
        for cell in cells:
            speeds = [found["decode_tokens_per_second"] for found in cell["rounds"]]
            last = cell["rounds"][-1] if cell["rounds"] else {}
            writer.writerow([cell["budget"], cell["budget_bytes"], cell["asked_mode"], cell["tokens_per_second"],
                             min(speeds, default=None), max(speeds, default=None), *(last.get(key) for key in FIELDS)])


def plot(cells, args, path):
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed (apt-get install python3-matplotlib)"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))

    def line(mode, value, *style, **more):
        points = sorted((cell["budget_bytes"] / MIB, value(cell)) for cell in cells
                        if cell["asked_mode"] == mode and cell["rounds"] and value(cell))
        if points:
            axes.plot(*zip(*points), *style, **more)

    for mode in args.modes:
        line(mode, lambda cell: cell["tokens_per_second"], "o-", label=mode, linewidth=2.5 if mode == "auto" else 1.2,
             markersize=6 if mode == "auto" else 4, zorder=3 if mode == "auto" else 2)
    line("auto", lambda cell: cell["rounds"][-1]["predicted_tokens_per_second"], "k--", label="bound of auto's plan",
         linewidth=1)
    for name, points in peers(args):
        axes.plot([point["budget_bytes"] / MIB for point in points], [point["tokens_per_second"] for point in points], "x",
                  color="gray", markersize=8, label=name)
    device = next((cell["rounds"][-1]["device"]["name"] for cell in cells if cell["rounds"]), "")
    axes.set_title(f"{os.path.basename(args.model)} on {device}")
    axes.set_xlabel("budget, MiB of device memory")
    axes.set_ylabel("tokens a second, one text")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    return f"plot: {path}"


def peers(args):
    if not args.peer:
        return []
    with open(args.peer) as file:
        peer = json.load(file)
    return [(peer["name"], sorted(peer["points"], key=lambda point: point["budget_bytes"]))]


def self_test():
    def cell(mode, speeds, budget_bytes=100, logits_hash="a", taken=None):
        return {"budget_bytes": budget_bytes, "asked_mode": mode,
                "rounds": [{"decode_tokens_per_second": speed, "logits_hash": logits_hash, "mode": taken or mode}
                           for speed in speeds]}

    cases = [
        ("auto wins", [cell("auto", [10, 11]), cell("stream", [9, 10]), cell("host", [])], None),
        ("auto within the margin", [cell("auto", [95]), cell("stream", [100])], None),
        ("split may be better", [cell("auto", [50]), cell("split", [100])], None),
        ("another budget is another race", [cell("auto", [50]), cell("stream", [100], 200)], None),
        ("drift is not a loss", [cell("auto", [100, 50, 25]), cell("stream", [100, 50, 25])], None),
        ("auto took that mode", [cell("auto", [80], taken="stream"), cell("stream", [100])], None),
        ("auto took another", [cell("auto", [80], taken="host"), cell("stream", [100])], "speed of stream"),
        ("auto loses to stream", [cell("auto", [80]), cell("stream", [100])], "speed of stream"),
        ("auto loses to host", [cell("auto", [80, 70, 100]), cell("host", [100, 100, 100])], "speed of host"),
        ("auto does not fit", [cell("auto", []), cell("zerocopy", [1])], "auto does not fit"),
        ("bits differ", [cell("auto", [10]), cell("stream", [9], 100, "b")], "runs differ"),
    ]
    failures = 0
    for title, cells, expected in cases:
        found = faults_of(cells, 0.1)
        if bool(found) != bool(expected) or (expected and expected not in found[0]):
            print(f"{title}: expected {expected}, found {found}")
            failures += 1
    print(f"sweep: {len(cases)} cases, {failures} not judged as expected")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--genai", default=os.path.join(ROOT, "build", "genai"))
    parser.add_argument("--budgets", default="100%,90%,75%,50%,25%,min")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=MODES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--margin", type=float, default=0.1, help="of auto's speed, that noise may take (default 0.1)")
    parser.add_argument("--out", default="sweep", help="path of what is written, without an ending")
    parser.add_argument("--png", action="store_true")
    parser.add_argument("--peer")
    parser.add_argument("flags", nargs="*", help="behind --: flags of genai")
    args = parser.parse_args()
    if not os.path.exists(args.genai) or not os.path.exists(args.model):
        fail(f"{args.genai} or {args.model} is not there")
    if set(args.modes) - set(MODES) or args.rounds < 1 or args.tokens < 2:
        fail(f"modes are of {', '.join(MODES)}; there is at least one round, of two tokens")

    cells = sweep(args)
    faults = faults_of(cells, args.margin)
    write_csv(cells, args.out + ".csv")
    with open(args.out + ".json", "w") as file:
        json.dump({"command": sys.argv, "margin": args.margin, "cells": cells, "faults": faults}, file, indent=1)
    print(plot(cells, args, args.out + (".png" if args.png else ".svg")))
    for fault in faults:
        print(fault)
    print(f"{len(cells)} cells, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
