# Sourced after lib.sh by tests/effects_*.t, whose tables show for each option what differs if the option is given.
#   run COMMAND...                       print the output of COMMAND, then its messages and its status unless it is 0;
#                                        remove dates, times and the name of the temporary directory
#   effect BASE REGEX OPTION [VALUE...]  the output of the function BASE depends on the option: a line that is printed only
#                                        without the option, after "< ", or only with the option, after "> ", matches
#                                        REGEX.  No run may fail unless REGEX has "status"
#   unseen OPTION REASON                 the effect of the option cannot be seen in this test, for this reason
#   covers COMMAND GROUP...              the rows since the last call are those of all options of these groups of the
#                                        command (--list-options), except aliases
# BASE is called in the directory $T.  With MEG_RESET=1, the programs are linked with tests/effects/reset.c, and reset the
# option of the row to its default.  Then each row must fail: its base run fails, or no line matches REGEX.
OMP_NUM_THREADS=1
export OMP_NUM_THREADS
: >"$T/rows"
: >"$T/covered"

run() {
    "$@" >"$T/.run" 2>"$T/.run.err"
    run_status=$?
    cat "$T/.run" "$T/.run.err" |
        sed -E -e 's/^ \[[^]]*\]//' -e "s|$T/||g" -e 's/elapsed time per iteration \(ms\): [0-9.]+/elapsed/' \
            -e 's/throughput per GPU \(TFLOP\/s\/GPU\): [0-9.]+/throughput/'
    [ "$run_status" -eq 0 ] || echo "status $run_status"
}

effect() {
    effect_base=$1 effect_regex=$2
    shift 2
    echo "$1" >>"$T/rows"
    effect_want="$T/.base.$effect_base"
    if [ -n "${MEG_RESET:-}" ]; then
        MEG_RESET_OPTION=${1#--}
        export MEG_RESET_OPTION
        effect_want=$T/.base
        rm -f "$effect_want"
    fi
    [ -e "$effect_want" ] || $effect_base >"$effect_want"
    $effect_base "$@" >"$T/.effect"
    unset MEG_RESET_OPTION
    diff "$effect_want" "$T/.effect" >"$T/.diff"
    if grep -q '^status' "$effect_want" && ! expr "$effect_regex" : '.*status' >/dev/null; then
        effect_problem="the base run fails: $(tail -n 3 "$effect_want")"
    elif grep -q '^> status' "$T/.diff" && ! expr "$effect_regex" : '.*status' >/dev/null; then
        effect_problem="the run fails: $(tail -n 3 "$T/.effect")"
    elif ! grep -E '^[<>]' "$T/.diff" | grep -Eq -e "$effect_regex"; then
        effect_problem="no difference matches $effect_regex: $(head -n 20 "$T/.diff")"
    else
        effect_problem=
    fi
    if [ -z "${MEG_RESET:-}" ]; then
        [ -z "$effect_problem" ]
    else
        [ -n "$effect_problem" ]
    fi
    tap_result $? "$effect_base: $*" "${effect_problem:-the reset option has the same effect: $(head -n 20 "$T/.diff")}"
}

unseen() {
    echo "$1" >>"$T/rows"
    echo "# not seen: $1, because $2"
}

covers() {
    covers_command=$1
    shift
    for group; do
        "$covers_command" --list-options | awk -F '\t' -v group="$group" '$4 == group && $6 == "" { print "--" $1 }'
    done | sort >"$T/.options"
    is "each option of $covers_command in $* has a row" "$(sort -u "$T/rows" | comm -13 - "$T/.options")" ''
    is "each row of $covers_command in $* has an option" "$(sort -u "$T/rows" | comm -23 - "$T/.options")" ''
    printf '%s\n' "$@" >>"$T/covered"
    : >"$T/rows"
}
