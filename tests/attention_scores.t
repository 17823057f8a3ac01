#!/bin/sh
# needs: ranks/comm
# modules: nn
# Clipped queries, keys and values, soft caps, attention sinks and ALiBi: layouts, decoding, and conversion to Megatron.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
logged='.lm_loss, .grad_norm'

layouts() {
    train_ranks one 1 --save "$T/one.d"
    is 'one rank trains' $? 0
    equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel
    equals_one_rank 2 --context-parallel-size 2
    equals_one_rank 4 --context-parallel-size 4 --cp-comm-type all_gather
    equals_one_rank 2 --context-parallel-size 2 --cp-comm-type a2a
    equals_one_rank 4 --tensor-model-parallel-size 2 --context-parallel-size 2 --cp-comm-type a2a \
        --recompute-granularity selective
    equals_one_rank 2 --pipeline-model-parallel-size 2 --micro-batch-size 1
    equals_one_rank 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --zero-stage 3
}

# Tokens that are decoded with a KV cache are those that follow the complete text.
extended() { # TEXT N: print the text with N more tokens
    echo "$1" | meg-generate -q --load "$T/one.d" --format text --greedy --tokens-to-generate "$2"
}
decodes() { # TEXT: four tokens
    text=$1
    for i in 1 2 3 4; do
        text=$(extended "$text" 1)
    done
    is 'four tokens are decoded as one by one' "$(extended "$1" 4)" "$text"
    like 'the text has eight tokens' "$text" '^([0-9]+ ){7}[0-9]+$'
}

same_weights() { # A B: files of weights have equal bytes
    for f in "$1"/model-*.safetensors; do
        cmp "$f" "${2%/}/${f##*/}" || return 1
    done
}

tiny_llama >"$T/conf"
cat >>"$T/conf" <<'end'
num-attention-heads = 4
hidden-size = 32
lr = 1e-3
train-iters = 20
softmax-type = learnable
clip-qkv = 0.3
attn-logit-softcapping = 1
final-logit-softcapping = 3
end
layouts
decodes '1 2 3 4'
meg-convert --load-dir "$T/one.d" --save-dir "$T/megatron" --saver mcore >"$T/out" 2>&1
is 'a checkpoint with sinks is converted to Megatron' $? 0
meg-convert --load-dir "$T/megatron" --save-dir "$T/back" --saver native >"$T/out" 2>&1
is 'and back' $? 0
ok 'with equal weights' same_weights "$T/one.d/iter_0000020" "$T"/back/*/
status 'Megatron before core has no sinks' 2 \
    meg-convert --load-dir "$T/one.d" --save-dir "$T/legacy" --saver megatron
like 'the message names the option' "$(cat "$T/err")" '--softmax-type learnable would be read as vanilla'

# six heads of four channels: some slopes are not those of a power of two
sed -i '/soft\|clip/d' "$T/conf"
cat >>"$T/conf" <<'end'
num-attention-heads = 12
num-query-groups = 12
kv-channels = 4
position-embedding-type = alibi
softmax-type = off-by-one
end
rm -rf "$T/one.d"
layouts
decodes '5 6 7 8'
done_testing
