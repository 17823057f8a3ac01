#!/bin/sh
# needs: ranks/comm
# modules: nn
# Norms of queries and keys (--qk-layernorm): layouts, decoding, and conversion to Megatron.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
tiny_llama >"$T/conf"
cat >>"$T/conf" <<'end'
qk-layernorm = yes
num-attention-heads = 4
hidden-size = 32
lr = 1e-3
train-iters = 50
end
logged='.lm_loss, .grad_norm'

train_ranks one 1 --save "$T/one.d"
is 'one rank trains' $? 0
equals_one_rank 2 --tensor-model-parallel-size 2
equals_one_rank 4 --tensor-model-parallel-size 4 --check-weight-hash-across-dp-replicas-interval 1
equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 2 --context-parallel-size 2
equals_one_rank 2 --context-parallel-size 2 --cp-comm-type a2a
equals_one_rank 2 --pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 1
equals_one_rank 2 --recompute-granularity selective --zero-stage 3

# Tokens that are decoded with a KV cache are those that follow the complete text.
extended() { # TEXT N: print the text with N more tokens
    echo "$1" | meg-generate -q --load "$T/one.d" --format text --greedy --tokens-to-generate "$2"
}
text='1 2 3 4'
for i in 1 2 3 4; do
    text=$(extended "$text" 1)
done
is 'four tokens are decoded as one by one' "$(extended '1 2 3 4' 4)" "$text"
like 'the text has eight tokens' "$text" '^([0-9]+ ){7}[0-9]+$'

same_weights() { # A B: files of weights have equal bytes
    for f in "$1"/model-*.safetensors; do
        cmp "$f" "${2%/}/${f##*/}" || return 1
    done
}
for options in '--saver mcore' '--saver mcore --saver-transformer-impl transformer_engine --target-tensor-parallel-size 2'; do
    rm -rf "$T/megatron" "$T/back"
    # shellcheck disable=SC2086 # words
    meg-convert --load-dir "$T/one.d" --save-dir "$T/megatron" $options >"$T/out" 2>&1
    is "a checkpoint is converted by $options" $? 0
    meg-convert --load-dir "$T/megatron" --save-dir "$T/back" --saver native >"$T/out" 2>&1
    is 'and back' $? 0
    ok 'with equal weights' same_weights "$T/one.d/iter_0000050" "$T"/back/*/
done
status 'Megatron before core has no such norms' 2 \
    meg-convert --load-dir "$T/one.d" --save-dir "$T/legacy" --saver megatron
like 'the message names the option' "$(cat "$T/err")" '--qk-layernorm yes would be read as no'

# other norms
variant() { # OPTIONS: lines of the configuration; then compare layouts and decode
    rm -rf "$T/one.d"
    sed '/train-iters/d' "$T/conf" >"$T/variant"
    printf '%s\n' 'train-iters = 20' "$@" >>"$T/variant"
    mv "$T/variant" "$T/conf"
    train_ranks one 1 --save "$T/one.d"
    is "one rank trains with $*" $? 0
    equals_one_rank 2 --context-parallel-size 2 --cp-comm-type a2a
    equals_one_rank 2 --pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method uniform \
        --recompute-num-layers 1 --micro-batch-size 1
    is 'tokens are decoded as one by one' "$(extended '1 2 3 4' 2)" "$(extended "$(extended '1 2 3 4' 1)" 1)"
}
tensor_parallel() {
    equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel
    equals_one_rank 4 --tensor-model-parallel-size 2 --context-parallel-size 2
}
variant 'qk-norm-after-rope = yes'
tensor_parallel
variant 'qk-norm-scope = per-head-weight'
tensor_parallel
variant 'normalization = LayerNorm' 'qk-norm-scope = head'
tensor_parallel
variant 'qk-norm-scope = width'
status 'width requires all heads on a rank' 2 meg-train --config "$T/conf" --dry-run --world-size 2 \
    --tensor-model-parallel-size 2
like 'the message names the option' "$(cat "$T/err")" 'must be 1 with --qk-norm-scope width'
done_testing
