#!/bin/sh
# needs: ranks/comm
# modules: optim
# bf16 and fp16 on several ranks: losses equal those of one rank, and all ranks skip the same steps.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
train-iters = 30
lr-warmup-iters = 2
initial-loss-scale = 1048576
loss-scale-window = 6
EOF

# run N FILE OPTION...: train on N ranks; write loss, loss scale and skipped iterations of each iteration to FILE
run() {
    n=$1 to=$2
    shift 2
    rm -f "$T/json"
    ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/json" "$@" >"$T/out" 2>&1 </dev/null || cat "$T/out" >&2
    jq -r '"\(.lm_loss) \(.loss_scale) \(.skipped_iterations)"' "$T/json" >"$to"
}
# like_one FILE: true if FILE has 30 iterations with losses within 2% of one rank and with its loss scales and skipped
# iterations
like_one() {
    for f in "$1" "$T/one"; do
        awk '$3 == 0 { print $1 }' "$f" >"$f.loss"
        awk '{ print $1 == "null", $2, $3 }' "$f" >"$f.scale"
    done
    near "$1.loss" "$T/one.loss" 0.02 && diff "$1.scale" "$T/one.scale" && [ "$(wc -l <"$1")" -eq 30 ]
}
for type in --bf16 --fp16; do
    run 1 "$T/one" $type
    while read -r n options; do
        run "$n" "$T/some" $type $options
        ok "$type, $n ranks $options: losses equal those of one rank" like_one "$T/some"
    done <<end
2
2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
2 --zero-stage 2 --overlap-grad-reduce
2 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather
2 --tensor-model-parallel-size 2 --sequence-parallel
2 --pipeline-model-parallel-size 2 --fp32-residual-connection
2 --context-parallel-size 2
end
done
is 'some iterations are skipped' "$(awk '{ n += $3 } END { print (n > 3) }' "$T/one")" 1
done_testing
