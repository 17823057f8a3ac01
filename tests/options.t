#!/bin/sh
# modules: option
# Check the common options of all commands.
# shellcheck disable=SC2016  # $1 is expanded by the inner shell
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

for main in cmd/*/main.c; do
    [ -f "$main" ] || continue
    name=${main#cmd/}
    name=meg-${name%/main.c}

    status "$name --help succeeds" 0 "$name" --help
    COLUMNS=80 "$name" --help >"$T/help"
    is "$name --help fits 80 columns" "$(grep -E '^.{81}' "$T/help")" ''
    ok "$name --help lists options" test "$(grep -c '^ .\{5\}--' "$T/help")" -ge 5
    status "$name rejects a misspelt option" 2 "$name" --halp
    like "$name suggests the nearest option" "$(cat "$T/err")" 'unknown option --halp; did you mean --help\?'
    status "$name fails if the config file is missing" 66 "$name" --config "$T/none.conf"
    "$name" --list-options >"$T/options"
    is "$name --list-options prints six fields per option" "$(awk -F '\t' 'NF != 6' "$T/options")" ''
    cut -f 1 "$T/options" | sort >"$T/listed"
    is "$name --list-options includes all options of --help" "$(sed -n 's/^ .\{5\}--\([^ ,]*\).*/\1/p' "$T/help" |
        sort | comm -23 - "$T/listed")" ''

    "$name" --dump-config >"$T/first.conf"
    ok "$name reads its --dump-config" "$name" --config "$T/first.conf" --dump-config
    "$name" --config "$T/first.conf" --dump-config >"$T/second.conf"
    is "$name --dump-config is idempotent" "$(diff "$T/first.conf" "$T/second.conf")" ''

    if command -v bash >/dev/null; then
        is "bash completes the options of $name" "$(bash -c '
            eval "$("$1" --completion bash)"
            COMP_WORDS=("$1" --dump-c) COMP_CWORD=1
            "_${1//-/_}"
            echo "${COMPREPLY[*]}"' - "$name")" --dump-config
    else
        skip "bash completes the options of $name" 'no bash'
    fi
done
if [ -w /dev/full ]; then
    status '--help fails on a full disk' 74 sh -c 'meg-vocab --help >/dev/full'
fi
done_testing
