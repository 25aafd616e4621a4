#!/usr/bin/env python3
"""list_catch_tests.py PROGRAM OUTPUT LABEL LIST_FLAG... - writes OUTPUT, a ctest file with one entry for each test case
of the Catch2 program PROGRAM. An entry without a test behind it fails; one that says SKIPPED and does not fail is
reported as skipped.

Catch2's own script for CMake cuts names at semicolons and trips over single brackets; test names here are sentences.
LIST_FLAG... is how this version of Catch2 is asked for bare names, one a line.
"""
import os
import pathlib
import re
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PROPERTIES = [
    "TIMEOUT", "600", "WORKING_DIRECTORY", str(REPOSITORY),
    "FAIL_REGULAR_EXPRESSION", "No tests ran|No test cases matched",
    "SKIP_REGULAR_EXPRESSION", "SKIPPED: .*(All tests passed|1 passed)",
]


def bracketed(text):
    """A CMake argument that is taken literally."""
    return f"[==[{text}]==]"


def catch_pattern(name):
    """The name as a test specification: what means something to Catch2's parser is escaped."""
    return re.sub(r'([\\,\[\]"~*])', r"\\\1", name)


def main(arguments):
    if len(arguments) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    program, output, label, *list_flags = arguments
    # Version 2 exits with the number of tests, so the exit code says nothing.
    listing = subprocess.run([program, *list_flags], capture_output=True, text=True)
    names = [line for line in listing.stdout.splitlines() if line]
    if not names or listing.returncode < 0:
        print(f"{program} lists no test (exit code {listing.returncode}):\n{listing.stderr}", file=sys.stderr)
        return 1
    settings = " ".join(bracketed(word) for word in ["LABELS", label, *PROPERTIES])
    lines = []
    for name in names:
        lines.append(f"add_test({bracketed(name)} {bracketed(program)} {bracketed(catch_pattern(name))})")
        lines.append(f"set_tests_properties({bracketed(name)} PROPERTIES {settings})")
    partial = pathlib.Path(output + ".part")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(partial, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
