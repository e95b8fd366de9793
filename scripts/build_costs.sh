#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints Markdown tables that show how long each part of a build took, from ninja's log:
#
#   CCACHE_DISABLE=1 cmake --build build/release -j 1    # without the compiler cache, in a new folder
#   scripts/build_costs.sh build/release                 # the 15 costliest objects, and all folders
#   scripts/build_costs.sh build/release --headers       # the 15 costliest headers, too (a minute)
#   scripts/build_costs.sh build/release --headers --write   # into docs/benchmarks/build_costs.md, between its markers
#
# Seconds are the time that one job took. Jobs that share a core take longer each, so to compare files build
# with -j 1, or with fewer jobs than cores. The cost of a header is the number of objects that include it
# (directly or not) times its preprocessed lines, with everything that it includes. The tables have our own
# headers, and those of Abseil, GoogleTest, CLI11, nlohmann/json and Eigen that our sources name.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export LC_ALL=C

usage() {
  echo "usage: scripts/build_costs.sh BUILD_DIR [--headers] [--write]" >&2
  exit 2
}
build=""
headers=0
write=0
for arg in "$@"; do
  case "$arg" in
    --headers) headers=1 ;;
    --write) write=1 ;;
    -*) usage ;;
    *)
      [[ -z "$build" ]] || usage
      build="$arg"
      ;;
  esac
done
[[ -n "$build" ]] || usage
if [[ ! -f "$build/.ninja_log" || ! -f "$build/CMakeCache.txt" ]]; then
  echo "build_costs: $build has no .ninja_log of CMake's; build there first: cmake --build $build" >&2
  exit 2
fi
build="$(cd "$build" && pwd)"
source_root="$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")"
document="$ROOT/docs/benchmarks/build_costs.md"
begin="<!-- build costs: begin -->"
end="<!-- build costs: end -->"
if ((write)) && ! { grep -qxF "$begin" "$document" && grep -qxF "$end" "$document"; }; then
  echo "build_costs: $document lacks the lines '$begin' and '$end'; add them where the tables belong" >&2
  exit 2
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Prints a line `seconds kind source` for each output that exists; kind is compile or link. If the log has
# several entries for an output, the last one counts.
outputs() {
  # The object of a unity build gets its target's name and a number.
  local names='s|CMakeFiles/([^/]*)\.dir/Unity/unity_([0-9]+)_cxx\.cxx\.o$|\1:\2|
    s|CMakeFiles/([^/]*)\.dir/((exact_)?kernels_[0-9]+)\.cu\.o$|\1:\2|
    s|CMakeFiles/[^/]*\.dir/||; s|__/||g; s|\.o$||'
  awk -F '\t' 'NR > 1 { ms[$4] = $2 - $1 } END { for (output in ms) print ms[output] / 1000 "\t" output }' \
    "$build/.ninja_log" | while IFS=$'\t' read -r seconds output; do
    [[ "$output" == /* ]] || output="$build/$output"
    [[ -f "$output" ]] || continue
    case "$output" in
      *.o | *.gch)
        output="${output#"$build"/}"
        echo "$seconds compile $(sed -E "$names" <<<"$output")"
        ;;
      *) [[ "$output" != *.a && ! -x "$output" ]] || echo "$seconds link $output" ;;
    esac
  done
}

# A table of the costliest objects, and one of the folders.
tables_of_objects() {
  local objects
  outputs >"$work/outputs"
  objects="$(awk '$2 == "compile"' "$work/outputs")"
  if [[ -z "$objects" ]]; then
    echo "build_costs: $build/.ninja_log names no object that exists; build afresh" >&2
    exit 1
  fi
  echo "| object | seconds |"
  echo "| --- | --- |"
  sort -k1,1nr -k3 <<<"$objects" | head -n 15 | awk '{
    # The object of a unity build is no file of the repository.
    printf(index($3, ":") ? "| %s | %.1f |\n" : "| `%s` | %.1f |\n", $3, $1)
  }'
  echo
  echo "| folder | objects | seconds | each |"
  echo "| --- | --- | --- | --- |"
  awk '{ folder = $3; if (!sub(/\/.*/, "", folder)) folder = "(generated)"
         count[folder]++; seconds[folder] += $1; all += $1 }
    END { for (folder in count) printf "%.1f %d %s\n", seconds[folder], count[folder], folder }' <<<"$objects" |
    sort -k1,1nr | awk '{ printf "| `%s` | %d | %.0f | %.1f |\n", $3, $2, $1, $1 / $2; count += $2; all += $1 }
    END { printf "| all | %d | %.0f | %.1f |\n", count, all, all / count }'
  awk '$2 == "link" { count++; seconds += $1 }
    END { if (count) printf "\nBeside them, %d libraries and programs were linked in %.0f s.\n", count, seconds }' \
    "$work/outputs"
}

# Prints a line `header<TAB>number of objects<TAB>one of these objects<TAB>path` for each header to count.
included_headers() {
  grep -rhoE '^ *# *include *[<"](absl|gtest|gmock|CLI|nlohmann|Eigen|unsupported/Eigen)/[^>"]+' \
    --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' --exclude-dir=build "$source_root" |
    sed -E 's/.*[<"]//' | sort -u >"$work/named"
  ninja -C "$build" -t deps 2>/dev/null | awk -v build="$build" -v root="$source_root" -v named="$work/named" '
    BEGIN { while ((getline line <named) > 0) wanted[line] = 1 }
    /^[^ ]/ {
      object = $0
      sub(/: #deps .*/, "", object)
      valid = /\(VALID\)$/ && object ~ /\.o$/
      next
    }
    !valid || NF != 1 { next }
    {
      path = $1
      if (path !~ /^\//) path = build "/" path
      while (sub(/\/[^\/]+\/\.\.\//, "/", path)) {}
      name = path
      if (index(path, build "/include/apogee/") == 1) {
        name = substr(path, length(build "/include/") + 1)
      } else if (index(path, build "/") == 1) {
        next  # generated, or precompiled
      } else if (index(path, root "/") == 1) {
        if (path !~ /\.(h|cuh)$/) next
        name = substr(path, length(root) + 2)
      } else if (match(path, /\/(absl|gtest|gmock|CLI|nlohmann|Eigen|unsupported\/Eigen)\//)) {
        name = substr(path, RSTART + 1)
        if (!(name in wanted)) next
      } else {
        next
      }
      if (!(name in count)) { first[name] = object; where[name] = path }
      count[name]++
    }
    END { for (name in count) print name "\t" count[name] "\t" first[name] "\t" where[name] }'
}

# lines_of PATH OBJECT: prints the number of preprocessed lines of a header alone, compiled with the flags of
# OBJECT, which includes it.
lines_of() {
  local flags
  read -ra flags < <(awk -v object="-o $2 " '/^ *"command":/ && index($0, object) {
      gsub(/\\"/, "\"")
      line = ""
      count = split($0, words, " ")
      for (i = 1; i <= count; ++i) {
        if (words[i] ~ /^-(I|D|std=|march=|fopenmp)/) line = line words[i] " "
        if (words[i] == "-isystem" || words[i] == "-I") line = line words[i] " " words[i + 1] " "
      }
      print line
      exit
    }' "$build/compile_commands.json")
  printf '#include "%s"\n' "$1" | "$compiler" "${flags[@]}" -E -P -x c++ - 2>/dev/null | wc -l
}

table_of_headers() {
  compiler="$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")"
  export compiler build
  export -f lines_of
  included_headers >"$work/headers"
  # All library headers that our sources name, and the 60 of our own headers with the most objects. The
  # other ones cost far less.
  {
    grep -v '^apogee/' "$work/headers" | grep -E $'^(absl|gtest|gmock|CLI|nlohmann|Eigen|unsupported)/' || true
    grep -vE $'^(absl|gtest|gmock|CLI|nlohmann|Eigen|unsupported)/' "$work/headers" | sort -t$'\t' -k2,2nr |
      head -n 60
  } | while IFS=$'\t' read -r name count object path; do
    printf '%s\0%s\0%s\0%s\0' "$name" "$count" "$object" "$path"
  done | xargs -0 -n 4 -P "$JOBS" bash -c 'echo "$0 $1 $(lines_of "$3" "$2")"' >"$work/lines"
  echo "| header | objects | lines | objects × lines, millions |"
  echo "| --- | --- | --- | --- |"
  awk '{ printf "%.3f %s %d %d\n", $2 * $3 / 1e6, $1, $2, $3 }' "$work/lines" | sort -k1,1nr -k2 | head -n 15 |
    awk '{ printf "| `%s` | %d | %d | %.1f |\n", $2, $3, $4, $1 }'
}

tables() {
  echo
  tables_of_objects
  if ((headers)); then
    echo
    table_of_headers
  fi
  echo
}

tables >"$work/tables" || exit
if ((!write)); then
  cat "$work/tables"
  exit 0
fi
awk -v begin="$begin" -v end="$end" -v tables="$work/tables" '
  $0 == end { inside = 0 }
  !inside { print }
  $0 == begin { inside = 1; while ((getline line <tables) > 0) print line }' "$document" >"$work/document"
cat "$work/document" >"$document"
echo "build_costs: wrote the tables into ${document#"$ROOT"/}"
