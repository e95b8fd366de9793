# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: sets ROOT and JOBS, and defines functions that print phases and their times.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
JOBS="${JOBS:-$(nproc)}"
SECONDS=0
phase_name=""
phase_start=0
phase_lines=()

# phase NAME: ends the phase before it and starts the next one.
phase() {
  end_phase
  phase_name="$1"
  phase_start=$SECONDS
  echo "== $phase_name"
}

end_phase() {
  if [[ -n "$phase_name" ]]; then
    phase_lines+=("$(printf '%-28s %4d s' "$phase_name" $((SECONDS - phase_start)))")
    phase_name=""
  fi
}

print_phases() {
  end_phase
  echo "== time"
  printf '   %s\n' "${phase_lines[@]}" "$(printf '%-28s %4d s' total "$SECONDS")"
}

# build DIR [arguments of cmake --build]: builds with one line of progress every ten seconds. If the build
# fails, prints the compiler's messages.
build() {
  local log pid seconds=0 status=0
  log="$(mktemp)"
  cmake --build "$1" -j "$JOBS" "${@:2}" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    seconds=$((seconds + 1))
    if ((seconds % 10 == 0)); then
      echo "   building: step $(grep -aoE '^\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 | tr -d '[]' | sed 's|/| of |'), $seconds s"
    fi
  done
  wait "$pid" || status=$?
  if ((status != 0)); then grep -avE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" || cat "$log"; fi
  rm -f "$log"
  return "$status"
}
