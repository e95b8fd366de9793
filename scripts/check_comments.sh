#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refuses comments that an automatic re-flow has damaged, and comment lines of more than 100 columns:
#
#   scripts/check_comments.sh [FILE...]      # default: every C++ file of the repository
#
# A re-flow breaks a line after the last word that fits, and joins the rest with the next line. In a block
# of code, formulas or table rows (three or more blanks after the slashes) this gives, for instance,
#
#   //   ratio = clamp(|w| / |u|, min_ratio, max_ratio), norms of the whole tensor; 1 where one of them
#   //   is 0 w -= lr ratio u
#
# The rules look only at such pairs: a line so full that the next line's first word did not fit on it, and
# a next line that is indented like it. If a line of such a block must continue, indent the continuation:
# then no rule applies. Exit code: 0 no damage, 1 damage (prints `FILE:LINE: problem; remedy` for each),
# 2 wrong use.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export LC_ALL=C

if (($# > 0)); then
  for file in "$@"; do
    [[ -f "$file" && -r "$file" ]] || {
      echo "check_comments: cannot read '$file'; usage: scripts/check_comments.sh [FILE...]" >&2
      exit 2
    }
  done
  files=("$@")
else
  cd "$ROOT"
  mapfile -d '' files < <(find . \( -path ./build -o -path ./out -o -path ./.git \) -prune -o \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
  files=("${files[@]#./}")
fi

awk '
function complain(line, text) {
  print FILENAME ":" line ": " text
  ++complaints
}

# Columns, not bytes: without the second and later bytes of UTF-8 characters.
function columns(text) {
  gsub(/[\200-\277]/, "", text)
  return length(text)
}

# The number of brackets that `text` opens and does not close, without those in a comment after the code.
function open_brackets(text,    opened, closed) {
  sub(/ +\/\/ .*$/, "", text)
  gsub(/"[^"]*"/, "", text)
  opened = gsub(/[([{]/, "", text)
  closed = gsub(/[])}]/, "", text)
  return opened - closed
}

# Whether the words before the first code or formula of `text` are prose: "is 0 w -= lr" has "is 0", and
# "Tensor x = y" has none, it is a declaration.
function begins_with_prose_before_code(text,    word, count, i, words) {
  count = split(text, words, " ")
  if (words[1] in keywords || words[1] in english_keywords) return 0
  for (i = 1; i <= count && i <= 6; ++i) {
    word = words[i]
    # A word that code begins with: a call, a member, a qualified name, an assignment, a keyword.
    if (word ~ /[A-Za-z_>\]]\(|->|::|^[a-z_]+\.[a-zA-Z_]+[(.]|\);/ || word in keywords ||
        (i < count && word ~ /^(for|if|while)$/ && words[i + 1] ~ /^\(/) ||
        (i < count && words[i + 1] ~ /^([-+*\/|&]?=|:=)$/)) {
      if (words[1] ~ /:$/) return 0  # the name of a formula
      return i > 2 || (i == 2 && words[1] !~ /^[A-Z][A-Za-z0-9]*$/)
    }
    if (word !~ /^[("]?[A-Za-z0-9]+[])}"]*[,.:;]?$/) return 0
  }
  return 0
}

# Whether `text` can be a statement. The rest of a broken comment cannot.
function is_statement(text, comment,    word) {
  word = text
  sub(/[^a-z].*/, "", word)
  if (text ~ /[;{}=]|\/\/|^\.\.\.|^[A-Za-z_:]+\(|^[A-Za-z_]+:$|^(for|if|while) \(/ || word in keywords) return 1
  # An expression, such as steps[0].idle_ns; but a comment may end with one.
  return text ~ /^[A-Za-z_]+[.\[]/ && comment !~ /([,:]| (a|and|at|by|for|in|is|of|on|or|the|to|with))$/
}

# `first` is so full that the first word of `second`, which is indented like it, did not fit.
# `depth`: how much more than the first line of the block.
function check_block(first, second, line, depth,    one, two, remedy, program) {
  one = first
  two = second
  sub(/^ *\/\/ +/, "", one)
  sub(/^ *\/\/ +/, "", two)
  remedy = "; give each row, formula or statement a line of its own, and indent what continues one"
  program = one
  sub(/ .*/, "", program)
  if (depth < 6 && open_brackets(one) > 0 && one ~ /[;={}]|::|->|[A-Za-z0-9_]\(/ && one !~ /[{]( \.\.\.)?$/ && one !~ /[{] *\/\/ /) {
    complain(line, "an example or formula is broken within its brackets" remedy)
  } else if ((depth < 6 && begins_with_prose_before_code(two)) ||
             (program ~ /^[a-z0-9]+_[a-z0-9_]+$/ && two ~ ("^[A-Za-z0-9]+ " program " "))) {
    complain(line, "the rest of the line before is joined with the next row or statement" remedy)
  } else if (one ~ / \/\/ / && !is_statement(two, one)) {
    complain(line, "the comment of the line before continues at the place of a statement" remedy)
  } else if (one ~ /[^ ]  +[^ ]/ && one !~ / (\/\/|#) / && two ~ /^[a-z]/ && two !~ /[=;(]|[^ ]  +[^ ]/) {
    complain(line, "a row of the table continues at the place of the next row" remedy)
  } else if (one ~ /=/ && one !~ / (\/\/|#) / && (one ~ / [-+*\/=]$/ || two ~ /^([-+*\/=]|[-+*\/]=) /)) {
    complain(line, "a formula continues at the place of the next one" remedy)
  }
}

BEGIN {
  # Code also begins with words of the second list, but so do the rests of broken sentences.
  count = split("auto bool const int int64_t struct typename unsigned", list, " ")
  for (i = 1; i <= count; ++i) keywords[list[i]] = 1
  count = split("char class double float return static template using void", list, " ")
  for (i = 1; i <= count; ++i) english_keywords[list[i]] = 1
}

FNR == 1 { kind = before_kind = "" }

{
  sub(/\r$/, "")
  this = ""
  if (match($0, /^ *\/\/ */)) {
    indent = RLENGTH
    match($0, /^ */)
    # The number of blanks between slashes and text. An empty comment line ends a block.
    if (length($0) > indent) this = (indent - RLENGTH - 2 >= 3 ? "block" : "prose") " " indent
    if (columns($0) > 100 && $0 !~ /https?:\/\//) {
      complain(FNR, "a comment line of " columns($0) " columns; break it at 100")
    }
  }
  word = substr($0, indent + 1)
  sub(/ .*/, "", word)
  full = this != "" && this == kind && columns(last) <= 100 && columns(last) + 1 + columns(word) > 100
  if (this !~ /^block/) {
    block_indent = 0
  } else if (block_indent == 0 || indent < block_indent) {
    block_indent = indent
  }
  if (full && this ~ /^block/) check_block(last, $0, FNR, indent - block_indent)
  # In prose: one or two words alone between a full line and a line that continues the sentence.
  if (was_full && this != "" && this == kind && this ~ /^prose/ && last_words <= 2 &&
      columns(last) <= 40 && last !~ /[.:;!?)]$/ && $0 ~ /^ *\/\/ [a-z]/) {
    complain(FNR - 1, "one or two words alone on a line within a sentence; join them with the next line")
  }
  was_full = full
  last_words = NF - 1
  last = $0
  kind = this
}

END { exit complaints > 0 }
' "${files[@]}" || exit
