#!/usr/bin/env python3
"""check_instruction_sets.py OBJECT... - files compiled for one instruction set must keep their code to themselves.

An inline function that such a file emits is a weak symbol: the linker keeps one copy for the whole program, maybe this
one, and then code that runs on every processor uses instructions that some do not have. So the objects of the files
named math_avx* may define no weak symbol.
"""
import re
import subprocess
import sys

SPECIAL = re.compile(r"/math_avx\w*\.cpp\.o$")


def weak_symbols(object_file):
    listing = subprocess.run(["nm", "--defined-only", "--demangle", object_file], check=True, capture_output=True, text=True)
    # "address type name"; W and V are weak functions and objects, u is unique across the program.
    rows = (line.split(" ", 2) for line in listing.stdout.splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] in "WVu"]


def main(objects):
    special = [name for name in objects if SPECIAL.search(name)]
    if not special:
        print("SKIPPED: no object is built for a special instruction set here")
        return 77
    faults = 0
    for name in special:
        for symbol in weak_symbols(name):
            print(f"{name}: shares {symbol} with the rest of the program: give it internal linkage or force it inline")
            faults += 1
    print(f"instruction sets: {len(special)} objects, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
