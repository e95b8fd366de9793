#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what README.md, docs/**/*.md and the other Markdown files say against the source tree. It needs no
# build, and nothing but bash, awk and grep:
#
#   tests/docs/check_docs.sh [root of the source tree]
#
#   links      [text](target) exists, and so does its #anchor; nothing points out of the repository
#   paths      what begins with a folder of the repository exists: in backticks, in includes, `a/b.{h,cc}` too
#   commands   in code blocks and in backticks: a script of scripts/, tools/, bench/ or tests/ exists and is
#              executable; a program is a target of a CMakeLists.txt; `apogee X` is a subcommand; presets and
#              -D options are there; `ctest -R` names a test; a --flag occurs in the sources of the program
#   quotes     a code block after the line <!-- quotes PATH --> is in that file, line by line
#   names      `..._test` is a test; APOGEE_... occurs in the sources; find_package(apogee X.Y) is this version
#
# Prints one line per finding, `file:line: what is wrong`, and exits with 1 if there is any. It starts about a dozen
# processes, regardless of the number of documents, so that it is quick on a busy machine, too.
set -eu
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "${1:-$here/../..}" && pwd)"
cd "$root"
export LC_ALL=C
shopt -s nullglob globstar extglob

documents=(README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs/**/*.md examples/README.md examples/*/README.md)
for i in "${!documents[@]}"; do
  [[ -f "${documents[i]}" ]] || unset "documents[i]"
done

num_checked=0
findings=()
file="" line=""
wrong() { findings+=("$file:$line: $*"); }

# --- What the source tree has.

folders=" "  # the top-level ones
for folder in */; do
  [[ "$folder" == build/ || "$folder" == out/ ]] || folders+="${folder%/} "
done

# Targets: their name, and the folder and first source of each.
declare -A target_folder=() target_source=()
while IFS=: read -r list text; do
  [[ "$text" =~ (NAME|add_executable\()\ *([A-Za-z0-9_]+)\ (SRCS\ )?([^\ \)]+) ]] || continue
  target_folder["${BASH_REMATCH[2]}"]="${list%/*}"
  # Paths in tests/<folder>/tests.cmake begin in tests.
  [[ "$list" != */tests.cmake ]] || target_folder["${BASH_REMATCH[2]}"]=tests
  target_source["${BASH_REMATCH[2]}"]="${BASH_REMATCH[4]}"
done < <(grep -rHoE '(NAME|add_executable\() *[A-Za-z0-9_]+ (SRCS )?[^ )]+' --include=CMakeLists.txt \
  --include=tests.cmake tools examples bench tests 2>/dev/null)

# Tests: their names, and patterns for those whose name has ${...}, which stands for any word.
declare -A is_test=()
test_patterns=()
while read -r _ text; do
  if [[ "$text" == *'${'* ]]; then
    while [[ "$text" =~ ^([^$]*)\$\{[a-z]+\}(.*)$ ]]; do text="${BASH_REMATCH[1]}[a-z0-9_]+${BASH_REMATCH[2]}"; done
    test_patterns+=("$text")
  else
    is_test["$text"]=1
  fi
done < <(grep -rhoE 'NAME +[A-Za-z0-9_${}]+' --include=CMakeLists.txt --include=tests.cmake tests 2>/dev/null)

presets="$(grep -oE '"name": *"[a-z-]+"' CMakePresets.json 2>/dev/null | cut -d'"' -f4 | sort -u | tr '\n' ' ')"
presets=" $presets"
options=" $(grep -rhoE 'APOGEE_[A-Z0-9_]+|CMAKE_[A-Z_]+' CMakeLists.txt cmake 2>/dev/null | sort -u | tr '\n' ' ') "
names=""  # APOGEE_..., looked up when the first one is seen

# The --flags that occur in each source of a program, between blanks.
declare -A flags_in=()
while IFS=: read -r file text; do
  flags_in["$file"]+=" $text "
done < <(grep -roE -- '--[A-Za-z][A-Za-z0-9_-]*' --include='*.cc' --include='*.h' --include='*.sh' --include='*.py' \
  scripts tools bench driver examples tests 2>/dev/null)

# read_text FILE: into `content`.
read_text() { IFS= read -r -d '' content <"$1" || true; }

# The folders that scripts build in.
script_texts=""
for file in scripts/*.sh; do
  read_text "$file"
  script_texts+="$content"
done

declare -A flags_of=()
# target_flags NAME: into flags_of.
target_flags() {
  local name="$1" folder="${target_folder[$1]}" sources=() source
  [[ -z "${flags_of[$name]-}" ]] || return 0
  case "$folder" in
    bench) sources=(bench/"${target_source[$name]}" bench/*.h) ;;
    examples/*) sources=("$folder"/*.{h,cc} driver/*.{h,cc}) ;;
    *)
      local first="$folder/${target_source[$name]}"
      sources=("${first%/*}"/*.{h,cc})
      ;;
  esac
  flags_of[$name]=" "
  for source in "${sources[@]}"; do flags_of[$name]+="${flags_in[$source]-}"; done
}
# script_flags PATH: its own, and those of the programs that it names and may pass arguments on to.
script_flags() {
  local path="$1" name
  [[ -z "${flags_of[$path]-}" ]] || return 0
  flags_of[$path]=" ${flags_in[$path]-}"
  read_text "$path"
  if [[ "$content" == *'$@'* || "$content" == *':]}"'* ]]; then
    for name in "${!target_folder[@]}"; do
      [[ "$content" =~ (^|[^A-Za-z0-9_])$name([^A-Za-z0-9_]|$) ]] || continue
      target_flags "$name"
      flags_of[$path]+="${flags_of[$name]}"
    done
  fi
}
# subcommand_flags NAME: of apogee.
subcommand_flags() {
  local name="${1//-/_}" source
  [[ -z "${flags_of[apogee $1]-}" ]] || return 0
  flags_of["apogee $1"]=" "
  local shared=()  # sources of several commands
  if grep -q 'tools/language_model\.h' tools/"${name}"_command.cc 2>/dev/null; then
    shared=(tools/language_model.cc)
  fi
  for source in tools/"${name}"_command.cc tools/"$name"/*.{h,cc} tools/command.h "${shared[@]}"; do
    flags_of["apogee $1"]+="${flags_in[$source]-}"
  done
}

# --- Anchors and links.

mapfile -t extracted < <(awk -v root="$root" -f "$here/extract.awk" "${documents[@]}")
declare -A anchor=()
for text in "${extracted[@]}"; do
  [[ "$text" == HEAD* ]] || continue
  IFS=$'\t' read -r _ file _ text <<<"$text"
  anchor["$file#$text"]=1
done

# normalize PATH: without . and .., into `normal`; fails where it leaves the root.
normalize() {
  local part parts=() out=()
  IFS=/ read -ra parts <<<"$1"
  for part in "${parts[@]}"; do
    case "$part" in
      "" | .) ;;
      ..)
        ((${#out[@]})) || return 1
        unset "out[-1]"
        ;;
      *) out+=("$part") ;;
    esac
  done
  local IFS=/
  normal="${out[*]}"
}

check_link() {
  local target="$1" path name folder="."
  [[ "$file" == */* ]] && folder="${file%/*}"
  case "$target" in
    http://* | https://* | mailto:* | *'<'*) return 0 ;;
    "") wrong "an empty link"; return 0 ;;
  esac
  path="${target%%#*}"
  name=""
  [[ "$target" == *#* ]] && name="${target#*#}"
  if [[ -z "$path" ]]; then
    normal="$file"
  elif [[ "$path" == /* ]] || ! normalize "$folder/$path"; then
    wrong "the link $target leaves the repository"
    return 0
  fi
  if [[ -n "$normal" && ! -e "$normal" ]]; then
    wrong "the link $target: no such file"
  elif [[ -n "$name" && "$normal" == *.md && -z "${anchor[$normal#$name]-}" ]]; then
    wrong "the link $target: $normal has no heading with this anchor"
  fi
}

# --- Paths.

# check_path PATH: of the repository; may have * and {a,b}.
check_path() {
  local path="$1" found one head tail choice choices
  path="${path%/}"
  if [[ "$path" == *"{"*"}"* ]]; then
    head="${path%%\{*}"
    tail="${path#*\}}"
    choices="${path#*\{}"
    choices="${choices%%\}*}"
    IFS=, read -ra choice <<<"$choices"
    for one in "${choice[@]}"; do check_path "$head$one$tail"; done
    return 0
  fi
  if [[ "$path" == *"*"* ]]; then
    found=($path)
    ((${#found[@]})) || wrong "no file matches $path"
  elif [[ ! -e "$path" && "${target_folder[${path##*/}]-}" != "${path%/*}" ]]; then  # bench/optim_bench is a program
    wrong "$path: no such file"
  fi
}

# Words that begin with a folder of the repository. NAME and the like stand for something else.
check_paths() {
  local word words=() sure="$2"
  read -ra words <<<"$1"
  for word in "${words[@]}"; do
    word="${word##+([\(\"\'])}"
    word="${word%%+([.,:;\)\"\'])}"
    [[ "$word" == */* && "$folders" == *" ${word%%/*} "* ]] || continue
    [[ "$word" =~ ^[A-Za-z0-9_./*{},-]+$ && ! "$word" =~ (NAME|DIR|FILE|PROGRAM|\.\.\.) ]] || continue
    # In a code block: only what cannot be an argument of the reader's own.
    [[ -n "$sure" || "$word" =~ ^(scripts|tools|bench|tests|docs|cmake)/ ]] || continue
    # `comm/local` is a folder, `examples/01_train_gpt` too; data/rows with no such folder is an argument.
    check_path "$word"
  done
}

check_includes() {
  local text="$1" path
  [[ "$text" =~ \#include\ \"apogee/([A-Za-z0-9_/]+\.h)\" ]] || return 0
  path="${BASH_REMATCH[1]}"
  [[ "$path" == apogee.h ]] && path=driver/apogee.h
  check_path "$path"
}

# --- Commands.

block_program=""  # what `...` stands for in a code block

# resolve WORD NEXT: sets `program` (its key in flags_of) and `took` (words of it) where the word is a program of
# this repository; fails where it is none.
resolve() {
  local word="$1" next="$2" name preset folder
  program=""
  took=1
  word="${word#./}"
  if [[ "$word" =~ ^[A-Za-z0-9_./-]*((scripts|tools|bench|tests)/[A-Za-z0-9_./-]+\.(sh|py))$ ]]; then
    name="${BASH_REMATCH[1]}"
    if [[ ! -f "$name" ]]; then
      wrong "$name: no such script"
      return 0
    fi
    # A file without #! is read by others, and no command.
    read_text "$name"
    [[ "$content" == "#!"* ]] || return 1
    [[ -x "$name" ]] || wrong "$name is not executable"
    script_flags "$name"
    program="$name"
    return 0
  fi
  if [[ "$word" =~ ^build/([A-Za-z0-9_-]+)/(bin|examples|bench|tests)/(.*)$ ]]; then
    preset="${BASH_REMATCH[1]}"
    folder="${BASH_REMATCH[2]}"
    name="${BASH_REMATCH[3]##*/}"
    check_build "$preset"
    if [[ "$folder" != bin ]]; then
      if [[ -z "${target_folder[$name]-}" ]]; then
        wrong "$word: no CMakeLists.txt declares a program $name"
        return 0
      fi
      # examples/01_train_gpt/01_train_gpt, but bench/ddp_bench.
      [[ "build/$preset/${target_folder[$name]}/$name" == "$word" ]] ||
        wrong "$word: the build puts it in build/$preset/${target_folder[$name]}/$name"
    elif [[ "$name" != apogee ]]; then
      wrong "$word: there is no such program in bin"
      return 0
    fi
  else
    name="$word"
    [[ "$name" =~ ^(examples|bench)/([A-Za-z0-9_]+)$ ]] && name="${BASH_REMATCH[2]}"
  fi
  if [[ "$name" == apogee ]]; then
    [[ "$next" =~ ^[a-z][a-z-]+$ ]] || return 1
    if [[ ! -f "tools/${next//-/_}_command.cc" ]]; then
      wrong "apogee has no subcommand '$next'"
      return 0
    fi
    subcommand_flags "$next"
    program="apogee $next"
    took=2
    return 0
  fi
  [[ -n "${target_folder[$name]-}" && "$name" == *[_0-9]* ]] || return 1
  target_flags "$name"
  program="$name"
}

check_build() {
  [[ "$presets" == *" $1 "* || "$script_texts" =~ build/$1[^A-Za-z0-9_-] ]] || wrong "build/$1: no preset or script builds there"
}

# names_a_test REGEX: of ctest -R. Of tests from a loop over subjects, a subject.
names_a_test() {
  local name
  for name in "${!is_test[@]}"; do
    [[ "$name" =~ $1 ]] && return 0
  done
  grep -qrF --include=tests.cmake -- "$1" tests
}

# Of cmake and ctest.
check_cmake() {
  local word previous=""
  for word in "$@"; do
    case "$word" in
      --preset=*) [[ "$presets" == *" ${word#*=} "* ]] || wrong "CMakePresets.json has no preset '${word#*=}'" ;;
      -DAPOGEE_* | -DCMAKE_*)
        word="${word#-D}"
        word="${word%%[=:]*}"
        [[ "$word" == CMAKE_* || "$options" == *" $word "* ]] || wrong "cmake has no option $word"
        ;;
      build/*)
        word="${word#build/}"
        check_build "${word%%/*}"
        ;;
    esac
    case "$previous" in
      --preset) [[ "$presets" == *" $word "* ]] || wrong "CMakePresets.json has no preset '$word'" ;;
      -R | --tests-regex)
        [[ "$word" == QUOTED ]] || names_a_test "$word" || wrong "ctest -R $word matches no test"
        ;;
    esac
    previous="$word"
  done
}

# check_command WORD...: one simple command.
check_command() {
  local words=("$@") i=0 flag known launcher=""
  while ((i < ${#words[@]})) && [[ "${words[i]}" =~ ^([A-Za-z_][A-Za-z0-9_]*=.*|\$|sudo|time|env|python3|bash)$ ]]; do
    i=$((i + 1))
  done
  ((i < ${#words[@]})) || return 0
  case "${words[i]}" in
    cmake | ctest)
      check_cmake "${words[@]:i}"
      num_checked=$((num_checked + 1))
      return 0
      ;;
    mpirun | mpiexec | srun | strace | taskset | perf) launcher=1 ;;
    ...)
      [[ -n "$block_program" ]] || return 0
      words[i]="$block_program"
      ;;
  esac
  known=""
  for (( ; i < ${#words[@]}; i++)); do
    # The first word, what a launcher starts, and what `apogee run` starts.
    if [[ -z "$known" || "$known" == "apogee run" ]] && resolve "${words[i]}" "${words[i + 1]-}"; then
      [[ -n "$program" ]] || return 0
      known="$program"
      num_checked=$((num_checked + 1))
      if [[ "$known" != apogee\ * ]]; then block_program="${words[i]}"; fi
      i=$((i + took - 1))
      continue
    fi
    [[ -n "$known" || -n "$launcher" ]] || return 0
    flag="${words[i]}"
    [[ -n "$known" && "$flag" =~ ^--[a-z] && "$flag" != --help && "$flag" != --gtest* ]] || continue
    flag="${flag%%[=,.;:)\"]*}"
    [[ "${flags_of[$known]}" == *" $flag "* ]] || wrong "$known has no flag $flag"
  done
}

# check_commands TEXT: a line, which may have several.
check_commands() {
  local text="$1" words word command=() one=() part
  while [[ "$text" =~ ^([^\"\']*)(\"[^\"]*\"|\'[^\']*\')(.*)$ ]]; do
    text="${BASH_REMATCH[1]}QUOTED${BASH_REMATCH[3]}"
  done
  text="${text%%[[:space:]]#[[:space:]]*}"
  [[ "$text" == \#* ]] && return 0
  text="${text//&&/;}"
  text="${text//|/;}"
  IFS=';' read -ra command <<<"$text"
  for part in "${command[@]}"; do
    read -ra one <<<"$part"
    ((${#one[@]} == 0)) || check_command "${one[@]}"
  done
}

check_names() {
  local text="$1" name
  if [[ "$text" =~ ^[a-z][a-z0-9_]+_test$ && "$text" != apogee_* ]]; then
    # apogee_mpi_test with TCP, and apogee_nccl_run, make a second one.
    for name in "$text" "${text/%_tcp_test/_mpi_test}" "${text/%_nccl_tcp_test/_nccl_test}"; do
      [[ -z "${is_test[$name]-}" ]] || return 0
    done
    for name in "${test_patterns[@]}"; do
      [[ "$text" =~ ^${name}$ ]] && return 0
    done
    wrong "$text: no tests/*/tests.cmake has such a test"
  fi
  [[ "$text" =~ (^|[^A-Za-z_])(APOGEE_[A-Z0-9_]*[A-Z0-9])([^A-Za-z_*]|$) ]] || return 0
  if [[ -z "$names" ]]; then
    # Not the documents themselves, nor this check and its test.
    names=" $(grep -rhoE 'APOGEE_[A-Z0-9_]+' --exclude='*.md' --exclude-dir=docs $folders 2>/dev/null |
      sort -u | tr '\n' ' ') "
  fi
  [[ "$names" == *" ${BASH_REMATCH[2]} "* ]] || wrong "${BASH_REMATCH[2]} occurs nowhere in the sources"
}

# The version that users are told to ask for, in documents, examples of CMake and the installed configuration.
version="$(sed -nE 's/^project\(apogee VERSION ([0-9]+\.[0-9]+).*/\1/p' CMakeLists.txt 2>/dev/null)"
if [[ -n "$version" ]]; then
  while IFS=: read -r file line text; do
    [[ "$text" == "find_package(apogee $version"* || "$file" == CHANGELOG.md ]] || wrong "$text: the version is $version"
  done < <(grep -noE 'find_package\(apogee [0-9.]+' "${documents[@]}" cmake/*.in tests/*/CMakeLists.txt tests/*/*/CMakeLists.txt)
fi

# --- Quotes.

# check_quotes: of the document `file`.
check_quotes() {
  local quoted="" block="" inside="" text
  line=0
  while IFS= read -r text; do
    line=$((line + 1))
    if [[ "$text" =~ ^'<!-- quotes '([^ ]+)' -->'$ ]]; then
      quoted="${BASH_REMATCH[1]}"
      [[ -f "$quoted" ]] || { wrong "$quoted: no such file to quote"; quoted=""; }
    elif [[ -n "$quoted" && "$text" == '```'* && -z "$inside" ]]; then
      inside=1
      block=$'\n'
    elif [[ -n "$inside" && "$text" == '```' ]]; then
      read_text "$quoted"
      [[ $'\n'"$content" == *"$block"* ]] || wrong "the block above is not in $quoted"
      num_checked=$((num_checked + 1))
      quoted="" inside=""
    elif [[ -n "$inside" ]]; then
      block+="$text"$'\n'
    fi
  done <"$file"
}
for file in "${documents[@]}"; do
  read_text "$file"
  [[ "$content" != *'<!-- quotes '* ]] || check_quotes
done

# --- All of it.

for text in "${extracted[@]}"; do
  IFS=$'\t' read -r kind file line text <<<"$text"
  case "$kind" in
    LINK)
      check_link "$text"
      num_checked=$((num_checked + 1))
      ;;
    TEXT) [[ "$folders" != *" ${text%%/*} "* ]] || check_path "$text" ;;
    TICK)
      block_program=""
      check_paths "$text" sure
      check_names "$text"
      check_commands "$text"
      ;;
    CODE)
      if [[ -z "$text" ]]; then
        block_program=""
        [[ "$file" =~ ^examples/([0-9][^/]*)/ ]] && block_program="${BASH_REMATCH[1]}"
        continue
      fi
      check_includes "$text"
      check_paths "$text" ""
      check_commands "$text"
      ;;
  esac
done

if ((num_checked == 0)); then
  echo "check_docs: no link or command found below $root"
  exit 1
fi
if ((${#findings[@]})); then
  printf '%s\n' "${findings[@]}"
  echo "check_docs: ${#findings[@]} wrong, of ${#documents[@]} documents"
  exit 1
fi
echo "check_docs: ${#documents[@]} documents, $num_checked links and commands"
