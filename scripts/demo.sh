#!/usr/bin/env bash
# demo.sh [-- ARGUMENTS] - from a fresh machine to generated text: installs what is missing, builds build/genai, fetches
# SmolLM2 135M (98 MB, once) and lets it write. ARGUMENTS go to genai in place of the demo's own; the model is added
# unless they name one with -m or --model. Run again, it starts to write within seconds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
cd "$repository"

arguments=()
case "${1:-}" in
  '')
    question='Explain in a few sentences why the sky is blue.'
    arguments=(run --escape --prompt "<|im_start|>user\\n$question<|im_end|>\\n<|im_start|>assistant\\n" --predict 160)
    ;;
  --) arguments=("${@:2}") ;;
  *) die "unknown argument '$1' (usage: scripts/demo.sh [-- ARGUMENTS FOR genai])" ;;
esac

scripts/setup.sh

mkdir -p build
if [[ ! -f build/build.ninja ]]; then
  step 'configuring (build/)'
fi
quietly build/configure.log cmake --preset release || die 'the configuration failed (see above)'
if [[ ! -x build/genai ]]; then
  step 'building build/genai (a few minutes the first time)'
fi
quietly build/build.log cmake --build --preset release --target genai --parallel "$(nproc)" ||
  die 'the build failed (see above)'

model="$(scripts/fetch_models.sh smollm2)"
has_model=0
for argument in "${arguments[@]}"; do
  case "$argument" in -m | -m?* | --model | --model=*) has_model=1 ;; esac
done
if ((!has_model)); then
  arguments+=(-m "$model")
fi
step "build/genai ${arguments[*]@Q}"
exec build/genai "${arguments[@]}"
