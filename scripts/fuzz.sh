#!/usr/bin/env bash
# fuzz.sh [--night] [--keep-corpus] [SECONDS] - runs each fuzz target of tests/fuzz for SECONDS (default 60) under the
# address and undefined-behaviour sanitizers, starting from tests/fuzz/corpus/NAME and what earlier runs left in
# build-fuzz/corpus/NAME. New inputs stay there; an input that breaks a target is left in build-fuzz/crashes. Exit code
# 77: clang is not here, nothing ran.
#   --night        for hours (default 14400 s a target): one process a core, and on after a fault, so that one fault
#                  does not end the night; every input that broke a target is kept
#   --keep-corpus  in the end, inputs that reach something new go to tests/fuzz/corpus/NAME, as few as cover it all,
#                  to be looked at and committed. With `--keep-corpus 1` earlier runs' inputs are harvested.
# Last comes one line a target (inputs tried, code edges reached, corpus, broken inputs) and one for all:
#   nohup scripts/fuzz.sh --night --keep-corpus 14400 >fuzz.log 2>&1 &      tail -n 4 fuzz.log
# A broken input again:  build-fuzz/tests/fuzz_NAME build-fuzz/crashes/NAME-crash-...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
cd "$repository"

night=false
keep_corpus=false
seconds=''
for argument in "$@"; do
  case "$argument" in
    --night) night=true ;;
    --keep-corpus) keep_corpus=true ;;
    *)
      [[ -z "$seconds" && "$argument" =~ ^[1-9][0-9]*$ ]] ||
        die "'$argument' is no number of seconds (usage: scripts/fuzz.sh [--night] [--keep-corpus] [SECONDS])"
      seconds="$argument"
      ;;
  esac
done
if [[ -z "$seconds" ]]; then
  seconds=60
  if $night; then seconds=14400; fi
fi

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

mode=(-print_final_stats=1)
if $night; then
  mode=("-fork=$(nproc)" -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1)
fi

count_files() { find "$1" -type f "${@:2}" | wc -l; }

# Only inputs that add coverage to what the repository has are copied.
harvest() {
  local target="$1" name="$2" log="build-fuzz/merge_$2.log"
  if "$target" -merge=1 -set_cover_merge=1 -timeout=10 -rss_limit_mb=1024 "tests/fuzz/corpus/$name" \
    "build-fuzz/corpus/$name" >"$log" 2>&1; then
    return
  fi
  warn "fuzz $name: the corpus was not merged (build-fuzz/merge_$name.log)"
}

passed=0
failed=0
summary=()
for target in build-fuzz/tests/fuzz_*; do
  [[ -x "$target" && -f "$target" ]] || continue
  name="${target##*/fuzz_}"
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/crashes "tests/fuzz/corpus/$name"
  log="build-fuzz/fuzz_$name.log"
  touch build-fuzz/started
  step "fuzzing $name for $seconds s ($log)"
  outcome=0
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 "${mode[@]}" \
    -artifact_prefix="build-fuzz/crashes/$name-" "build-fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 ||
    outcome=$?
  broken="$(count_files build-fuzz/crashes -name "$name-*" -newer build-fuzz/started)"
  # The last progress line is "#RUNS ... cov: EDGES ...", with a colon behind RUNS in fork mode.
  runs="$(sed -n 's/^#\([0-9][0-9]*\).*cov: .*/\1/p' "$log" | tail -n 1)"
  edges="$(sed -n 's/^#.*cov: \([0-9][0-9]*\).*/\1/p' "$log" | tail -n 1)"
  line="fuzz $name: ${runs:-no} inputs in $seconds s, ${edges:-no} edges"
  if ((outcome == 0 && broken == 0)); then
    passed=$((passed + 1))
    line+=', no fault'
  else
    if ! $night; then tail -n 60 "$log" >&2; fi
    warn "fuzz $name: a fault; the input is build-fuzz/crashes/$name-*"
    failed=$((failed + 1))
    line+=", $broken BROKEN inputs (exit code $outcome): build-fuzz/crashes/$name-*"
  fi
  old="$(count_files "tests/fuzz/corpus/$name")"
  if $keep_corpus; then
    harvest "$target" "$name"
    line+="; tests/fuzz/corpus/$name had $old inputs, has $(count_files "tests/fuzz/corpus/$name")"
  fi
  summary+=("$line; $(count_files "build-fuzz/corpus/$name") in build-fuzz/corpus/$name")
done
((passed + failed > 0)) || die 'no fuzz target was built'
printf '%s\n' "${summary[@]}" "fuzz: $passed passed, $failed failed"
((failed == 0))
