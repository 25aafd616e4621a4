#!/usr/bin/env python3
"""Compares what genai generates with tests/goldens.json: the hash of all logits and the hash of the text.

Every case is a model, a prompt and a length; greedy, so that nothing else matters. The goldens were written on the host; the
same file is checked in CI without a GPU and on a machine with one, with whatever flags come after `--`:

  scripts/check_goldens.py --genai build/genai                                  # the host, as CI does
  scripts/check_goldens.py --genai build/genai -- --device cuda --no-cuda-graph
  scripts/check_goldens.py --genai build/genai --update                         # after a change of the arithmetic's version

Models are looked for in --models (several times), then in $GENAI_SHARED_DIR or ../shared, then in ~/.cache/genai.
Exit code 0: all equal; 1: one differs; 77: no model found. Models that were not found are listed.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPTS = ["Once upon a time, in a small village by the sea, there lived an old clockmaker who",
           "The three largest cities of France are",
           "def fibonacci(n):\n    "]
TINY = ["tiny-llama-F32", "tiny-llama-F16", "tiny-llama-BF16", "tiny-llama-Q4_0", "tiny-llama-Q4_1", "tiny-llama-Q5_0",
        "tiny-llama-Q5_1", "tiny-llama-Q8_0", "tiny-llama-Q4_K", "tiny-llama-Q5_K", "tiny-llama-Q6_K", "tiny-qwen2-Q4_K_M",
        "tiny-qwen2-Q8_0", "tiny-qwen3-Q4_K_M", "tiny-qwen3-Q8_0", "tiny-gemma3-Q4_K_M", "tiny-gemma3-Q8_0"]
REAL = ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-Q4_K_M"]
TOKENS = 256
CONTEXT = 512


def folders(args):
    shared = os.environ.get("GENAI_SHARED_DIR") or os.path.join(ROOT, "..", "shared")
    return args.models + [os.path.join(shared, "data", "reference", "tiny"), os.path.expanduser("~/.cache/genai")]


def find(model, args):
    paths = (os.path.join(folder, model + ".gguf") for folder in folders(args))
    return next((path for path in paths if os.path.exists(path)), None)


def generate(args, path, prompt, flags):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [args.genai, "run", "-m", path, "-p", prompt, "-n", str(TOKENS), "-c", str(CONTEXT), "--ignore-eos",
                   "--report-file", report, "-q", "--lane-speeds", "none", *flags]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit code {result.returncode}: {result.stderr.strip()}")
        with open(report) as file:
            found = json.load(file)
    return {key: found[key] for key in ("arithmetic", "logits_hash", "output_hash")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genai", default=os.path.join(ROOT, "build", "genai"))
    parser.add_argument("--goldens", default=os.path.join(ROOT, "tests", "goldens.json"))
    parser.add_argument("--models", action="append", default=[], help="a folder with models")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="generations at a time")
    parser.add_argument("--update", action="store_true", help="write what was found")
    parser.add_argument("flags", nargs="*", help="flags of `genai run`, after --")
    args = parser.parse_args()

    goldens = {}
    if not args.update:
        with open(args.goldens) as file:
            goldens = json.load(file)
    equal, different = 0, []
    paths = {model: find(model, args) for model in TINY + REAL if args.only in model}
    missing = [model for model, path in paths.items() if path is None]
    models = [model for model in paths if model not in missing]
    flags = args.flags or ["--device", "cpu"]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {model: [pool.submit(generate, args, paths[model], prompt, flags) for prompt in PROMPTS]
                   for model in models}
        concurrent.futures.wait([run for runs in running.values() for run in runs])
    for model in models:
        found = [run.result() for run in running[model]]
        if args.update:
            goldens[model] = found
        for prompt, new, old in zip(PROMPTS, found, goldens[model]):
            if new == old:
                equal += 1
            else:
                different.append(f"{model}, {prompt!r}: {new}, expected {old}")
    if missing:
        print("SKIPPED, not found:", ", ".join(missing))
    for line in different:
        print("DIFFERS:", line)
    print(f"{equal} generations of {TOKENS} tokens equal, {len(different)} different")
    if args.update:
        with open(args.goldens, "w") as file:
            json.dump(goldens, file, indent=1)
            file.write("\n")
    sys.exit(1 if different else 0 if equal else 77)


if __name__ == "__main__":
    main()
