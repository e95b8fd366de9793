# SPDX-License-Identifier: Apache-2.0
# Doxygen's input filter. Turns the plain comments of our headers into those that Doxygen reads:
#
#   awk -f scripts/site/doxygen_filter.awk optim/optimizer.h
#
#   the first block of the file       becomes the documentation of the file, and if it begins with `Name:` and the
#                                     class of that name has no comment, of that class, too
#   a block right above a declaration becomes its documentation
#   a comment behind a declaration    becomes its documentation, with the lines below that go on with it
#   indented lines of such comments   become code, as C++ if they look like it
#
# Everything else stays. Text is escaped: Doxygen has commands, tags and links of its own, our comments have none.
# Runs under any POSIX awk.

function indent_of(text) { match(text, /^ */); return RLENGTH }

# The text of a comment line, behind `//`.
function body(text) { sub(/^ *\/\/\/?<?/, "", text); return text }

# Prose, so that Doxygen prints it as it is.
function escape(text,    pieces, n, i, out) {
  n = split(text, pieces, "`")
  out = ""
  for (i = 1; i <= n; i++) {
    if (i % 2 == 1 || i == n) {
      gsub(/\\/, "\\\\", pieces[i])
      gsub(/[@<>#%&$]/, "\\\\&", pieces[i])
      gsub(/--/, "\\--", pieces[i])
      gsub(/\*/, "\\*", pieces[i])
      sub(/^ *\\\* /, "- ", pieces[i])
    }
    out = out (i > 1 ? "`" : "") pieces[i]
  }
  return out
}

# Prints the comment lines [first, last] as documentation. `command`: an extra line at the start, or "".
function document(first, last, command,    i, j, text, pad, in_item, cpp, empty) {
  pad = substr(line[first], 1, indent_of(line[first]))
  if (command != "") print pad "/// " command
  in_item = 0
  for (i = first; i <= last; i++) {
    text = body(line[i])
    if (text ~ /^   / && !in_item) {
      cpp = 0
      for (j = i; j <= last; j++) {
        if (body(line[j]) !~ /^   / && !(body(line[j]) == "" && j < last && body(line[j + 1]) ~ /^   /)) break
        if (body(line[j]) ~ /[;{}]|\/\/|#include/) cpp = 1
      }
      print pad "/// " (cpp ? "@code{.cpp}" : "@code{.unparsed}")
      for (; i < j; i++) print pad "///" substr(body(line[i]), 3)
      print pad "/// @endcode"
      i = j - 1
      continue
    }
    if (text ~ /^ +([-*]|[0-9]+[.)]) /) in_item = 1
    else if (text !~ /^   /) in_item = 0
    print pad "///" escape(text)
  }
}

# Whether a comment may belong to this line.
function declares(text) {
  if (text ~ /^ *$/ || text ~ /^ *(\/\/|#|}|\)|public:|private:|protected:|namespace |using namespace |return |if |for )/) return 0
  return text !~ /^ *(class|struct|enum class) [A-Za-z0-9_:]+( : [a-z0-9_:]+)?;/
}

{ sub(/\r$/, ""); line[NR] = $0 }

END {
  seen_file = 0
  for (i = 1; i <= NR; i++) {
    if (line[i] ~ /^ *\/\// && line[i] !~ /SPDX-License-Identifier/) {
      pad = indent_of(line[i])
      for (last = i; last < NR && line[last + 1] ~ /^ *\/\// && indent_of(line[last + 1]) == pad; last++) {}
      if (!seen_file) {
        seen_file = 1
        purpose = body(line[i])
        if (purpose ~ /^ [A-Z][A-Za-z0-9]*:/) { sub(/^ /, "", purpose); sub(/:.*/, "", purpose) } else purpose = ""
        purpose_first = i
        purpose_last = last
        document(i, last, "@file")
      } else if (last < NR && declares(line[last + 1])) {
        document(i, last, "")
      } else {
        for (j = i; j <= last; j++) print line[j]
      }
      i = last
      continue
    }
    if (line[i] ~ /^#/) seen_file = 1
    if (purpose != "" && line[i] ~ "^(class|struct) " purpose "( |$)" && declares(line[i]) && line[i - 1] ~ /^ *$/) {
      document(purpose_first, purpose_last, "")
      purpose = ""
    }
    # A comment behind code that ends a field, an enumerator, a parameter or a declaration.
    if (match(line[i], /[;,A-Za-z0-9_})]  ?\/\/ /) && declares(line[i])) {
      column = index(substr(line[i], RSTART), "//") + RSTART - 1
      print substr(line[i], 1, column - 1) "///<" escape(substr(line[i], column + 2))
      while (i < NR && line[i + 1] ~ /^ *\/\// && indent_of(line[i + 1]) >= column - 1) {
        i++
        print substr(line[i], 1, indent_of(line[i])) "///<" escape(body(line[i]))
      }
      continue
    }
    print line[i]
  }
}
