#!/bin/sh
# needs: ranks/layouts toy
# modules: placement
# In a debug build, the placement of each tensor is checked over each axis of the mesh (lib/placement).  Two steps of
# layouts of the layout array and of expert parallelism end without a wrong placement.  PART=I/N tests part I of N of the
# layouts (default: 1/30).
. "${0%/*}/lib.sh"
[ "${MEG_PLACEMENT-}" ] || skip_all 'placements are checked in debug builds (make check-placement)'
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/bert.sh"
. "${0%/*}/train.sh"
cp "$bert_vocab" "$T/vocab.txt"

ranks 8 "$B/tests/ranks/layouts" placement "$T" "${PART:-1/30}" >"$T/out" 2>"$T/err"
status=$?
sed 's/^/# /' "$T/out"
is 'layouts end without a wrong placement' "$status $(grep -a placement: "$T/err" | head -n 1)" '0 '

PATH=$B/tests/toy:$PATH
experts() { # N OPTION...: train experts
    n=$1
    shift
    ranks "$n" meg-train -q --config "$T/conf" --model experts --global-batch-size 8 --train-iters 4 --eval-iters 0 "$@" \
        >"$T/out" 2>"$T/err"
    is "experts on $n ranks, $*" "$? $(grep -a placement: "$T/err" | head -n 1)" '0 '
}
ep='--expert-model-parallel-size 2' etp=--expert-tensor-parallel-size
tp='--tensor-model-parallel-size 2 --sequence-parallel'
# shellcheck disable=SC2086 # options and their values
{
    experts 2 $ep
    experts 4 $ep $tp
    experts 4 $ep --context-parallel-size 2 --use-distributed-optimizer
    experts 4 $ep --use-distributed-optimizer --num-distributed-optimizer-instances 2 --overlap-grad-reduce \
        --overlap-param-gather
    experts 4 $ep --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
    experts 4 $etp 1 $tp
    experts 4 $etp 1 $ep $tp --use-distributed-optimizer
    experts 4 $etp 2 $ep --use-distributed-optimizer
    experts 4 $ep --zero-stage 2
    experts 4 $ep --zero-stage 3 --overlap-grad-reduce --overlap-param-gather
}
done_testing
