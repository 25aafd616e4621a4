#!/usr/bin/env bash
# check_format.sh [--fix] - are all C++ and CUDA sources formatted as .clang-format says? --fix formats them.
# Looks at every source that git would commit. clang-format changes its mind between versions: 14 is the judge.
# Exit code 77: the right clang-format is not here, nothing was checked.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"
cd "$repository"

formatter=''
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    formatter="$candidate"
    break
  fi
done
if [[ -z "$formatter" ]]; then
  warn "SKIPPED: format check, clang-format 14 is not here (scripts/setup.sh --dev installs it)"
  exit 77
fi

patterns=('*.cpp' '*.h' '*.cu' '*.cuh')
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  mapfile -d '' -t listed < <(git ls-files -z --cached --others --exclude-standard -- "${patterns[@]}")
else
  mapfile -d '' -t listed < <(find . -path './build*' -prune -o -type f \
    \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0)
fi
sources=()
for file in "${listed[@]}"; do
  [[ -f "$file" ]] && sources+=("$file")
done
((${#sources[@]})) || die "no sources found: is this the genai repository?"

if [[ "${1:-}" == --fix ]]; then
  "$formatter" -i "${sources[@]}"
fi
bad=()
for file in "${sources[@]}"; do
  "$formatter" --dry-run -Werror "$file" >/dev/null 2>&1 || bad+=("$file")
done
if ((${#bad[@]})); then
  printf '  %s\n' "${bad[@]}" >&2
  die "${#bad[@]} of ${#sources[@]} sources are not formatted: run scripts/check_format.sh --fix"
fi
echo "${#sources[@]} sources formatted as .clang-format says"
