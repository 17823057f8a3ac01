#!/bin/sh
# modules: option
# No option of Megatron-LM or its forks is unknown.  tests/data/parsers has the option names of five parsers:
#   megatron-core-0.10  megatron/training/arguments.py of core_r0.10.0, complete
#   megatron-0.20       the same file of the development tree of August 2026, complete
#   bigscience          megatron/arguments.py of BigScience's Megatron-DeepSpeed, last commit, complete
#   microsoft           megatron/arguments.py of Microsoft's Megatron-DeepSpeed, December 2024, complete
#   readmes             the options in the readmes of Megatron-LM 23.08, 0.10 and 0.20 and of BigScience, for any command
. "${0%/*}/lib.sh"
parsers=${0%/*}/data/parsers not_yet=$T/not-yet

# The section NOT YET of meg(7) as one line of lower-case text.
sed -n '/^\.Sh NOT YET/,/^\.Sh SEE/p' "${0%/*}/../man/meg.7" | sed 's/^\.[A-Z][a-z]* //; s/[A-Z]/\L&/g' | tr -s '\n ' ' ' >"$not_yet"

# replies COMMAND FILE: write to $T/replies what COMMAND says about the names in FILE that are not in its tables.  Each command line
# ends with an option that nobody has, so that its message shows that none was cut off.
replies() {
    "$1" --list-options | cut -f 1 | tr _ - | sort -u >"$T/known"
    tr _ - <"$2" | sort -u | comm -23 - "$T/known" >"$T/names"
    sed 's/^/--/' "$T/names" | xargs -n 8 sh -c '"$@" --no-one-has-this 2>&1; :' - "$1" >"$T/replies"
    is "$1: each command line is answered to its end" "$(grep -c 'unknown option --no-one-has-this' "$T/replies")" \
        $((($(wc -l <"$T/names") + 7) / 8))
    sed -i '/no-one-has-this/d' "$T/replies"
}

for parser in megatron-core-0.10 megatron-0.20 bigscience microsoft; do
    is "$parser: there are names, one per line" "$(grep -vcE '^[a-zA-Z0-9_-]+$' "$parsers/$parser.txt") $(sort "$parsers/$parser.txt" | uniq -d)" '0 '
    ok "$parser: the list is long" test "$(wc -l <"$parsers/$parser.txt")" -gt 180
done
cat "$parsers"/m*.txt "$parsers/bigscience.txt" >"$T/all"
replies meg-train "$T/all"
is 'meg-train knows every option of four parsers' "$(grep 'unknown option' "$T/replies")" ''
sed -n 's/.*: not supported yet: \(.*\); see NOT YET.*/\1/p' "$T/replies" | sort -u >"$T/features"
ok 'many features are named' test "$(wc -l <"$T/features")" -gt 40
is 'meg(7) lists each feature under NOT YET' "$(tr '[:upper:]' '[:lower:]' <"$T/features" |
    while IFS= read -r feature; do grep -qF "$feature" "$not_yet" || echo "$feature"; done)" ''
is 'each message is one line of at most 400 bytes' "$(awk 'length > 400 || !/^meg-train: --|^Try/' "$T/replies")" ''

for main in "${0%/*}"/../cmd/*/main.c; do
    command=$(basename "${main%/main.c}")
    replies "meg-$command" "$parsers/readmes.txt"
    sed -n 's/.*unknown option --\([^;]*\).*/\1/p' "$T/replies" | sort >"$T/unknown.$command"
done
is 'each option of the readmes belongs to a command' "$(sort "$T"/unknown.* | uniq -c | awk '$1 == 7 { print $2 }')" ''
done_testing
