#!/usr/bin/env bash
# gpu_session.sh - builds the CUDA backend and its tests on a machine with a GPU, runs them, measures, and leaves logs and
# JSON lines under $OUT. Needs nvcc 13, g++, Catch2 and fmt; none of the other packages. Every step has a time limit and
# a line in $OUT/session.log; a step that fails or hangs does not stop the next.
#
#   scripts/gpu_session.sh [STEP...]      steps: contract kernels large generation bench bench-more models matrix sweep
#                                         offload sanitize (default: all but the last five)
#
# The steps `models`, `matrix`, `sweep` and `offload` build genai with CMake, which needs PCRE2, utf8proc and
# sentencepiece; where they are not installed, PKG_CONFIG_PATH leads to them. The first three take the models of
# $GPU_SESSION_MODELS, a folder with GGUF files: `models` compares those that tests/goldens.json knows with the host's
# bits, `matrix` runs the real ones in many memories and compares bits and counters with the host device's, `sweep` looks
# whether `auto` loses to another mode.
# `sanitize` builds the tests a second time, for racecheck (tests/README.md, "Sanitizers").
# With GPU_SESSION_PREBUILT=1 nothing is built: $GPU_SESSION_BUILD holds cuda_tests, cuda_tests_racecheck, cuda_bench and
# cmake/genai.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-/tmp/genai_gpu_out}
BUILD=${GPU_SESSION_BUILD:-/tmp/genai_gpu_build}
PREBUILT=${GPU_SESSION_PREBUILT:-0}
JOBS=$(nproc)
mkdir -p "$OUT" "$BUILD"
export PATH="$PATH:/usr/local/cuda/bin"
STEPS=("$@")
[ ${#STEPS[@]} -eq 0 ] && STEPS=(contract kernels large generation bench bench-more)
SESSION="$OUT/session.log"
START=$(date +%s)

say() { echo "[$(( $(date +%s) - START )) s] $*" | tee -a "$SESSION"; }

# run NAME SECONDS LOG COMMAND...
run() {
  local name=$1 seconds=$2 log=$3
  shift 3
  local begin status
  begin=$(date +%s)
  echo "== $name: $*" >> "$log"
  timeout -k 5 "$seconds" "$@" >> "$log" 2>&1
  status=$?
  case $status in
    0) say "ok    $name ($(( $(date +%s) - begin )) s)" ;;
    77) say "SKIP  $name: $(grep -a SKIPPED "$log" | tail -1 | cut -c1-200)" ;;
    124 | 137) say "HUNG  $name (stopped after $seconds s)" ;;
    *) say "FAIL  $name (exit $status, $(( $(date +%s) - begin )) s): $(grep -aE 'FAILED|error|Error|due to' "$log" | tail -3 | tr '\n' ' ' | cut -c1-400)" ;;
  esac
  return $status
}

wants() {
  local step
  for step in "${STEPS[@]}"; do [ "$step" = "$1" ] && return 0; done
  return 1
}

# ---- build ----------------------------------------------------------------------------------------------------------
ARCH=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d '. ')
ARCH=${ARCH:-90}
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv,noheader 2>&1 | tee -a "$SESSION"
build_tests() {
  say "building for sm_$ARCH on $JOBS cores"
  HOST_FLAGS="-std=c++20 -O2 -ffp-contract=off -I. -DFMT_HEADER_ONLY=1 -I/usr/local/cuda/include"
  CUDA_FLAGS="-std=c++20 -O3 -arch=sm_$ARCH -fmad=false --expt-relaxed-constexpr -lineinfo -I."
  HOST_SOURCES=$(ls engine/host/*.cpp engine/model/*.cpp engine/residency/*.cpp engine/decode/*.cpp cuda/*.cpp)
  KERNEL_SOURCES=$(ls cuda/kernels/*.cu)
  if [ "$ARCH" != 90 ]; then  # as in CMakeLists.txt
    KERNEL_SOURCES=${KERNEL_SOURCES/cuda\/kernels\/matmul_half_tiles.cu/}
    HOST_SOURCES="$HOST_SOURCES cuda/kernels/matmul_half_tiles_absent.cpp"
  fi
  TEST_SOURCES="tests/main_cuda.cpp tests/allocation_watch_cuda.cpp $(ls tests/*_cuda_test.cpp)"
  {
    for f in $KERNEL_SOURCES; do
      flags=$CUDA_FLAGS
      case $f in
        *matmul_half_tiles.cu) flags=${flags/-arch=sm_90/-gencode=arch=compute_90a,code=sm_90a} ;;
      esac
      echo "nvcc $flags -c $f -o $BUILD/$(basename "$f").o"
      wants sanitize && echo "nvcc $flags -DGENAI_FOR_RACECHECK -c $f -o $BUILD/racecheck/$(basename "$f").o"
    done
    for f in $HOST_SOURCES $TEST_SOURCES tests/bench/cuda_bench.cpp; do
      extra=""
      case $f in
        *avx512*) extra="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8 -mavx2 -mfma -mf16c" ;;
        *avx2*) extra="-mavx2 -mfma -mf16c" ;;
      esac
      echo "g++ $HOST_FLAGS $extra -c $f -o $BUILD/$(basename "$f").o"
    done
  } > "$BUILD/commands"
  mkdir -p "$BUILD/racecheck"
  rm -f "$BUILD"/*.o "$BUILD"/racecheck/*.o
  xargs -P "$JOBS" -I{} sh -c '{ {} || echo "BUILD FAILED: {}"; } 2>&1' < "$BUILD/commands" > "$OUT/build.log"
  if grep -q "BUILD FAILED" "$OUT/build.log"; then
    say "FAIL  build: $(grep -E 'error' "$OUT/build.log" | head -5 | cut -c1-300)"
    exit 1
  fi
  CATCH=""
  if [ -n "$(find /usr/include /usr/local/include -name catch_all.hpp 2> /dev/null | head -1)" ]; then
    CATCH=$(pkg-config --libs catch2 2> /dev/null || echo "-lCatch2")
  fi
  WATCHED_CALLS=$(sed 's/^/-Xlinker /' tests/allocation_watch_cuda.txt)  # by the tests of allocations
  HOST_OBJECTS=$(for f in $HOST_SOURCES; do echo "$BUILD/$(basename "$f").o"; done)
  LIBRARY_OBJECTS="$(for f in $KERNEL_SOURCES; do echo "$BUILD/$(basename "$f").o"; done) $HOST_OBJECTS"
  TEST_OBJECTS=$(for f in $TEST_SOURCES; do echo "$BUILD/$(basename "$f").o"; done)
  # shellcheck disable=SC2086
  {
    nvcc -arch=sm_"$ARCH" -o "$BUILD/cuda_tests" $WATCHED_CALLS $TEST_OBJECTS $LIBRARY_OBJECTS $CATCH -lpthread -ldl
    nvcc -arch=sm_"$ARCH" -o "$BUILD/cuda_bench" "$BUILD/cuda_bench.cpp.o" $LIBRARY_OBJECTS -lpthread -ldl
    ! wants sanitize || nvcc -arch=sm_"$ARCH" -o "$BUILD/cuda_tests_racecheck" $WATCHED_CALLS $TEST_OBJECTS \
      "$BUILD"/racecheck/*.o $HOST_OBJECTS $CATCH -lpthread -ldl
  } >> "$OUT/build.log" 2>&1 || { say "FAIL  link: $(tail -3 "$OUT/build.log" | cut -c1-300)"; exit 1; }
  say "built"
}
for step in contract kernels large generation bench bench-more sanitize; do
  [ "$PREBUILT" = 0 ] && wants "$step" && build_tests && break
done

# ---- tests ----------------------------------------------------------------------------------------------------------
TESTS="$BUILD/cuda_tests"
if wants contract; then
  run "device contract" 90 "$OUT/contract.log" "$TESTS" "[device_contract],[cuda_device]"
fi
if wants kernels; then
  for tag in "[embed]" "[elementwise]" "[rotate]" "[argmax]" "[graph]" "[matmul]~[large]" "[attention]~[large]" "[rows]" "[program]" \
    "[race]"; do
    run "kernels $tag" 120 "$OUT/kernels.log" "$TESTS" "$tag"
  done
fi
if wants large; then
  for tag in "[attention][large]" "[matmul][large]" "[limits]"; do
    run "kernels $tag" 120 "$OUT/kernels.log" "$TESTS" "$tag"
  done
fi
if wants generation; then
  run "whole models" 120 "$OUT/generation.log" "$TESTS" "[generation],[allocation]"
fi

# ---- speed ----------------------------------------------------------------------------------------------------------
if wants bench; then
  run "bench 14b Q4_0" 120 "$OUT/bench_14b_q4_0.jsonl" "$BUILD/cuda_bench" --model 14b --type Q4_0 --contexts 1024
  for context in 4096 16384; do  # each with a cache of that length: the kernels that merge attention differ
    run "bench 14b Q4_0 at $context" 60 "$OUT/bench_14b_q4_0.jsonl" "$BUILD/cuda_bench" --model 14b --type Q4_0 --rows 1 \
      --contexts "$context" --prefill 0 --skip-shapes
  done
fi
if wants bench-more; then
  run "bench 14b Q4_K_M" 90 "$OUT/bench_more.jsonl" "$BUILD/cuda_bench" --model 14b --type Q4_K_M --contexts 1024 --rows 1,4,8
  run "bench 7b Q4_0" 60 "$OUT/bench_more.jsonl" "$BUILD/cuda_bench" --model 7b --type Q4_0 --contexts 1024 --rows 1,8 --skip-parts
  run "bench 0.5b Q4_0" 60 "$OUT/bench_more.jsonl" "$BUILD/cuda_bench" --model 0.5b --type Q4_0 --contexts 1024 --rows 1,8
fi

# ---- whole models ---------------------------------------------------------------------------------------------------
GENAI="$BUILD/cmake/genai"
if [ "$PREBUILT" = 0 ] && { wants models || wants matrix || wants sweep || wants offload; }; then
  run "configure" 60 "$OUT/models.log" cmake -S . -B "$BUILD/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGENAI_CUDA=ON \
    -DGENAI_CUDA_ARCHITECTURES="$ARCH" &&
    run "build genai" 300 "$OUT/models.log" cmake --build "$BUILD/cmake" --target genai
fi
MODELS="${GPU_SESSION_MODELS:-models}"
if wants models; then
  for flags in "" "--no-cuda-graph" "-ub 1" "-ub 7" "-ub 64" "-ub 512" "--weight-offload stream --cold ffn" \
    "--weight-offload zerocopy --cold attn" "--weight-offload host --cold ffn" "--weight-offload split --cold weight" \
    "--allocator plain --weight-offload split --cold ffn"; do
    # shellcheck disable=SC2086
    run "goldens $flags" 120 "$OUT/models.log" python3 scripts/check_goldens.py --genai "$GENAI" --models "$MODELS" \
      --jobs "$((JOBS / 2 + 1))" -- --device cuda $flags
  done
  run "bench lanes" 120 "$OUT/models.log" "$GENAI" bench --lanes --device cuda --max-bytes 4GiB
  for model in "$MODELS"/*.gguf; do
    run "4096 tokens of $(basename "$model")" 60 "$OUT/models.log" python3 scripts/check_long_run.py --genai "$GENAI" \
      --model "$model" -- --device cuda
  done
fi
if wants matrix; then
  for model in "$MODELS"/SmolLM2-135M-Instruct.Q4_1.gguf "$MODELS"/gemma-3-270m-Q4_K_M.gguf; do
    name=$(basename "$model" .gguf)
    run "matrix of $name on the host" 300 "$OUT/matrix.log" python3 scripts/residency_matrix.py --genai "$GENAI" \
      -m "$model" --out "$OUT/$name.host.jsonl" --jobs "$((JOBS / 2))" -- --device cpu -t 2
    run "matrix of $name" 120 "$OUT/matrix.log" python3 scripts/residency_matrix.py --genai "$GENAI" -m "$model" \
      --out "$OUT/$name.cuda.jsonl" --against "$OUT/$name.host.jsonl" --jobs 5 -- --device cuda -t 4
  done
fi
if wants sweep; then
  run "sweep of budgets" 200 "$OUT/sweep.log" python3 scripts/sweep_budget.py --genai "$GENAI" --rounds 2 \
    -m "$MODELS/SmolLM2-135M-Instruct.Q4_1.gguf" --out "$OUT/sweep" -- --device cuda -c 1024
fi
if wants offload; then
  run "offload" 420 "$OUT/offload.log" python3 scripts/bench_offload.py --genai "$GENAI" --device cuda \
    --out "$OUT/offload.jsonl"
fi

# ---- checks ---------------------------------------------------------------------------------------------------------
if wants sanitize; then
  KERNELS="[embed],[elementwise],[rotate],[argmax],[graph]"
  for tests in "$KERNELS" "[device_contract]" "[attention]~[large]" "[matmul]~[large]~[limits]"; do
    # The contract has calls that must fail.
    run "memcheck $tests" 120 "$OUT/sanitize.log" compute-sanitizer --tool memcheck --report-api-errors no \
      --error-exitcode 3 "$TESTS" "$tests"
    run "initcheck $tests" 120 "$OUT/sanitize.log" compute-sanitizer --tool initcheck --error-exitcode 3 "$TESTS" "$tests"
  done
  # Each test of shared memory by itself: the tool takes most of a minute for one, and sums up at its end.
  mapfile -t RACE_TESTS < <(sed -n 's/^TEST_CASE("\(.*\)", ".*\[race\].*/\1/p' tests/*_cuda_test.cpp)
  for tests in "$KERNELS" "one row of a CUDA product does not depend on the others" "${RACE_TESTS[@]}"; do
    run "racecheck $tests" 200 "$OUT/sanitize.log" compute-sanitizer --tool racecheck --error-exitcode 3 \
      "$BUILD/cuda_tests_racecheck" "$tests"
  done
fi
say "done"
grep -ah '"bench":"\(setup\|read_peak\|decode_step\|prefill\|part\|repeat\)"' "$OUT"/bench*.jsonl 2> /dev/null | cut -c1-260
