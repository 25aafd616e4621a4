#!/usr/bin/env python3
"""bench_offload.py - how fast models larger than the memory they may use run, on synthetic weights of real shapes.

Makes each model (make_synthetic.py) in --folder where it is not there yet, runs it all in device memory where that is
asked for, then with shares of a step's bytes cold in every mode, in a batch, and with a long prompt. Prints one line a
run as it ends; --out gets every report, one JSON object a line, with the name of the run. Runs of one model, prompt,
length and width must give equal bits whatever the memory: exit code 1 where two hashes differ or a run fails.

  scripts/bench_offload.py --genai build/genai --device cuda --out offload.jsonl            # 14B in 28 runs, then 70B in 3
  scripts/bench_offload.py --genai build/genai --models 0.5b --device cpu -t 2 --tokens 16  # anywhere
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPT = "The quick brown fox jumps over the lazy dog and then"
LONG_PROMPT = "one " * 128  # 512 tokens of a synthetic vocabulary
MODES = ("auto", "stream", "zerocopy", "host", "split")
COLD_PERCENT = (5, 25, 50, 100)
GIB = 1 << 30
HASHED = ("logits_hash", "output_hash")


class Bench:
    def __init__(self, args):
        self.args = args
        self.hashes = {}
        self.faults = []

    def run(self, model, name, flags, tokens, prompt=PROMPT, context=2048):
        """The report of one run, None where it failed."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            command = [self.args.genai, "run", "-m", self.path(model), "-p", prompt, "-n", str(tokens), "-c", str(context),
                       "--ignore-eos", "--device", self.args.device, "-q", "--report-file", path, *flags,
                       *self.args.flags]
            try:
                result = subprocess.run(command, capture_output=True, text=True, errors="replace",
                                        timeout=self.args.timeout)
                fault = "" if result.returncode == 0 else f"exit code {result.returncode}: {result.stderr.strip()[-400:]}"
            except subprocess.TimeoutExpired:
                fault = f"still running after {self.args.timeout} s"
            if fault:
                self.faults.append(f"{model} {name}: {fault}")
                print(f"{model:5} {name:18} {fault}", flush=True)
                return None
            with open(path) as file:
                report = json.load(file)
        found = tuple(report.get(key) for key in HASHED)
        wanted = self.hashes.setdefault((model, prompt, tokens, report.get("batch")), found)  # a batch has its own hash
        if found != wanted:
            self.faults.append(f"{model} {name}: other bits than the first run with this prompt")
        self.show(model, name, report, found == wanted)
        if self.args.out:
            brief = {key: value for key, value in report.items() if key not in ("replay", "step_logits_hashes")}
            with open(self.args.out, "a") as file:
                file.write(json.dumps({"name": f"{model} {name}", **brief}) + "\n")
        return report

    def show(self, model, name, report, equal):
        steps = report.get("decode_steps") or 1
        fields = [f"{report.get('mode', '?'):9}", f"{report.get('decode_tokens_per_second') or 0:8.2f} tok/s"]
        if "predicted_over_measured" in report:
            fields.append(f"predicted x{report['predicted_over_measured']:.3f} ({report.get('bottleneck', '?')})")
        fields.append(f"prefill {report.get('prefill_tokens_per_second') or 0:7.1f}")
        for key in ("htod_bytes", "zero_copy_bytes", "host_computed_bytes"):
            if report.get(key):
                fields.append(f"{key.removesuffix('_bytes')} {report[key] / steps / 1e6:.0f} MB/step")
        if "traffic_over_floor" in report:
            fields.append(f"traffic/floor {report['traffic_over_floor']}")
        print(f"{model:5} {name:18}", ", ".join(fields), "equal" if equal else "OTHER BITS", flush=True)

    def path(self, model):
        return os.path.join(self.args.folder, f"{model}-{self.args.type}.gguf")

    def make(self, model):
        if os.path.exists(self.path(model)):
            return
        begin = time.monotonic()
        part = self.path(model) + ".part"
        subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "make_synthetic.py"), model, self.args.type, part],
                       check=True, stderr=subprocess.DEVNULL)
        os.rename(part, self.path(model))
        print(f"{model}: made in {time.monotonic() - begin:.0f} s", flush=True)

    def measure_shares(self, model):
        """Shares of what a step reads, cold. The embedding, of which a step reads a row, goes to the host first."""
        tokens = self.args.tokens
        resident = self.run(model, "resident", [], tokens)
        if resident is None:
            return
        step_bytes = resident["step_weight_bytes"]
        embedding_bytes = max(0, resident["resident_bytes"] - step_bytes)
        for percent in COLD_PERCENT:
            cold = ["--cpu-offload-gb", f"{(embedding_bytes + step_bytes * percent / 100) / GIB:.3f}"]
            for mode in self.args.modes:
                self.run(model, f"{percent} % {mode}", [*cold, "--weight-offload", mode], tokens)
            if percent != 50:
                continue
            for mode in ("auto", "stream"):
                self.run(model, f"{percent} % {mode} x8", [*cold, "--weight-offload", mode, "-np", "8"], tokens)
            for mode in self.args.modes:
                self.run(model, f"{percent} % {mode} long", [*cold, "--weight-offload", mode], 4, LONG_PROMPT)

    def measure_budget(self, model, budget):
        for mode in ("auto", "stream"):
            self.run(model, f"{budget} {mode}", ["--gpu-budget", budget, "--weight-offload", mode], self.args.tokens // 2)
        self.run(model, f"{budget} auto long", ["--gpu-budget", budget], 4, LONG_PROMPT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genai", default=os.path.join(ROOT, "build", "genai"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the models are")
    parser.add_argument("--models", nargs="+", default=["14b", "70b"], help="shapes of make_synthetic.py")
    parser.add_argument("--type", default="Q4_0")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budget", default="24GiB", help="of models of 30 GB and more, which run with this and no other")
    parser.add_argument("--timeout", type=int, default=90, help="seconds a run")
    parser.add_argument("--out", help="JSON lines")
    parser.add_argument("flags", nargs="*", help="flags of every run, after --")
    args = parser.parse_args()
    bench = Bench(args)
    for model in args.models:
        bench.make(model)
        if os.path.getsize(bench.path(model)) < 30e9:
            bench.measure_shares(model)
        else:
            bench.measure_budget(model, args.budget)
    for fault in bench.faults:
        print("FAULT", fault)
    return 1 if bench.faults else 0


if __name__ == "__main__":
    sys.exit(main())
