# SPDX-License-Identifier: Apache-2.0
# Sourced by gpu_check.sh: runs a check within its time limit, keeps its whole output in $out/logs, and appends a
# row to $out/rows.jsonl as soon as it has ended. Rows of an earlier run stay where they are.
#
# Variables of the caller: out, limit, check_limit, jobs, phase_name. SECONDS counts from the start.

# as_json TEXT: prints a string of JSON. Control characters become blanks.
as_json() {
  local text="${1//[[:cntrl:]]/ }"
  text="${text//\\/\\\\}"
  printf '"%s"' "${text//\"/\\\"}"
}

# row NAME VERDICT DETAIL [LOG]: one line of the table. One write, so that rows of checks side by side stay whole.
row() {
  local detail="$3"
  # `measured` has a JSON object as its detail.
  [[ "$2" == measured ]] || detail="$(as_json "$3")"
  printf '{"phase": "%s", "check": %s, "verdict": "%s", "at_s": %d, "log": %s, "detail": %s}\n' "$phase_name" \
    "$(as_json "$1")" "$2" "$SECONDS" "$(as_json "${4:-}")" "$detail" >>"$out/rows.jsonl"
  printf '%-44s %-8s %s\n' "$1" "$2" "$3"
}

# log_of NAME: prints the log's path below $out.
log_of() {
  local name="${1//[^A-Za-z0-9_.-]/_}"
  echo "logs/$phase_name.$name.log"
}

# seconds_left: prints how many seconds a check may take: --check-limit, or less if --limit is near.
seconds_left() {
  local left=$((limit - SECONDS))
  echo $((left < check_limit ? left : check_limit))
}

# keep_ended: leaves only the rows of checks that have passed or failed. Of an interrupted benchmark there are only
# numbers.
keep_ended() {
  awk -F ', "verdict": ' '
    NR == FNR { if ($2 ~ /^"(passed|FAILED)"/) ended[$1] = 1; next }
    $1 in ended' "$out/rows.jsonl" "$out/rows.jsonl" >"$out/rows.kept"
  mv "$out/rows.kept" "$out/rows.jsonl"
}

# begin NAME: whether to run this check: not if it has rows already (--continue), or the time is over, for which it
# adds a row. Sets `log` and `seconds`.
begin() {
  local key
  printf -v key '{"phase": "%s", "check": %s, ' "$phase_name" "$(as_json "$1")"
  grep -qF "$key" "$out/rows.jsonl" && return 1
  log="$(log_of "$1")"
  seconds="$(seconds_left)"
  ((seconds > 0)) && return 0
  row "$1" "cut off" "not begun within --limit $limit"
  return 1
}

# last_line LOG: prints the last line that is not empty.
last_line() { grep -a '[^[:space:]]' "$out/$1" | tail -n 1 | cut -c 1-400; }

# start COMMAND...: runs it in the background, its output in the log. Sets `pid` and `ends`.
start() {
  echo "\$ $*" >"$out/$log"
  ends=$((SECONDS + seconds))
  timeout -k 5 "$seconds" "$@" </dev/null >>"$out/$log" 2>&1 &
  pid=$!
}

# end_badly NAME STATUS: adds the row of a check that did not succeed: why it ended, and its last line.
end_badly() {
  local verdict=FAILED why status="$2"
  # 124: `timeout` ended it; 137: it had to be killed. Both may also be the program's own, earlier.
  if ((status == 124 || status == 137)) && ((SECONDS >= ends)); then status=late; fi
  case "$status" in
    0) why="no line of JSON" ;;
    late)
      why="ended after $seconds s"
      # Whether it hangs is not known if the run's time was shorter than the check's.
      ((seconds < check_limit)) && verdict="cut off"
      ;;
    127) why="not found, or a library is missing" ;;
    *)
      why="exit status $status"
      ((status <= 128)) || why="died of signal $((status - 128)) ($(kill -l $((status - 128))))"
      ;;
  esac
  row "$1" "$verdict" "$why: $(last_line "$log")" "$log"
  [[ "$verdict" != FAILED ]] || tail -n 15 "$out/$log" | sed 's/^/    /'
}

# check NAME COMMAND...: passes if the command exits with 0; the row's detail is its last line of output.
check() {
  local name="$1" status=0 log seconds ends
  begin "$name" || return 0
  start "${@:2}"
  { wait "$pid" || status=$?; } 2>/dev/null
  if ((status)); then
    end_badly "$name" "$status"
  elif grep -aq '^\[  PASSED  \] 0 tests' "$out/$log"; then
    row "$name" skipped "$(last_line "$log")" "$log"
  else
    row "$name" passed "$(last_line "$log")" "$log"
  fi
}

# beside NAME COMMAND...: as check, but in the background, up to --jobs at a time.
beside() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  (
    trap 'kill "$pid" 2>/dev/null; exit 1' TERM
    check "$@"
  ) &
}

# measured_lines NAME: adds a row for each whole line of JSON that the log has beyond `num_read` lines.
measured_lines() {
  local line
  while IFS= read -r line; do
    ((++num_read))
    [[ "$line" == '{'*'}' ]] || continue
    row "$1" measured "$line" "$log"
    ((++num_rows))
  done < <(head -n "$(wc -l <"$out/$log")" "$out/$log" | tail -n +$((num_read + 1)))
}

# numbers NAME COMMAND...: adds a row for each line of JSON as the command prints it, so that a command that hangs
# or dies later leaves what it has measured; then a row with their number. Exit status 77: skipped.
numbers() {
  local name="$1" status=0 num_read=0 num_rows=0 log seconds ends
  begin "$name" || return 0
  start "${@:2}"
  while kill -0 "$pid" 2>/dev/null; do
    measured_lines "$name"
    sleep 0.2
  done
  { wait "$pid" || status=$?; } 2>/dev/null
  measured_lines "$name"
  if ((status == 77)); then
    row "$name" skipped "$(last_line "$log")" "$log"
  elif ((status)) || ((num_rows == 0)); then
    end_badly "$name" "$status"
  else
    row "$name" passed "$num_rows numbers" "$log"
  fi
}

# count VERDICT...: prints how many rows have one of the verdicts.
count() {
  local verdicts
  printf -v verdicts '|%s' "$@"
  grep -cE "\"verdict\": \"(${verdicts:1})\", \"at_s\"" "$out/rows.jsonl" || true
}
