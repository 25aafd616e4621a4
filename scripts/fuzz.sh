#!/usr/bin/env bash
# fuzz.sh [SECONDS] - runs each fuzz target of tests/fuzz for SECONDS (default 60) under the address and
# undefined-behaviour sanitizers, starting from tests/fuzz/corpus/NAME. New inputs stay in build-fuzz/corpus/NAME; an
# input that breaks a target is left in build-fuzz/crashes. Exit code 77: clang is not here, nothing ran.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
cd "$repository"

seconds="${1:-60}"
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || die "'$seconds' is no number of seconds (usage: scripts/fuzz.sh [SECONDS])"

compiler=''
for candidate in clang++ clang++-18 clang++-17 clang++-16 clang++-15 clang++-14; do
  # A clang without its runtime library cannot link a fuzzer.
  if echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$candidate" -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null; then
    compiler="$candidate"
    break
  fi
done
if [[ -z "$compiler" ]]; then
  warn 'SKIPPED: fuzzing, no clang++ with libFuzzer is here (Debian: apt-get install clang libclang-rt-14-dev)'
  exit 77
fi

launcher=()
if command -v ccache >/dev/null 2>&1; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
mkdir -p build-fuzz
step "building the fuzz targets ($compiler, build-fuzz/)"
quietly build-fuzz/configure.log cmake -G Ninja -B build-fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DCMAKE_CXX_COMPILER="$compiler" -DGENAI_CUDA=OFF -DGENAI_FUZZ=ON \
  "${launcher[@]}"
quietly build-fuzz/build.log cmake --build build-fuzz --target genai_fuzzers --parallel "$(nproc)"

passed=0
failed=0
for target in build-fuzz/tests/fuzz_*; do
  [[ -x "$target" && -f "$target" ]] || continue
  name="${target##*/fuzz_}"
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/crashes "tests/fuzz/corpus/$name"
  log="build-fuzz/fuzz_$name.log"
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/crashes/$name-" "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    echo "fuzz $name: ${runs:-no} inputs in $seconds s, no fault"
    passed=$((passed + 1))
  else
    tail -n 60 "$log" >&2
    warn "fuzz $name: a fault; the input is build-fuzz/crashes/$name-*"
    failed=$((failed + 1))
  fi
done
((passed + failed > 0)) || die 'no fuzz target was built'
echo "fuzz: $passed passed, $failed failed"
((failed == 0))
