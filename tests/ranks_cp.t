#!/bin/sh
# needs: ranks/comm
# modules: nn
# Context parallelism in meg-train: losses equal those of one rank with every --cp-comm-type, also combined with tensor,
# data and pipeline parallelism, and invalid options are refused.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

# Create documents of 4 to 20 tokens, several of which are in each sample.
awk 'BEGIN { srand(3); for (d = 0; d < 400; d++) { n = 4 + int(17 * rand()); line = ""
             for (i = 0; i < n; i++) line = line " " int(48 * rand()); print "{\"text\":\"" substr(line, 2) "\"}" } }' |
    meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 49 --append-eod --output-prefix "$T/d"
cat >"$T/conf" <<EOF
num-layers = 4
hidden-size = 32
num-attention-heads = 8
group-query-attention = yes
num-query-groups = 4
seq-length = 32
max-position-embeddings = 32
micro-batch-size = 2
global-batch-size = 8
train-iters = 10
lr = 1e-2
lr-warmup-iters = 2
data-path = $T/d_text_document
split = 8,1,1
tokenizer-type = NullTokenizer
vocab-size = 49
reset-position-ids = yes
reset-attention-mask = yes
eod-mask-loss = yes
eval-interval = 10
eval-iters = 2
log-interval = 1
EOF

# reference OPTION...: train on one rank; cp_ranks uses the same options and compares its losses
reference() {
    meg-train -q --config "$T/conf" --log-json "$T/one.json" "$@" >"$T/out" 2>"$T/err"
    losses "$T/one.json" >"$T/one.loss"
    rm -f "$T/one.json"
    reference_options=$*
}

# cp_ranks N OPTION...: the losses of N ranks equal those of one
cp_ranks() {
    n=$1
    shift
    # shellcheck disable=SC2086
    ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/t.json" $reference_options "$@" >"$T/out" 2>"$T/err"
    losses "$T/t.json" >"$T/t.loss"
    rm -f "$T/t.json"
    ok "$n ranks $* $reference_options: losses equal those of one rank" near "$T/t.loss" "$T/one.loss"
}

reference --position-embedding-type rope
is 'the reference has ten steps and two evaluations' "$(wc -l <"$T/one.loss")" 14
cp_ranks 2 --context-parallel-size 2
cp_ranks 2 --context-parallel-size 2 --cp-comm-type all_gather
cp_ranks 2 --context-parallel-size 2 --cp-comm-type a2a
cp_ranks 4 --context-parallel-size 4
cp_ranks 4 --context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2
cp_ranks 4 --context-parallel-size 4 --cp-comm-type p2p a2a all_gather a2a+p2p --hierarchical-context-parallel-sizes 2 2
reference --calculate-per-token-loss --softmax-scale 1
cp_ranks 4 --context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --cp-comm-type a2a
cp_ranks 4 --context-parallel-size 2 --cp-comm-type p2p all_gather p2p a2a
cp_ranks 4 --context-parallel-size 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
cp_ranks 8 --context-parallel-size 2 --tensor-model-parallel-size 2 --recompute-granularity selective

reference --window-size 5,0 --window-attn-skip-freq 2
cp_ranks 8 --context-parallel-size 8
cp_ranks 4 --context-parallel-size 2 --pipeline-model-parallel-size 2 --cp-comm-type all_gather

# refused REGEX OPTION...: two ranks exit with status 2 and print a message that matches REGEX once
refused() {
    rule=$1
    shift
    ranks 2 meg-train -q --config "$T/conf" --context-parallel-size 2 "$@" >"$T/out" 2>"$T/err"
    is "$* is refused" "$? $(grep -c -- "$rule" "$T/err")" '2 1'
}
refused 'context-parallel-size 2: twice this size, 4, must divide --seq-length 30' --seq-length 30
refused 'cp-comm-type: found 2 values, expected 1 or one per layer (--num-layers 4)' --cp-comm-type p2p a2a
refused 'cp-comm-type a2a: the size of the all-to-all group, 2, must divide the number of query groups .*, 1' \
    --cp-comm-type a2a --num-query-groups 1
refused 'a2a+p2p: requires --hierarchical-context-parallel-sizes' --cp-comm-type a2a+p2p
refused 'sizes 2 2: the product must equal --context-parallel-size 2' --cp-comm-type a2a+p2p \
    --hierarchical-context-parallel-sizes 2 2
refused "sizes: 'two' is not a positive integer" --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes two 1
done_testing
