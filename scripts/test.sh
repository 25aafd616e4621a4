#!/usr/bin/env bash
# test.sh - everything that can be tested on this machine: installs what is missing, builds with warnings as errors,
# runs all tests, the layer and format checks, the tests again under sanitizers (address and undefined behaviour: all
# but those of real models; thread: those that run several threads), and a short fuzzing.
#   GENAI_TEST_SANITIZERS=0    leaves the sanitizers out
#   GENAI_TEST_FUZZ_SECONDS=N  seconds per fuzz target (default 10; 0 leaves fuzzing out)
# What did not run is listed at the end. Exit code 0 only when nothing failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
cd "$repository"

sanitizers="${GENAI_TEST_SANITIZERS:-1}"
fuzz_seconds="${GENAI_TEST_FUZZ_SECONDS:-10}"
jobs="$(nproc)"

passed=0
failed=0
skipped=0
failures=()
not_run=()

fail() {
  failures+=("$1")
  failed=$((failed + 1))
  warn "FAILED: $1"
}

finish() {
  echo
  if ((${#not_run[@]})); then
    echo 'Did not run here:'
    printf '  %s\n' "${not_run[@]}"
  fi
  if ((${#failures[@]})); then
    echo 'Failed:'
    printf '  %s\n' "${failures[@]}"
  fi
  printf '\ntotal: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0)) && ((passed > 0))
  exit
}

launcher=()
# build PRESET: configures and builds the preset's folder, build-PRESET.
build() {
  local folder="build-$1"
  step "building $folder/"
  mkdir -p "$folder"
  quietly "$folder/configure.log" cmake --preset "$1" "${launcher[@]}" &&
    quietly "$folder/build.log" cmake --build --preset "$1" --parallel "$jobs"
}

# run_tests PRESET [CTEST ARGUMENT...]: runs the tests that were built and adds up their outcomes. Passing tests are not
# listed; what a failing one printed is.
wrapper=()
run_tests() {
  local folder="build-$1" preset="$1" name total
  shift
  step "testing $folder/"
  "${wrapper[@]}" ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$jobs" "$@" 2>&1 |
    tee "$folder/ctest.log" | grep -vE --line-buffered '^ *[0-9]+/[0-9]+ Test +#.* Passed |^ +Start +[0-9]+:' || true
  count() { grep -cE "^ *[0-9]+/[0-9]+ Test +#$1" "$folder/ctest.log" || true; }
  total="$(count '')"
  local passed_here skipped_here
  passed_here="$(count '.* Passed ')"
  skipped_here="$(count '.*\*\*\*Skipped ')"
  passed=$((passed + passed_here))
  skipped=$((skipped + skipped_here))
  ((total > 0)) || fail "$preset: no test ran"
  while read -r name; do
    fail "$preset: $name"
  done < <(sed -nE '/\*\*\*Skipped /d; / Passed /d; s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: (.*[^ .]) *\.*\*\*\*(Failed|Timeout|Exception|Not Run).*/\1/p' \
    "$folder/ctest.log")
  # A test that could not even start has no such line; the closing line is the judge.
  if ! grep -q '^100% tests passed' "$folder/ctest.log" && ((${#failures[@]} == 0)); then
    fail "$preset: ctest reports a failure"
  fi
  while read -r name; do
    not_run+=("$preset: $name")
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: (.*[^ .]) *\.*\*\*\*Skipped .*/\1/p' "$folder/ctest.log")
}

scripts/setup.sh --dev
if command -v ccache >/dev/null 2>&1; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_DEPEND=1  # the compiler lists what it read: no file is preprocessed twice
fi

scripts/fetch_models.sh smollm2 >/dev/null || fail 'fetching SmolLM2'
scripts/fetch_models.sh gemma3 >/dev/null || not_run+=('tests with Gemma 3: the model could not be fetched')

if build dev; then
  run_tests dev
  grep -q 'CUDA: no' build-dev/configure.log && not_run+=('CUDA: no CUDA toolkit here, its code was not compiled')
else
  fail 'building build-dev/'
fi

if [[ "$sanitizers" != 0 ]]; then
  # The thread sanitizer wants a plain address space: newer kernels spread it wider than it can follow.
  if setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then
    wrapper=(setarch "$(uname -m)" --addr-no-randomize)
  fi
  export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
  for preset in asan-ubsan tsan; do
    if build "$preset"; then
      # The real models take minutes under a sanitizer and run the same code as the tiny ones.
      run_tests "$preset" --label-regex '^host$' --exclude-regex '^(SmolLM2|Gemma 3|smollm2|gemma3) '
    else
      fail "building build-$preset/"
    fi
  done
  wrapper=()
else
  not_run+=('sanitizers: GENAI_TEST_SANITIZERS=0')
fi

if [[ "$fuzz_seconds" != 0 ]]; then
  outcome=0
  scripts/fuzz.sh "$fuzz_seconds" || outcome=$?
  case "$outcome" in
    0) passed=$((passed + 1)) ;;
    77) not_run+=('fuzzing: no clang++ with libFuzzer') ;;
    *) fail 'fuzzing' ;;
  esac
else
  not_run+=('fuzzing: GENAI_TEST_FUZZ_SECONDS=0')
fi

finish
