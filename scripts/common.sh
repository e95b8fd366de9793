# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: the repository root, colours kept out of it, phases and their times.
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
