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
mapfile -t bad < <(printf '%s\0' "${sources[@]}" |
  xargs -0 -n 16 -P "$(nproc)" "$formatter" --dry-run -Werror 2>&1 | sed -nE 's/^(.*):[0-9]+:[0-9]+: error: .*/\1/p' | sort -u)
if ((${#bad[@]})); then
  printf '  %s\n' "${bad[@]}" >&2
  die "${#bad[@]} of ${#sources[@]} sources are not formatted: run scripts/check_format.sh --fix"
fi
echo "${#sources[@]} sources formatted as .clang-format says"
