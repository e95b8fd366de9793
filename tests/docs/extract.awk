# SPDX-License-Identifier: Apache-2.0
# Takes Markdown files apart for check_docs.sh. One line each, with tabs between the fields:
#
#   HEAD  file  line  anchor     an anchor that a link may name: a heading as GitHub writes it, or an id="..."
#   LINK  file  line  target     of [text](target), and of src="..." and href="..."
#   CODE  file  line  text       a line of a code block; lines that end with \ are joined
#   TICK  file  line  text       what stands in backticks within the text
#   TEXT  file  line  text       a word of the text that may be a path
#
# Runs under any POSIX awk (mawk has no intervals in its expressions).

function put(kind, line, text) { print kind "\t" file "\t" line "\t" text }

# The anchor that GitHub gives a heading.
function slug(text,    out, i, c) {
  gsub(/`/, "", text)
  while (match(text, /\[[^]]*\]\([^)]*\)/)) {
    c = substr(text, RSTART + 1, RLENGTH - 1)
    sub(/\].*/, "", c)
    text = substr(text, 1, RSTART - 1) c substr(text, RSTART + RLENGTH)
  }
  gsub(/×|–|—|…|→|÷|’|“|”/, "", text)
  text = tolower(text)
  out = ""
  for (i = 1; i <= length(text); i++) {
    c = substr(text, i, 1)
    if (c == " ") out = out "-"
    else if (c ~ /[a-z0-9_-]/ || c > "~") out = out c
  }
  return out
}

function newlines(text) { return gsub(/\n/, "\n", text) }

# The links of one paragraph, whose code spans are taken out.
function links(text, line,    at, target, rest, pattern) {
  rest = text
  at = line
  while (match(rest, /\]\([^()]*\)/)) {
    target = substr(rest, RSTART + 2, RLENGTH - 3)
    at += newlines(substr(rest, 1, RSTART))
    sub(/[ \n].*/, "", target)  # a title
    put("LINK", at, target)
    rest = substr(rest, RSTART + RLENGTH)
  }
  rest = text
  while (match(rest, /(src|href|srcset)="[^"]*"/)) {
    target = substr(rest, RSTART, RLENGTH)
    sub(/^[a-z]*="/, "", target)
    sub(/"$/, "", target)
    put("LINK", line, target)
    rest = substr(rest, RSTART + RLENGTH)
  }
  rest = text
  while (match(rest, /(id|name)="[^"]*"/)) {
    target = substr(rest, RSTART, RLENGTH)
    sub(/^[a-z]*="/, "", target)
    sub(/"$/, "", target)
    put("HEAD", line, target)
    rest = substr(rest, RSTART + RLENGTH)
  }
}

function end_paragraph(    n, i, j, pieces, plain, at, tick, words, num) {
  if (paragraph == "") return
  n = split(paragraph, pieces, "`")
  plain = ""
  at = paragraph_line
  for (i = 1; i <= n; i++) {
    if (i % 2 == 0 && i < n) {
      tick = pieces[i]
      gsub(/[ \t]*\n[ \t]*/, " ", tick)
      put("TICK", at, tick)
      tick = pieces[i]
      gsub(/[^\n]/, "", tick)
      plain = plain "x" tick
    } else {
      plain = plain pieces[i]
      tick = pieces[i]
      gsub(/\]\([^()]*\)/, "]", tick)  # checked as links
      num = split(tick, words, /[] \t\n()|,;"'[]+/)
      for (j = 1; j <= num; j++) {
        if (words[j] ~ /^[a-z_]+\/[A-Za-z0-9_.\/-]*\.(h|cc|cu|cuh|md|sh|py|svg|cmake|txt)[.:]*$/) {
          sub(/[.:]+$/, "", words[j])
          put("TEXT", at, words[j])
        }
      }
    }
    at += newlines(pieces[i])
  }
  links(plain, paragraph_line)
  paragraph = ""
}

function end_code() {
  if (code != "") put("CODE", code_line, code)
  code = ""
}

function add_code(text) {
  if (code == "") code_line = FNR
  code = code text
  if (code ~ /\\$/) sub(/\\$/, " ", code)
  else end_code()
}

FNR == 1 {
  if (file != "") { end_paragraph(); end_code() }
  file = FILENAME
  if (substr(file, 1, length(root) + 1) == root "/") file = substr(file, length(root) + 2)
  fenced = indented = in_list = 0
  blank = 1
  split("", seen)
}

{ sub(/\r$/, "") }

/^ *```/ || /^ *~~~/ {
  end_paragraph()
  end_code()
  fenced = !fenced
  indented = 0
  if (/^[`~]/) in_list = 0
  put("CODE", FNR, "")  # a block begins or ends
  blank = 0
  next
}
fenced { add_code($0); next }

/^[ \t]*$/ { end_paragraph(); end_code(); blank = 1; next }

(blank || indented) && /^(    |\t)/ && (!in_list || /^      /) {
  if (!indented) put("CODE", FNR, "")
  indented = 1
  blank = 0
  text = $0
  sub(/^[ \t]+/, "", text)
  add_code(text)
  next
}
{
  if (indented) end_code()
  indented = 0
}

/^#+ / {
  end_paragraph()
  text = $0
  sub(/^#+ +/, "", text)
  sub(/ +#* *$/, "", text)
  anchor = slug(text)
  put("HEAD", FNR, anchor (seen[anchor] ? "-" seen[anchor] : ""))
  seen[anchor]++
  paragraph = text
  paragraph_line = FNR
  end_paragraph()
  blank = in_list = 0
  next
}

/^ *([-*+]|[0-9]+[.)]) / { end_paragraph(); in_list = 1 }
/^[^ \t|]/ && blank && !/^([-*+]|[0-9]+[.)]) / { in_list = 0 }
/^\|/ { end_paragraph() }
{
  if (paragraph == "") paragraph_line = FNR
  paragraph = paragraph (paragraph == "" ? "" : "\n") $0
  blank = 0
}
/^\|/ { end_paragraph() }

END { end_paragraph(); end_code() }
