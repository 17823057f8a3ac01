#!/bin/sh
# The words in $words, most of which are from the left column of the glossary in CONTRIBUTING.md, do not occur in code,
# comments, messages, tests and manuals, except where language.except allows them.  A line of this file is an extended
# regular expression that matches FILE:LINE:TEXT.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

words='rooms?|on paper|meg_paper|shares?|pieces?|slices?|takes? turns|givers?|takers?|places?|kinds?|carriers?
meets?|met|by_heads|by_keys|joins?|addends?|adds? up|added up|walks?|board|notes|meetings?|last words|strangers|speaks
left out|seams?|stretch(es)?|sought|seeks?|comes?|came|whole|widens?|narrows?|tells?|told|stands?|stood|lies?|goes on|go on'
words=$(printf '%s' "$words" | tr '\n' '|')

grep -v '^#' tests/language.except >"$T/except"
find lib cmd man recipes tests Makefile ./*.mk .ci ./*.md -type f ! -path 'tests/data/*' ! -path 'tests/fuzz/*.seeds/*' \
    ! -name 'language.*' ! -name .clang-format -exec grep -nwiE "$words" /dev/null {} + >"$T/found"
is 'no word of the glossary is used in its place' "$(grep -vE -f "$T/except" "$T/found" | cut -c1-160)" ''
# Find exceptions that match nothing.
unused=$(while IFS= read -r regex; do grep -qE -e "$regex" "$T/found" || printf '%s\n' "$regex"; done <"$T/except")
is 'every exception is needed' "$unused" ''
done_testing
