#!/bin/sh
# What the option table promises of every command.
# shellcheck disable=SC2016  # $1 is for the shell inside
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

for main in cmd/*/main.c; do
    [ -f "$main" ] || continue
    name=${main#cmd/}
    name=meg-${name%/main.c}

    status "$name --help ends well" 0 "$name" --help
    COLUMNS=80 "$name" --help >"$T/help"
    is "$name --help fits 80 columns" "$(grep -E '^.{81}' "$T/help")" ''
    ok "$name --help has rows of options" test "$(grep -c '^ .\{5\}--' "$T/help")" -ge 5
    status "$name refuses an option that is misspelt" 2 "$name" --halp
    like "$name names the nearest" "$(cat "$T/err")" 'unknown option --halp; did you mean --help\?'
    status "$name says what it misses of a config file" 66 "$name" --config "$T/none.conf"
    "$name" --list-options >"$T/options"
    is "$name lists six fields an option" "$(awk -F '\t' 'NF != 6' "$T/options")" ''
    cut -f 1 "$T/options" | sort >"$T/listed"
    is "$name lists each option that --help has a row of" "$(sed -n 's/^ .\{5\}--\([^ ]*\).*/\1/p' "$T/help" |
        sort | comm -23 - "$T/listed")" ''

    "$name" --dump-config >"$T/first.conf"
    ok "$name reads what it dumps" "$name" --config "$T/first.conf" --dump-config
    "$name" --config "$T/first.conf" --dump-config >"$T/second.conf"
    is "$name dumps the same again" "$(diff "$T/first.conf" "$T/second.conf")" ''

    if command -v bash >/dev/null; then
        is "$name is completed by bash" "$(bash -c '
            eval "$("$1" --completion bash)"
            COMP_WORDS=("$1" --dump-c) COMP_CWORD=1
            "_${1//-/_}"
            echo "${COMPREPLY[*]}"' - "$name")" --dump-config
    else
        skip "$name is completed by bash" 'no bash'
    fi
done
if [ -w /dev/full ]; then
    status 'help on a full disk fails' 74 sh -c 'meg-vocab --help >/dev/full'
fi
done_testing
