#!/bin/sh
# needs: ranks/comm
# modules: comm plan
# The bytes sent per step, counted by the collectives, and the arena sizes equal those that the cost model predicts
# (meg-train -v prints both), also with options that tests/layouts.t does not vary: logged norms, numbers of layers,
# types of context parallelism.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
train-iters = 2
EOF

# sends N GROUPS OPTION...: check that N ranks send the planned bytes in GROUPS groups
sends() {
    n=$1 groups=$2
    shift 2
    ranks "$n" meg-train -v --config "$T/conf" "$@" >"$T/out" 2>&1
    grep 'sent per step' "$T/out" >"$T/sent"
    is "$n ranks send the planned bytes: $*" "$(grep -o 'as planned' "$T/sent" | wc -l | tr -d ' ') $(grep -c '[0-9] planned' "$T/sent")" "$groups 0"
    is "$n ranks: arenas have the planned size: $*" "$(grep -c ' MiB planned$' "$T/out")" 1
    [ -s "$T/sent" ] && sed 's/^/# /' "$T/sent" || sed 's/^/# /' "$T/out"
}

tp='--tensor-model-parallel-size 2'
sends 2 1 --log-params-norm --log-num-zeros-in-grad
sends 4 3 $tp --sequence-parallel --log-num-zeros-in-grad
sends 2 1 --use-distributed-optimizer --log-params-norm
sends 4 3 $tp --sequence-parallel --zero-stage 3 --num-layers 6 --overlap-grad-reduce --overlap-param-gather
sends 2 1 --zero-stage 3 --num-layers 5 --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 3 --overlap-grad-reduce --overlap-param-gather
sends 2 2 --context-parallel-size 2 --cp-comm-type p2p a2a all_gather p2p
done_testing
