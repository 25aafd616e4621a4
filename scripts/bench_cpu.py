#!/usr/bin/env python3
"""Decode and prefill speed on the host, beside llama.cpp on the same file in the same run.

All sides run in turn, A B C A B C ..., so that a machine whose speed drifts is unfair to none. Prints medians and
ranges, GB/s of weights beside the read peak (measured each round over as many bytes as a step reads), and ratios of the
same round; writes everything raw to a JSON file. A round in which other programs took more than 5 % of the cores is done
again; a case with as many of those as rounds were asked for is marked DISTURBED and says nothing.

  scripts/bench_cpu.py -m FILE [-m FILE ...] [--genai build/genai] [--read-peak build/tests/genai_read_peak]
                       [--isa amx,avx512] [--llama NAME='PATH/llama-bench -fa 1'] [--llama ...] [--threads 2]
                       [--repeats 5] [--prefill 512] [--depths 0,1024] [--tokens 64] [--lock FILE] [--out raw.json]

--isa: values of GENAI_ISA, one side each; without it genai chooses. --lock: held during each case, for a machine that
others use too. Without --llama only genai is measured. llama-bench comes with the source package `llama-cpp-python` on
PyPI: cmake -B build -DCMAKE_BUILD_TYPE=Release vendor/llama.cpp && cmake --build build --target llama-bench
"""
import argparse
import contextlib
import fcntl
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time


def run(command, **kwargs):
    result = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if result.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}: exit code {result.returncode}\n{result.stderr[-2000:]}")
    return result


@contextlib.contextmanager
def held(path):
    if not path:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


MOST_OTHER_SHARE = 0.05


class OtherPrograms:
    """Share of the cores that processes which are no children of this one took, and that the hypervisor kept."""

    def __init__(self):
        self.start = self.sample()

    @staticmethod
    def sample():
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, soft, steal = (int(field) for field in file.readline().split()[1:9])
        own = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
                  for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        busy = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK") - own
        return time.monotonic(), busy, steal / os.sysconf("SC_CLK_TCK")

    def shares(self):
        spent = [now - before for now, before in zip(self.sample(), self.start)]
        core_seconds = spent[0] * os.cpu_count()
        return max(0.0, spent[1] / core_seconds), spent[2] / core_seconds


def prompt_of(genai, model, token_count):
    """A text that the model's tokenizer turns into exactly `token_count` tokens, BOS included."""
    words = token_count
    for _ in range(20):
        text = " ".join(["one"] * max(0, words))
        count = json.loads(run([genai, "tokenize", "-m", model, "-p", text, "--json"]).stdout)["count"]
        if count == token_count:
            return text
        words += token_count - count
    raise SystemExit(f"no prompt of {token_count} tokens found for {model}")


def genai_run(args, isa, model, prompt_file, new_tokens, context):
    environment = dict(os.environ, **({"GENAI_ISA": isa} if isa else {}))
    result = run([args.genai, "run", "-m", model, "-f", prompt_file, "-n", str(new_tokens), "-c", str(context),
                  "--ignore-eos", "-t", str(args.threads), "--device", "cpu", "--report", "json", "--log-level",
                  "error"], env=environment)
    report = json.loads(result.stderr.strip().splitlines()[-1])
    if isa and report["host"]["isa"] != isa:
        raise SystemExit(f"asked for {isa}, ran {report['host']['isa']}")
    return report


def llama_run(args, command, model, prefill, decode, depth):
    full = shlex.split(command) + ["-m", model, "-t", str(args.threads), "-r", "1", "-o", "json", "-ngl", "0", "-p",
                                   str(prefill), "-n", str(decode), "-d", str(depth)]
    return json.loads(run(full).stdout)[0]


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def text_of(numbers, digits):
    return f"{numbers['median']:.{digits}f} ({numbers['min']:.{digits}f} to {numbers['max']:.{digits}f})"


def measure(args, model, kind, count, depth, prompt_file):
    """One case; the first round warms caches and is not counted."""
    prompt_tokens = count if kind == "prefill" else max(depth, 1)
    new_tokens = 1 if kind == "prefill" else count + 1
    with open(prompt_file, "w") as file:
        file.write(prompt_of(args.genai, model, prompt_tokens))
    isas = args.isa.split(",") if args.isa else [None]
    rounds, llama_facts, genai_facts, repeated = [], {}, {}, 0
    while len(rounds) < args.repeats + 1:
        speeds = {}
        others = OtherPrograms()
        for isa in isas:
            report = genai_run(args, isa, model, prompt_file, new_tokens, prompt_tokens + new_tokens + 64)
            assert report["prompt_tokens"] == prompt_tokens, report
            name = f"genai {report['host']['isa']}"
            speeds[name] = report[f"{kind}_tokens_per_second"]
            genai_facts[name] = {key: report.get(key) for key in (
                "host", "step_weight_bytes", "kv_committed_bytes", "ubatch_tokens", "logits_hash", "model")}
        for name, command in args.llama:
            entry = llama_run(args, command, model, *((count, 0) if kind == "prefill" else (0, count)), depth)
            speeds[name] = entry.pop("avg_ts")
            llama_facts[name] = entry
        mebibytes = max(1, report["step_weight_bytes"] >> 20)
        peak = json.loads(run([args.read_peak, str(args.threads), str(mebibytes)]).stdout)["read_gbps_median"]
        other_share, stolen_share = others.shares()
        if other_share > MOST_OTHER_SHARE and repeated < args.repeats:
            repeated += 1
            continue
        rounds.append({"tokens_per_second": speeds, "read_peak_gbps": peak, "other_programs": other_share,
                       "stolen": stolen_share})
    rounds = rounds[1:]
    peaks = [one["read_peak_gbps"] for one in rounds]
    speeds = {name: [one["tokens_per_second"][name] for one in rounds] for name in rounds[0]["tokens_per_second"]}
    ours = [name for name in speeds if name in genai_facts]
    entry = {"model": os.path.basename(model), "kind": kind, "tokens": count, "depth": depth,
             "step_weight_bytes": report["step_weight_bytes"], "read_peak_gbps": summary(peaks),
             "tokens_per_second": {name: summary(values) for name, values in speeds.items()},
             "ratios": {f"{name} / {other}": summary([a / b for a, b in zip(speeds[name], speeds[other])])
                        for name in ours for other in speeds if other in llama_facts},
             "disturbed": any(one["other_programs"] > MOST_OTHER_SHARE for one in rounds), "rounds": rounds,
             "rounds_repeated": repeated, "genai": genai_facts, "llama_cpp": llama_facts}
    print(f"{entry['model']} {kind} {count} at {depth}{' DISTURBED' if entry['disturbed'] else ''}")
    for name, numbers in entry["tokens_per_second"].items():
        line = f"  {name:24} {text_of(numbers, 1)} tok/s"
        if kind == "decode" and name in genai_facts:
            gbps = [speed * report["step_weight_bytes"] / 1e9 for speed in numbers["all"]]
            entry.setdefault("weight_gbps", {})[name] = summary(gbps)
            entry.setdefault("share_of_read_peak", {})[name] = summary([a / b for a, b in zip(gbps, peaks)])
            line += f", {statistics.median(gbps):.1f} of {entry['read_peak_gbps']['median']:.1f} GB/s"
        print(line)
    for name, numbers in entry["ratios"].items():
        print(f"  {name:48} {text_of(numbers, 2)}")
    sys.stdout.flush()
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", required=True)
    parser.add_argument("--genai", default="build/genai")
    parser.add_argument("--read-peak", default="build/tests/genai_read_peak")
    parser.add_argument("--isa")
    parser.add_argument("--llama", action="append", default=[], metavar="NAME=COMMAND",
                        type=lambda value: tuple(value.split("=", 1)))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--depths", default="0,1024")
    parser.add_argument("--prefill", type=int, default=512, help="0: none")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--lock")
    parser.add_argument("--out")
    args = parser.parse_args()

    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.model:
            cases = [("prefill", args.prefill, 0)] if args.prefill > 0 else []
            cases += [("decode", args.tokens, int(depth)) for depth in args.depths.split(",") if depth]
            for kind, count, depth in cases:
                with held(args.lock):
                    results.append(measure(args, model, kind, count, depth, os.path.join(folder, "prompt.txt")))

    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    document = {"command": sys.argv, "date": time.strftime("%Y-%m-%d"), "cpu": cpu,
                "genai_version": run([args.genai, "--version"]).stdout.strip(), "results": results}
    if args.out:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        with open(args.out, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
