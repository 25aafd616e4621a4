# progress.sh - sourced by the other scripts: where the repository is, and how a script talks. Progress goes to stderr.
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model_folder="${XDG_CACHE_HOME:-$HOME/.cache}/genai"

if [[ -t 2 && -z "${NO_COLOR:-}" ]]; then
  style_step=$'\e[1;34m' style_warn=$'\e[1;33m' style_fail=$'\e[1;31m' style_off=$'\e[0m'
else
  style_step='' style_warn='' style_fail='' style_off=''
fi

step() { printf '%s==>%s %s\n' "$style_step" "$style_off" "$*" >&2; }
warn() { printf '%swarning:%s %s\n' "$style_warn" "$style_off" "$*" >&2; }
die() {
  printf '%serror:%s %s\n' "$style_fail" "$style_off" "$*" >&2
  exit 1
}

# On a terminal, the count of steps that ninja prints ("[12/90]") stays visible while the rest goes to a log.
show_count() {
  local line
  while read -r line; do
    if [[ "$line" =~ ^\[[0-9]+/[0-9]+\] ]]; then printf '\r    %s ' "${BASH_REMATCH[0]}" >&2; fi
  done
  printf '\r\e[K' >&2
}

# quietly LOG COMMAND...: the output goes to LOG and is shown only when the command fails.
quietly() {
  local log="$1" outcome=0
  shift
  if [[ -t 2 ]]; then
    "$@" 2>&1 | tee "$log" | show_count || outcome=$?
  else
    "$@" >"$log" 2>&1 || outcome=$?
  fi
  if ((outcome != 0)); then
    tail -n 80 "$log" >&2
    warn "failed: $*  (all of its output: $log)"
    return 1
  fi
}
