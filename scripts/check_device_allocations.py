#!/usr/bin/env python3
"""check_device_allocations.py OBJECT... - device memory is taken by cuda/cuda_memory.cpp and by nothing else, but for the
plain allocations that it asks cuda/cuda_plain_memory.cpp for.

Looks at the objects of the CUDA backend: none may call an allocating function of the runtime or of the driver, or find
libraries by itself; where one looks entry points of the driver up by name, cuMemCreate is the only one that allocates, and
cuda_driver.cpp the only place that knows it.

  check_device_allocations.py --self-test    proves on compiled samples that each rule can fail
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ALLOCATING_CALL = re.compile(
    r"(cuda(Malloc\w*|HostAlloc|HostRegister|MemPoolCreate|GraphAddMemAllocNode)"
    r"|cu(MemAlloc\w*|MemCreate|MemHostAlloc|MemHostRegister\w*|MemPoolCreate|Array\w*Create\w*|MipmappedArrayCreate))"
    r"(_v\d+)?(_ptsz)?")
OWN_LOOK_UP = re.compile(r"dlopen|dlsym|dlmopen")
LOOK_UP = re.compile(r"cudaGetDriverEntryPoint\w*")
DRIVER_NAME = re.compile(rb"(?<![A-Za-z0-9_])cu[A-Z][A-Za-z0-9_]+(?=\0)")
# What the places for it may call or look up although it allocates.
ALLOWED_CALLS = {"cuda_plain_memory.cpp.o": {"cudaMalloc", "cudaHostAlloc"}}
ALLOWED_LOOK_UP = {"cuda_driver.cpp.o": {"cuMemCreate"}}


def undefined_symbols(object_file):
    listing = subprocess.run(["nm", "--undefined-only", "--format=posix", object_file], check=True, capture_output=True,
                             text=True)
    return [line.split(" ", 1)[0] for line in listing.stdout.splitlines() if " " in line]


def faults_of(object_file):
    path = pathlib.Path(object_file)
    symbols = undefined_symbols(object_file)
    allowed_calls = ALLOWED_CALLS.get(path.name, set())
    faults = [f"calls {name}: memory is taken by cuda/cuda_memory.cpp only" for name in symbols
              if ALLOCATING_CALL.fullmatch(name) and name not in allowed_calls]
    faults += [f"calls {name}: entry points are looked up through the runtime" for name in symbols
               if OWN_LOOK_UP.fullmatch(name)]
    if any(LOOK_UP.fullmatch(name) for name in symbols):
        names = {name.decode() for name in DRIVER_NAME.findall(path.read_bytes())}
        allowed = ALLOWED_LOOK_UP.get(path.name, set())
        faults += [f"looks {name} up: memory is taken by cuda/cuda_memory.cpp only" for name in sorted(names - allowed)
                   if ALLOCATING_CALL.fullmatch(name)]
    return faults


# (object's name, code, a piece of the expected fault; None: no fault)
SAMPLES = [
    ("clean.cpp.o", "int cudaMemcpyAsync(void*); int f(void* p) { return cudaMemcpyAsync(p); }", None),
    ("message.cpp.o", 'const char* text(void) { return "cuMemCreate"; }', None),
    ("runtime.cpp.o", "int cudaMalloc(void**, long); int f(void** p) { return cudaMalloc(p, 1); }", "calls cudaMalloc:"),
    ("pinned.cpp.o", "int cudaHostAlloc(void**, long); int f(void** p) { return cudaHostAlloc(p, 1); }",
     "calls cudaHostAlloc:"),
    ("pointer.cpp.o", "int cudaMallocAsync(void**); void* f(void) { return (void*)cudaMallocAsync; }",
     "calls cudaMallocAsync:"),
    ("cuda_plain_memory.cpp.o", "int cudaMalloc(void**, long); int f(void** p) { return cudaMalloc(p, 1); }", None),
    ("cuda_plain_memory.cpp.o", "int cudaMallocManaged(void**, long); int f(void** p) { return cudaMallocManaged(p, 1); }",
     "calls cudaMallocManaged:"),
    ("driver.cpp.o", "int cuMemAlloc_v2(long*, long); int f(long* p) { return cuMemAlloc_v2(p, 1); }",
     "calls cuMemAlloc_v2:"),
    ("library.cpp.o", "void* dlsym(void*, const char*); void* f(void* p) { return dlsym(p, \"x\"); }", "calls dlsym:"),
    ("cuda_driver.cpp.o", "int cudaGetDriverEntryPoint(const char*); int f(void) { return cudaGetDriverEntryPoint(\"cuMemCreate\"); }",
     None),
    ("other.cpp.o", "int cudaGetDriverEntryPoint(const char*); int f(void) { return cudaGetDriverEntryPoint(\"cuMemCreate\"); }",
     "looks cuMemCreate up:"),
    ("cuda_driver.cpp.o",
     "int cudaGetDriverEntryPoint(const char*); int f(void) { return cudaGetDriverEntryPoint(\"cuMemAllocManaged\"); }",
     "looks cuMemAllocManaged up:"),
]


def self_test():
    failures = []
    for name, code, expected in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            target = str(pathlib.Path(folder, name))
            subprocess.run(["cc", "-w", "-x", "c", "-c", "-o", target, "-"], input=code, text=True, check=True)
            found = faults_of(target)
        if (expected is None and found) or (expected is not None and (len(found) != 1 or expected not in found[0])):
            failures.append(f"{name}: expected {expected}, found {found}")
    for failure in failures:
        print(failure)
    print(f"device allocations: {len(SAMPLES)} samples, {len(failures)} not judged as expected")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    faults = 0
    for name in arguments:
        for fault in faults_of(name):
            print(f"{name}: {fault}")
            faults += 1
    print(f"device allocations: {len(arguments)} objects, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
