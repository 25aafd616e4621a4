#!/usr/bin/env python3
"""How fast genai loads a model that the page cache holds, beside a plain copy of the file into fresh memory.

Both run in turn, with as many threads. Prints medians and ranges of GB/s of the file and of the ratio of the same round; a
round in which other programs took more than 5 % of the cores is done again, and says nothing after as many of those as
rounds were asked for. Writes everything raw to a JSON file.

  scripts/bench_load.py -m FILE [-m FILE ...] [--genai build/genai] [--copy-peak build/tests/genai_copy_peak]
                        [--threads 2] [--repeats 9] [--lock FILE] [--out raw.json]
"""
import argparse
import json
import os
import tempfile

from bench_cpu import MOST_OTHER_SHARE, OtherPrograms, held, run, summary, text_of


def load_gbps(args, model):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        run([args.genai, "run", "-m", model, "-p", "one", "-n", "1", "--ignore-eos", "-t", str(args.threads), "--device",
             "cpu", "--report-file", path, "--log-level", "error"])
        with open(path) as file:
            return json.load(file)["load_gbps"]


def measure(args, model):
    rounds, repeated = [], 0
    while len(rounds) < args.repeats + 1:  # the first fills the page cache and is not counted
        others = OtherPrograms()
        load = load_gbps(args, model)
        copy = json.loads(run([args.copy_peak, model, str(args.threads), "3"]).stdout)["copy_gbps_median"]
        other_share, stolen_share = others.shares()
        if other_share > MOST_OTHER_SHARE and repeated < args.repeats:
            repeated += 1
            continue
        rounds.append({"load_gbps": load, "copy_gbps": copy, "ratio": load / copy, "other_programs": other_share,
                       "stolen": stolen_share})
    result = {"model": os.path.basename(model), "threads": args.threads, "disturbed": repeated >= args.repeats,
              "rounds": rounds[1:]}
    for key in ("load_gbps", "copy_gbps", "ratio"):
        result[key] = summary([one[key] for one in rounds[1:]])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", action="append", required=True)
    parser.add_argument("--genai", default="build/genai")
    parser.add_argument("--copy-peak", default="build/tests/genai_copy_peak")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--lock")
    parser.add_argument("--out")
    args = parser.parse_args()
    results = []
    for model in args.model:
        with held(args.lock):
            result = measure(args, model)
        results.append(result)
        print(f"{result['model']:40} load {text_of(result['load_gbps'], 2)} GB/s   copy "
              f"{text_of(result['copy_gbps'], 2)} GB/s   {text_of(result['ratio'], 2)} of it"
              f"{'   DISTURBED' if result['disturbed'] else ''}", flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
