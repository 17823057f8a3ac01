#!/bin/sh
# placement_mutants.sh TABLE - check that each mutant of TABLE ends training in the first step, with the message that
# TABLE expects.  tests/mutants.sh --placement builds the mutants, and MEG_MUTANT selects one.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
. "${0%/*}/bert.sh"
mv "$T/conf" "$T/bert.conf"
. "${0%/*}/train.sh"
mv "$T/conf" "$T/gpt.conf"
t5='--model t5 --decoder-num-layers 2 --decoder-seq-length 16 --vocab-extra-ids 30 --position-embedding-type relative
    --relative-attention-num-buckets 8 --relative-attention-max-distance 20'
tab=$(printf '\t')

# options NAME OPTION...: set conf and args to the configuration NAME and its options
options() {
    conf=$1 args=
    shift
    case $conf in
    t5) conf=bert args=$t5 ;;
    experts) conf=gpt args='--model experts' ;;
    esac
    args="$args --global-batch-size 8 --lr-warmup-iters 0 --train-iters 2 --eval-iters 0 --split 100,0,0 $*"
}

grep -v '^#' "$1" >"$T/table"
id=0
while IFS=$tab read -r file operator nth old new run message <&3; do
    id=$((id + 1))
    [ "${ONLY:-$id}" = "$id" ] || continue
    n=${run%% *}
    options ${run#* }
    MEG_MUTANT=$id ranks "$n" timeout 60 meg-train -q --config "$T/$conf.conf" $args >"$T/out" 2>"$T/err"
    case $message in 'step '*) ;; *) message="step 1.*($message)" ;; esac
    like "mutant $id of ${file##*/}: $message" "$(grep -a placement: "$T/err" || tail -n 3 "$T/err")" "$message"
done 3<"$T/table"
done_testing
