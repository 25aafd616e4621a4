#!/usr/bin/env python3
"""One model in many memories: offload modes x budgets x graph or not x texts at once, each with 256 tokens a text.

Of each run is checked: every text has the hashes of tests/goldens.json; what was counted is what `genai plan` said before,
to the byte; a graph, where there is one, holds the whole step. With --against, the lines of a run on another device (the
host, say): the same weights were in the same lanes, and the same bytes went the same ways. The cross product is thinned so
that every pair of settings is in some run; the table of runs does not depend on the device.

  scripts/residency_matrix.py -m FILE --out host.jsonl -- --device cpu -t 2
  scripts/residency_matrix.py -m FILE --out cuda.jsonl --against host.jsonl --jobs 4 -- --device cuda

Budgets are shares of what the model needs to be resident, at least the smallest that works. On the second device they are
those of the first, and what its workspace needs more. Speeds of lanes are unknown, so that both devices plan alike
(`split` halves, `auto` copies), but for some runs with given ones, which are compared with their own plan alone.

Exit code 0: no fault; 1: faults, each on a line; 2: nothing could be run; 77: no model.
  scripts/residency_matrix.py --self-test    every pair of settings is there, and every fault is found in made-up lines
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import tempfile

from check_goldens import PROMPTS, ROOT, TOKENS

MODES = ["stream", "zerocopy", "host", "split", "auto"]
BUDGETS = ["100%", "less one byte", "75%", "50%", "25%", "min"]
ROWS = [1, 2, 4, 8]
CONTEXT = 320  # five chunks of the cache, which the longest text needs: all that is planned is committed
NARROW = 16    # rows of a pass that host cores take: the host device knows no other way to compute their rows
SPEEDS = ("resident=2450,ring=54,zero_copy=51,host=110,ring_beside_host=48,host_beside_ring=100,exchange_us=8,"
          "pass_us=300")
TIMEOUT_S = 240
# Equal on two devices with the same weights in the same lanes.
COMPARED = ["resident_bytes", "cold_bytes", "decode_steps", "htod_bytes", "page_ins", "evictions", "zero_copy_bytes",
            "host_computed_bytes", "floor_bytes_per_step", "captures", "replays", "segments", "eager_nodes", "fallbacks",
            "kv_committed_bytes", "kv_growth_events", "kv_bytes_moved"]
COMPARED_KINDS = ["weights", "cold", "ring", "kv"]
OWN_KINDS = ["workspace", "graphs"]  # of device memory, a matter of the device
STEP_LANES = {"htod_bytes": "ring", "zero_copy_bytes": "zero_copy", "host_computed_bytes": "host"}


def cells():
    """Every run of the matrix: a dictionary of settings."""
    found = []
    for (row, mode), (column, budget) in itertools.product(enumerate(MODES), enumerate(BUDGETS)):
        found.append({"mode": mode, "budget": budget, "graph": (row + column // 2) % 2 == 0,
                      "rows": ROWS[(row + column) % len(ROWS)]})
    for index, rows in enumerate(ROWS):
        found.append({"mode": "off", "budget": "100%", "graph": index % 2 == 0, "rows": rows})
    for index, mode in enumerate(MODES[:4]):
        found.append({"mode": mode, "budget": None, "allocator": "plain", "graph": index < 2, "rows": ROWS[index]})
    for index, (mode, budget) in enumerate(itertools.product(["split", "auto"], ["75%", "25%"])):
        found.append({"mode": mode, "budget": budget, "speeds": SPEEDS, "graph": True, "rows": ROWS[index]})
    return found


def name_of(cell):
    parts = [cell["mode"], cell["budget"] or "cold ffn", "graph" if cell["graph"] else "calls", f"{cell['rows']} rows"]
    return ", ".join(parts + [extra for extra in ("allocator", "speeds") if cell.get(extra)])


class Runner:
    def __init__(self, args, goldens):
        self.args = args
        self.goldens = goldens
        self.plans = {}

    def genai(self, verb, cell, *flags):
        width = [] if cell.get("speeds") else ["-ub", str(NARROW)]
        command = [self.args.genai, verb, "-m", self.args.model, "-q", "-c", str(CONTEXT), "-np", str(cell["rows"]), *width,
                   "--lane-speeds", cell.get("speeds") or "none", "--weight-offload", cell["mode"], *flags, *self.args.flags]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr.strip()}")
        return result.stdout

    def plan(self, cell, budget_bytes):
        key = (cell["mode"], cell["rows"], cell.get("speeds"), budget_bytes)
        if key not in self.plans:
            plan = json.loads(self.genai("plan", cell, "--json", "--gpu-budget", f"{budget_bytes}B"))
            self.plans[key] = {name: value for name, value in plan.items() if name != "matrices"}
        return self.plans[key]

    def budget_bytes(self, cell, whole_bytes):
        if cell["budget"] == "100%":
            return whole_bytes
        if cell["budget"] == "less one byte":
            return whole_bytes - 1
        smallest = self.plan(cell, whole_bytes)["smallest_budget_bytes"]
        if cell["budget"] == "min":
            return smallest
        return max(smallest, whole_bytes * int(cell["budget"][:-1]) // 100)

    def run(self, cell, other):
        """A line: the settings, the plan, what was counted, and the faults."""
        line = {"model": os.path.basename(self.args.model), **cell}
        flags = [] if cell["graph"] else ["--no-cuda-graph"]
        try:
            if cell["budget"]:
                whole_bytes = self.plan({**cell, "mode": "off"}, 1 << 50)["committed_bytes"]
                budget = self.budget_bytes(cell, whole_bytes)
                if other and not cell.get("speeds"):
                    budget = other["budget_bytes"] + whole_bytes - other["whole_bytes"]
                line |= {"whole_bytes": whole_bytes, "budget_bytes": budget, "plan": self.plan(cell, budget)}
                flags += ["--gpu-budget", f"{budget}B"]
            else:
                flags += ["--allocator", cell["allocator"], "--cold", "ffn"]
            with tempfile.TemporaryDirectory() as folder:
                batch, report = os.path.join(folder, "batch.jsonl"), os.path.join(folder, "report.json")
                with open(batch, "w") as file:
                    for row in range(cell["rows"]):
                        file.write(json.dumps({"prompt": PROMPTS[row % len(PROMPTS)]}) + "\n")
                self.genai("run", cell, "--batch-file", batch, "-n", str(TOKENS), "--ignore-eos", "--report-file", report,
                           *flags)
                with open(report) as file:
                    line["report"] = shortened(json.load(file))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            line["faults"] = [str(error)]
            return line
        line["faults"] = faults_of(line, self.goldens, other)
        return line


def shortened(report):
    kept = [*COMPARED, "mode", "allocator", "committed_peak_bytes", "committed_bytes", "graph_bytes", "pinned_bytes",
            "decode_tokens_per_second"]
    texts = report.get("rows", [report])
    return {"device": report["device"]["name"], **{name: report[name] for name in kept if name in report},
            "texts": [[text["output_hash"], text["logits_hash"]] for text in texts]}


def faults_of(line, goldens, other):
    """What is wrong with a line, and where it differs from the other device's."""
    report, faults = line["report"], []

    def expect(what, found, wanted):
        if found != wanted:
            faults.append(f"{what} is {found}, expected {wanted}")

    expect("number of texts", len(report["texts"]), line["rows"])
    for row, hashes in enumerate(report["texts"]):
        golden = goldens[row % len(goldens)]
        expect(f"hashes of text {row}", hashes, [golden["output_hash"], golden["logits_hash"]])
    expect("decode_steps", report["decode_steps"], TOKENS - 1)
    if line["graph"]:
        for name, wanted in (("captures", 1), ("replays", TOKENS - 1), ("segments", 1), ("eager_nodes", 0), ("fallbacks", 0)):
            expect(name, report.get(name), wanted)
    else:
        expect("captures", report["captures"], 0)
    if line["budget"]:
        faults += faults_of_plan(line)
    else:
        expect("allocator", report["allocator"], "plain")
        expect("committed_peak_bytes", report.get("committed_peak_bytes"), None)
    if other is None or line.get("speeds"):
        return faults
    for name in COMPARED:
        expect(f"{name} beside {other['report']['device']}", report.get(name), other["report"].get(name))
    if line["budget"]:
        kinds, others = report["committed_bytes"], other["report"]["committed_bytes"]
        for kind in COMPARED_KINDS:
            expect(f"committed {kind} beside {other['report']['device']}", kinds[kind], others[kind])
        own = sum(kinds.get(kind, 0) - others.get(kind, 0) for kind in OWN_KINDS)
        expect(f"committed_peak_bytes beside {other['report']['device']}", report["committed_peak_bytes"] - own,
               other["report"]["committed_peak_bytes"])
    return faults


def faults_of_plan(line):
    report, plan, faults = line["report"], line["plan"], []
    for name, lane in STEP_LANES.items():
        if report[name] != report["decode_steps"] * plan["step_bytes"][lane]:
            faults.append(f"{name} is {report[name]}, planned {plan['step_bytes'][lane]} a step")
    for name, wanted in (("committed_peak_bytes", plan["committed_bytes"]), ("cold_bytes", plan["cold_bytes"]),
                         ("mode", "resident" if plan["mode"] == "off" else plan["mode"])):
        if report[name] != wanted:
            faults.append(f"{name} is {report[name]}, planned {wanted}")
    if report["committed_peak_bytes"] > line["budget_bytes"]:
        faults.append(f"{report['committed_peak_bytes']} bytes were committed within {line['budget_bytes']}")
    if (plan["cold_bytes"] > 0) != (line["budget"] != "100%"):
        faults.append(f"{plan['cold_bytes']} bytes are cold at a budget of {line['budget']}")
    return faults


def key_of(line):
    return tuple(line.get(name) for name in ("model", "mode", "budget", "graph", "rows", "allocator", "speeds"))


def uncovered_pairs():
    budgeted = [cell for cell in cells() if cell["budget"] and cell["mode"] != "off" and not cell.get("speeds")]
    values = {"mode": MODES, "budget": BUDGETS, "graph": [True, False], "rows": ROWS}
    return [((first, one), (second, two)) for first, second in itertools.combinations(values, 2)
            for one, two in itertools.product(values[first], values[second])
            if not any(cell[first] == one and cell[second] == two for cell in budgeted)]


def self_test():
    goldens = [{"output_hash": "a", "logits_hash": "b"}]
    steps = TOKENS - 1
    report = {"texts": [["a", "b"]], "decode_steps": steps, "captures": 1, "replays": steps, "segments": 1, "eager_nodes": 0,
              "fallbacks": 0, "committed_peak_bytes": 90, "cold_bytes": 4, "mode": "stream", "htod_bytes": 4 * steps,
              "zero_copy_bytes": 0, "host_computed_bytes": 0, "page_ins": steps, "device": "here",
              "committed_bytes": {"weights": 60, "cold": 4, "ring": 10, "kv": 10, "workspace": 10}}
    line = {"mode": "stream", "budget": "50%", "graph": True, "rows": 1, "budget_bytes": 99,
            "plan": {"step_bytes": {"ring": 4, "zero_copy": 0, "host": 0}, "committed_bytes": 90, "cold_bytes": 4,
                     "mode": "stream"}, "report": report}
    there = {"report": {**report, "device": "there", "committed_peak_bytes": 87,
                        "committed_bytes": {**report["committed_bytes"], "workspace": 7}}}
    changes = {"texts": [["a", "c"]], "replays": 3, "segments": 2, "fallbacks": 1, "committed_peak_bytes": 91,
               "cold_bytes": 5, "mode": "split", "htod_bytes": 4, "zero_copy_bytes": 1, "host_computed_bytes": 1,
               "page_ins": 1, "committed_bytes": {**report["committed_bytes"], "ring": 11}}
    missed = [f"no fault in a changed {name}" for name, value in changes.items()
              if not faults_of({**line, "report": {**report, name: value}}, goldens, there)]
    missed += [f"a fault that is none: {fault}" for fault in faults_of(line, goldens, there)]
    missed += [f"no run has {pair}" for pair in uncovered_pairs()]
    if not faults_of({**line, "budget_bytes": 89}, goldens, None):
        missed.append("no fault in a budget that was exceeded")
    for fault in missed:
        print(fault)
    print(f"matrix: {len(cells())} runs, {len(missed)} faults of the check itself")
    return 1 if missed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--genai", default=os.path.join(ROOT, "build", "genai"))
    parser.add_argument("--goldens", default=os.path.join(ROOT, "tests", "goldens.json"))
    parser.add_argument("--against", help="lines of a former run on another device")
    parser.add_argument("--out", default="matrix.jsonl")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--only", type=lambda text: slice(*(int(part) for part in text.split(":"))), default=slice(None),
                        help="FIRST:END of the runs; their lines are appended to --out")
    parser.add_argument("flags", nargs="*", help="behind --: flags of genai")
    args = parser.parse_args()
    if not os.path.exists(args.model):
        print(f"SKIPPED: {args.model} is not there")
        return 77
    with open(args.goldens) as file:
        goldens = json.load(file)[os.path.basename(args.model).removesuffix(".gguf")]
    others = {}
    if args.against:
        with open(args.against) as file:
            others = {key_of(line): line for line in map(json.loads, file)}

    runner = Runner(args, goldens)
    asked = cells()[args.only]
    lines = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, \
            open(args.out, "w" if args.only == slice(None) else "a") as out:
        model = os.path.basename(args.model)
        for line in pool.map(lambda cell: runner.run(cell, others.get(key_of({"model": model, **cell}))), asked):
            if args.against and key_of(line) not in others:
                line["faults"].append("the other device has no such run")
            out.write(json.dumps(line) + "\n")
            out.flush()
            lines.append(line)
            for fault in line["faults"]:
                print(f"{name_of(line)}: {fault}", flush=True)
    if not any("report" in line for line in lines):
        return 2
    hashes = {text[1] for line in lines if "report" in line for text in line["report"]["texts"]}
    texts = sum(line["rows"] for line in lines if "report" in line)
    print(f"{len(lines)} runs of {model}, {texts} texts of {TOKENS} tokens, {len(hashes)} hashes for {len(PROMPTS)} prompts, "
          f"{sum(len(line['faults']) for line in lines)} faults" + (f", beside {args.against}" if args.against else ""))
    return 1 if any(line["faults"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
