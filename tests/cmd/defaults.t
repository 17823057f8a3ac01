#!/bin/sh
# modules: option
# Options of meg-train have the defaults of Megatron, so that Megatron's scripts have the same meaning.
. "${0%/*}/../lib.sh"
table=${0%/*}/../data/megatron_defaults.txt

meg-train --dump-config | sed -n 's/^\([a-z].*\) = \(.*\)/\1 \2/p' >"$T/ours"
meg-train --list-options | cut -f 1 >"$T/known"
grep -v '^#' "$table" >"$T/theirs"
ok 'both lists are complete' awk 'END { exit NR < 230 }' "$T/ours" "$T/theirs"
is 'the table has only options of meg-train' "$(cut -d ' ' -f 1 "$T/theirs" | grep -vxFf "$T/known")" ''
is 'each option has the default of the table' "$(awk '
    NR == FNR { ours[$1] = $2; next }
    { mine = $1 in ours ? ours[$1] : "-" }
    mine != $2 && !(mine ~ /^[0-9]/ && $2 ~ /^[0-9]/ && mine + 0 == $2 + 0) { print $1 ": " mine ", not " $2 }
    ' "$T/ours" "$T/theirs")" ''
done_testing
