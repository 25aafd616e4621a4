#!/usr/bin/env python3
"""Holds the sources against the picture of the layers: who may include whom, where CUDA may appear, how files are named
and how long they are, and that every source is in the build.

  check_layers.py [ROOT]      check a tree (default: this repository); prints each fault, exit code 1 if there is one
  check_layers.py --self-test proves on made-up trees that each rule can fail
"""
import pathlib
import re
import sys
import tempfile

ROOTS = ("cli", "engine", "cuda", "tokenizer", "tests")
SOURCE_ENDINGS = {".cpp", ".h", ".cu", ".cuh"}
LONGEST_FILE_LINES = 600
VAGUE_NAMES = {"util", "utils", "common", "core", "base", "manager", "helper", "helpers"}

# Layer -> the layers it may include. A layer is the longest of these prefixes that a file's path has; `engine` stands
# for the headers directly under engine/ (errors, types, layouts), which include nothing but one another.
# NOTE [Layers]: the same picture as in README.md, "How it works".
MAY_INCLUDE = {
    "cli": {"cli", "tokenizer", "engine", "engine/open_device", "engine/device", "engine/host", "engine/residency",
            "engine/model", "engine/decode"},
    "tokenizer": {"tokenizer"},
    "engine": {"engine"},
    "engine/open_device": {"engine", "engine/open_device", "engine/device", "engine/host", "cuda"},
    "engine/device": {"engine", "engine/device"},
    "engine/host": {"engine", "engine/device", "engine/host"},
    "engine/residency": {"engine", "engine/device", "engine/residency"},
    "engine/model": {"engine", "engine/device", "engine/residency", "engine/model"},
    "engine/decode": {"engine", "engine/device", "engine/residency", "engine/model", "engine/decode"},
    "cuda": {"engine", "engine/device", "cuda"},
}
# The headers under engine/device are the seam: of engine/ itself they know the element types and the errors only.
SEAM_MAY_INCLUDE = {"engine/dtype.h", "engine/error.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cuda_\w+|driver_types|device_launch_parameters|cooperative_groups|mma|nvrtc|nvml|"
                         r"cublas\w*|cudnn\w*|curand\w*|cusparse\w*|nvToolsExt)(\.h|\.hpp)?$|^(cub|thrust|cuda|nvtx3|cute|cutlass)/")
DEVICE_ALLOCATION = re.compile(r"\b(cuda(Malloc|Free)\w*|cuMem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve)\w*)\s*\(")
# Compute capability 7.5, the oldest that is built for, has none of these: ptx.cuh gives each a substitute.
NEW_INTRINSIC = re.compile(r"\b(__reduce_\w+_sync|__pipeline_\w+|__cluster\w+)\s*\(")
NEW_INTRINSIC_FILE = "cuda/kernels/ptx.cuh"
MANAGED_MEMORY = re.compile(r"\b(cudaMallocManaged|cuMemAllocManaged|__managed__)\b")


def layer_of(path):
    """'engine/host/pool.h' -> 'engine/host'; 'engine/error.h' -> 'engine'; None for tests and unknown places."""
    without_ending = path.rsplit(".", 1)[0]
    candidates = [layer for layer in MAY_INCLUDE if without_ending == layer or path.startswith(layer + "/")]
    if not candidates:
        return None
    return max(candidates, key=len)


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def check_include(path, quoted, target):
    layer = layer_of(path)
    in_cuda = path.startswith("cuda/") or (path.startswith("tests/") and path.endswith(".cu"))
    if CUDA_HEADER.search(target) and not (quoted and target.startswith("cuda/")):
        return None if in_cuda else f"includes the CUDA header {target}: those stay under cuda/"
    if not quoted:
        return None
    root = target.split("/", 1)[0]
    if root not in ROOTS or "/" not in target or ".." in target:
        return f'includes "{target}": write project includes from the root of the repository'
    if path.startswith("tests/"):
        if root == "cuda" and "cuda" not in pathlib.PurePosixPath(path).name:
            return f"includes {target}: tests that need CUDA have cuda in their name"
        return None
    if root == "tests":
        return f"includes {target}: only tests include tests"
    target_layer = layer_of(target)
    if layer is None or target_layer is None:
        return f"includes {target}: one of the two is in no known layer"
    if target_layer not in MAY_INCLUDE[layer]:
        return f"includes {target}: {layer} may not know {target_layer}"
    if layer == "engine/device" and target_layer == "engine" and target not in SEAM_MAY_INCLUDE:
        return f"includes {target}: the seam may know {' and '.join(sorted(SEAM_MAY_INCLUDE))} only"
    return None


def check_file(path, text):
    faults = []
    lines = text.count("\n") + (0 if text.endswith("\n") or not text else 1)
    if lines >= LONGEST_FILE_LINES:
        faults.append(f"has {lines} lines: split it (under {LONGEST_FILE_LINES}, one responsibility a file)")
    code = without_comments(text)
    for bracket, target in INCLUDE.findall(code):
        fault = check_include(path, bracket == '"', target)
        if fault:
            faults.append(fault)
    intrinsic = NEW_INTRINSIC.search(code)
    if intrinsic and path != NEW_INTRINSIC_FILE:
        faults.append(f"calls {intrinsic.group(1)}, which not every device has: {NEW_INTRINSIC_FILE} has what to call instead")
    if MANAGED_MEMORY.search(code):
        faults.append("uses managed memory, which this project refuses")
    elif not path.startswith("cuda/"):
        call = DEVICE_ALLOCATION.search(code)
        if call:
            faults.append(f"calls {call.group(1)}: device memory is allocated under cuda/ only")
    return faults


def check_tree(root):
    root = pathlib.Path(root)
    faults = []
    sources = []
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            vague = set(file.name.split(".")[0].split("_")) & VAGUE_NAMES
            if vague:
                faults.append(f"{path}: '{vague.pop()}' says nothing about what is inside: name it after its one job")
            if file.is_file() and file.suffix in SOURCE_ENDINGS:
                sources.append(path)
                faults += [f"{path}: {fault}" for fault in check_file(path, file.read_text(encoding="utf-8"))]
    build = "".join(list_file.read_text(encoding="utf-8")
                    for list_file in (root / "CMakeLists.txt", root / "tests/CMakeLists.txt") if list_file.is_file())
    built = set(re.findall(r"[\w./-]+\.(?:cpp|cu)\b", re.sub(r"#[^\n]*", "", build)))
    for path in sources:
        if path.endswith((".cpp", ".cu")) and path not in built and path.removeprefix("tests/") not in built:
            faults.append(f"{path}: is in no list of CMakeLists.txt or tests/CMakeLists.txt, so it is never built")
    return len(sources), faults


SELF_TEST_CLEAN = {
    "CMakeLists.txt": "add_executable(genai cli/main.cpp)\nadd_library(e engine/open_device.cpp engine/host/pool.cpp cuda/device.cpp)\n",
    "tests/CMakeLists.txt": "add_executable(genai_tests pool_test.cpp device_cuda.cpp)\n",
    "cli/main.cpp": '#include <fmt/core.h>\n#include "cli/run.h"\n#include "engine/open_device.h"\n#include "tokenizer/t.h"\n',
    "cli/run.h": '#include "engine/decode/loop.h"\n',
    "tokenizer/t.h": "#include <string>\n",
    "engine/error.h": "// not code: cudaMalloc(1), #include <cuda.h>\n/* #include <cuda.h> */\n",
    "engine/dtype.h": '#include "engine/error.h"\n',
    "engine/packed_layout.h": '#include "engine/dtype.h"\n',
    "engine/open_device.h": '#include "engine/device/device.h"\n',
    "engine/open_device.cpp": '#include "engine/open_device.h"\n#include "engine/host/pool.h"\n#include "cuda/device.h"\n',
    "engine/device/device.h": '#include "engine/dtype.h"\n#include "engine/error.h"\n',
    "engine/host/pool.h": '#include "engine/packed_layout.h"\n#include "engine/device/device.h"\n',
    "engine/host/pool.cpp": '#include "engine/host/pool.h"\n',
    "engine/residency/arena.h": '#include "engine/device/device.h"\n',
    "engine/model/map.h": '#include "engine/residency/arena.h"\n',
    "engine/decode/loop.h": '#include "engine/model/map.h"\n',
    "cuda/device.h": '#include "engine/device/device.h"\n',
    "cuda/device.cpp": '#include <cuda_runtime.h>\n#include "cuda/device.h"\nvoid f() { cudaMalloc(0, 0); }\n',
    "cuda/kernels/ptx.cuh": "int f() { return __reduce_max_sync(1, 2); }\n",
    "tests/pool_test.cpp": '#include "tests/catch.h"\n#include "engine/host/pool.h"\n#include "tokenizer/t.h"\n',
    "tests/device_cuda.cpp": '#include "cuda/device.h"\n',
    "tests/catch.h": "",
}
# (what is wrong, the files that replace or join the clean tree, a piece of the expected message)
SELF_TEST_FAULTS = [
    ("tokenizer knows engine", {"tokenizer/t.h": '#include "engine/error.h"\n'}, "tokenizer may not know engine"),
    ("engine knows tokenizer", {"engine/model/map.h": '#include "tokenizer/t.h"\n'}, "engine/model may not know tokenizer"),
    ("engine knows cli", {"engine/decode/loop.h": '#include "cli/run.h"\n'}, "engine/decode may not know cli"),
    ("model knows host", {"engine/model/map.h": '#include "engine/host/pool.h"\n'}, "engine/model may not know engine/host"),
    ("decode knows host", {"engine/decode/loop.h": '#include "engine/host/pool.h"\n'}, "engine/decode may not know engine/host"),
    ("residency knows model", {"engine/residency/arena.h": '#include "engine/model/map.h"\n'}, "may not know engine/model"),
    ("residency knows cuda", {"engine/residency/arena.h": '#include "cuda/device.h"\n'}, "may not know cuda"),
    ("model opens devices", {"engine/model/map.h": '#include "engine/open_device.h"\n'}, "may not know engine/open_device"),
    ("model knows decode", {"engine/model/map.h": '#include "engine/decode/loop.h"\n'}, "may not know engine/decode"),
    ("host knows cuda", {"engine/host/pool.h": '#include "cuda/device.h"\n'}, "engine/host may not know cuda"),
    ("cuda knows host", {"cuda/device.h": '#include "engine/host/pool.h"\n'}, "cuda may not know engine/host"),
    ("cli knows cuda", {"cli/run.h": '#include "cuda/device.h"\n'}, "cli may not know cuda"),
    ("engine root knows a folder", {"engine/error.h": '#include "engine/device/device.h"\n'}, "engine may not know engine/device"),
    ("seam knows the packing", {"engine/device/device.h": '#include "engine/packed_layout.h"\n'}, "the seam may know"),
    ("CUDA header in the engine", {"engine/host/pool.h": "#include <cuda_runtime_api.h>\n"}, "CUDA header"),
    ("quoted CUDA header in the engine", {"engine/host/pool.h": '#  include "cuda.h"\n'}, "CUDA header"),
    ("CUDA library header in cli", {"cli/run.h": "#include <cuda/std/atomic>\n"}, "CUDA header"),
    ("CUDA header in a host test", {"tests/pool_test.cpp": "#include <cuda_fp16.h>\n"}, "CUDA header"),
    ("cuda/ in a host test", {"tests/pool_test.cpp": '#include "cuda/device.h"\n'}, "have cuda in their name"),
    ("tests in the product", {"cli/run.h": '#include "tests/catch.h"\n'}, "only tests include tests"),
    ("relative include", {"engine/host/pool.cpp": '#include "pool.h"\n'}, "from the root of the repository"),
    ("upward include", {"engine/host/pool.cpp": '#include "engine/../cuda/device.h"\n'}, "from the root of the repository"),
    ("allocation outside cuda", {"engine/host/pool.cpp": "void f() { cudaMallocHost(0, 0); }\n"}, "calls cudaMallocHost"),
    ("driver allocation outside cuda", {"engine/host/pool.cpp": "void f() { cuMemCreate (0); }\n"}, "calls cuMemCreate"),
    ("managed memory in cuda", {"cuda/device.cpp": "void f() { cudaMallocManaged(0, 0); }\n"}, "managed memory"),
    ("intrinsic of new devices", {"cuda/device.h": "int f() { return __reduce_max_sync(1, 2); }\n"}, "not every device has"),
    ("vague file", {"engine/model/string_utils.h": "\n"}, "says nothing"),
    ("vague folder", {"engine/common/thing.txt": "\n"}, "says nothing"),
    ("long file", {"engine/host/pool.h": "\n" * LONGEST_FILE_LINES}, "600 lines"),
    ("forgotten source", {"engine/host/extra.cpp": "\n"}, "never built"),
    ("forgotten test", {"tests/extra_test.cpp": "\n"}, "never built"),
    ("source only in a comment of the build", {"CMakeLists.txt": SELF_TEST_CLEAN["CMakeLists.txt"] + "# engine/host/extra.cpp\n",
                                               "engine/host/extra.cpp": "\n"}, "never built"),
    ("engine folder without a layer", {"engine/magic/x.h": '#include "engine/host/pool.h"\n'}, "may not know engine/host"),
]


def faults_of(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_tree(folder)[1]


def self_test():
    failures = []
    clean_faults = faults_of(SELF_TEST_CLEAN)
    if clean_faults:
        failures.append(f"the clean tree has faults: {clean_faults}")
    for title, files, expected in SELF_TEST_FAULTS:
        found = faults_of({**SELF_TEST_CLEAN, **files})
        if len(found) != 1 or expected not in found[0]:
            failures.append(f"{title}: expected one fault with '{expected}', found {found}")
    for failure in failures:
        print(failure)
    print(f"layer rules: {len(SELF_TEST_FAULTS) + 1} trees, {len(failures)} not judged as expected")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 2
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent
    count, faults = check_tree(root)
    for fault in faults:
        print(fault)
    if count == 0:
        print(f"no sources under {root}")
        return 1
    print(f"layers: {count} sources, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
