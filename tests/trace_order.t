#!/bin/sh
# needs: ranks/comm
# modules: tensor
# Properties that a trace of operations and collectives shows: each dropout mask is drawn once, --glu-activation selects
# the activation by name, overlapped communication starts between computations, and buckets have the size of
# --ddp-bucket-size.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all 'jq is not installed'
. "${0%/*}/bert.sh"
. "${0%/*}/t5.sh"
. "${0%/*}/ranks.sh"
cp "$T/conf" "$T/t5.conf"

# ---- dropout ----
# masks FILE: print layer, site, first unit and number of uses of each mask of the forward pass of rank 0, or RANK
masks() {
    jq -r --argjson rank "${2:-0}" 'select(.rank == $rank and .drop and (.op | test("_fwd$"))) | .drop |
        "\(.layer) \(.site) \(.unit0)"' "$1" | sort | uniq -c | sed 's/^ *//'
}
MEG_TRACE=ops meg-train -q --config "$T/t5.conf" --train-iters 1 --eval-iters 0 --lr-warmup-iters 0 --micro-batch-size 8 \
    >"$T/log" 2>"$T/trace"
is 'encoder and decoder, each layer, and self- and cross-attention of a T5 draw masks of their own' "$(masks "$T/trace")" \
    '1 0 attention 0
1 0 attention output 0
1 0 embedding 0
1 0 mlp output 0
1 1 attention 0
1 1 attention output 0
1 1 mlp output 0
1 2 attention 0
1 2 attention output 0
1 2 cross-attention 0
1 2 cross-attention output 0
1 2 embedding 0
1 2 mlp output 0
1 3 attention 0
1 3 attention output 0
1 3 cross-attention 0
1 3 cross-attention output 0
1 3 mlp output 0'
is 'the backward pass draws the same masks' "$(jq -r 'select(.drop and (.op | test("_bwd$"))) | .drop | "\(.layer) \(.site) \(.unit0)"' \
    "$T/trace" | sort -u)" "$(masks "$T/trace" | cut -d ' ' -f 2-)"
is 'all masks have the probability of the options' "$(jq -r 'select(.drop) | .drop.p' "$T/trace" | sort -u)" 0.1

# ---- activations ----
tiny_gpt >"$T/gpt.conf"
# activation_of OPTION...: print the activations of a step
activation_of() {
    MEG_TRACE=ops meg-train -q --config "$T/gpt.conf" --global-batch-size 2 --train-iters 1 "$@" 2>&1 >"$T/log" |
        jq -r 'select(.op == "glu_fwd" or (.op == "linear_fwd" and .act and .act != "none")) | "\(.op) \(.act // .type)"' | sort -u
}
is 'GELU is approximated by tanh by default' "$(activation_of)" 'linear_fwd gelu_tanh'
is '--no-bias-gelu-fusion computes exact GELU' "$(activation_of --no-bias-gelu-fusion)" 'linear_fwd gelu_erf'
is '--openai-gelu approximates GELU' "$(activation_of --no-bias-gelu-fusion --openai-gelu)" 'linear_fwd gelu_tanh'
is '--activation-func relu computes ReLU' "$(activation_of --activation-func relu)" 'linear_fwd relu'
is '--activation-func gelu-tanh computes the tanh form of GELU' \
    "$(activation_of --activation-func gelu-tanh --no-bias-gelu-fusion)" 'linear_fwd gelu_tanh'
for act in quick-gelu silu squared-relu; do
    is "--activation-func $act computes it" "$(activation_of --activation-func $act)" "linear_fwd $(echo $act | tr - _)"
done
is '--squared-relu computes squared ReLU' "$(activation_of --squared-relu)" 'linear_fwd squared_relu'
for act in quick-gelu relu silu squared-relu; do
    is "--gated-linear-unit with $act computes it" "$(activation_of --gated-linear-unit --activation-func $act)" "glu_fwd $(echo $act | tr - _)"
done
is '--gated-linear-unit computes GEGLU' "$(activation_of --gated-linear-unit)" 'glu_fwd gelu_erf'
is '--gated-linear-unit with gelu-tanh approximates GEGLU' "$(activation_of --gated-linear-unit --activation-func gelu-tanh)" 'glu_fwd gelu_tanh'
is '--quick-geglu computes a gated quick GELU' "$(activation_of --quick-geglu)" 'glu_fwd quick_gelu'
is '--swiglu computes SwiGLU' "$(activation_of --swiglu)" 'glu_fwd silu'
is '--glu-activation geglu computes GEGLU' "$(activation_of --glu-activation geglu)" 'glu_fwd gelu_erf'
is '--openai-gelu approximates GEGLU' "$(activation_of --glu-activation geglu --openai-gelu)" 'glu_fwd gelu_tanh'
is '--glu-activation reglu computes ReGLU' "$(activation_of --glu-activation reglu)" 'glu_fwd relu'

# ---- overlap: the order in which rank 0 of 2 starts operations ----
if [ ! -x "$B/tests/ranks/comm" ]; then
    skip 'communication of two ranks' 'no MPI'
    done_testing
fi
# order OPTION...: print the first and last computations of passes, and the collectives of gradients and parameters with their
# elements per part, from the end of the first backward pass to the second forward pass
order() {
    MEG_TRACE=ops,comm ranks_but 2 0 "exec 2>'$T/trace'" meg-train -q --config "$T/gpt.conf" --global-batch-size 4 \
        --train-iters 2 --use-distributed-optimizer "$@" >"$T/log" 2>"$T/err"
    jq -r 'if .group then select(.group == "optimizer-shard" and .n > 1) | "\(.op)=\(.n)"
        else .op | select(test("^(xent_fwd_bwd|embed_fwd|embed_bwd|adamw|attn_fwd|attn_bwd)$")) end' "$T/trace" |
        sed -n '/xent/,$p' | sed '/attn_fwd/q' | tr '\n' ' '
}
# A layer has 12704 elements and the embeddings 2144, which are 12928 and 2304 with their padding.  The last layer and the
# final norm are one bucket of at least 10000 elements, the first layer is another one, and the embeddings are the rest.
backward='xent_fwd_bwd attn_bwd attn_bwd embed_bwd' forward='embed_fwd attn_fwd '
is 'without overlap, one bucket is reduced and gathered between the passes' "$(order)" \
    "$backward reduce-scatter=14080 adamw all-gather=14080 $forward"
is '--ddp-bucket-size splits the bucket' "$(order --ddp-bucket-size 10000)" "$backward reduce-scatter=6464 reduce-scatter=6464 \
reduce-scatter=1152 adamw adamw adamw all-gather=1152 all-gather=6464 all-gather=6464 $forward"
is '--overlap-grad-reduce reduces the buckets of layers in the backward pass' \
    "$(order --ddp-bucket-size 10000 --overlap-grad-reduce)" "xent_fwd_bwd attn_bwd reduce-scatter=6464 attn_bwd \
reduce-scatter=6464 embed_bwd reduce-scatter=1152 adamw adamw adamw all-gather=1152 all-gather=6464 all-gather=6464 $forward"
is '--overlap-param-gather gathers layers in the next forward pass' \
    "$(order --ddp-bucket-size 10000 --overlap-grad-reduce --overlap-param-gather)" "xent_fwd_bwd attn_bwd reduce-scatter=6464 \
attn_bwd reduce-scatter=6464 embed_bwd reduce-scatter=1152 adamw adamw adamw all-gather=1152 all-gather=6464 embed_fwd \
all-gather=6464 attn_fwd "
done_testing
