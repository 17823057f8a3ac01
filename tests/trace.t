#!/bin/sh
# modules: tensor
# MEG_TRACE=ops prints one JSON line for each operation of one training step, with the shapes of the model, and has no
# other effect.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all 'jq is not installed'
. "${0%/*}/train.sh"

one_step() { train --train-iters 1 --eval-iters 0 --lr-warmup-iters 0 "$@"; }
one_step >"$T/plain" 2>"$T/err"
is 'without MEG_TRACE nothing is traced' "$(cat "$T/err")" ''
MEG_TRACE=ops one_step >"$T/log" 2>"$T/trace"
is 'tracing does not change the log' "$(steps <"$T/log")" "$(steps <"$T/plain")"
ok 'each line is a JSON object' jq -e 'type == "object"' "$T/trace"
is 'each object has op, rank and time_us' "$(jq -c 'keys_unsorted[:3]' "$T/trace" | sort -u)" '["op","rank","time_us"]'
is 'times are not negative' "$(jq 'select(.time_us < 0)' "$T/trace")" ''

# The step has 2 micro-batches of 2 x 16 tokens; the model has 2 layers of hidden size 32 with 2 heads, and 101 ids.
count() { jq -r "select(.op == \"$1\") | 1" "$T/trace" | wc -l | tr -d ' '; }
is 'two layers of two micro-batches run attn_fwd' "$(count attn_fwd)" 4
is 'two layers of two micro-batches run attn_bwd' "$(count attn_bwd)" 4
is 'four linears per layer and the head run linear_fwd' "$(count linear_fwd)" 18
is 'the same linears run backward' "$(count linear_bwd_data) $(count linear_bwd_weight)" '18 18'
is 'the loss and the gradient of the logits are one operation' "$(count xent_fwd_bwd) $(count xent_bwd)" '2 0'
is 'the optimizer steps once' "$(count adamw)" 1
is 'dropout changes the gradients of both residual additions' "$(count add_bwd)" 8
# w is the weight of qkv, output, fc1 and fc2 of both layers, and of the head.
is 'the linears have the shapes of the model' "$(jq -c 'select(.op == "linear_fwd") | [.x.shape, .w.shape, .y.shape]' "$T/trace" |
    sort | uniq -c | tr -s ' ')" ' 4 [[32,128],[32,128],[32,32]]
 2 [[32,32],[101,32],[32,101]]
 4 [[32,32],[128,32],[32,128]]
 4 [[32,32],[32,32],[32,32]]
 4 [[32,32],[96,32],[32,96]]'
is 'the activation is that of fc1' "$(jq -c 'select(.op == "linear_fwd" and .act != "none") | [.w.shape, .act]' "$T/trace" | sort | uniq -c | tr -s ' ')" \
    ' 4 [[128,32],"gelu_tanh"]'
is 'attention has the sizes of the model' "$(jq -c 'select(.op == "attn_fwd") | .desc' "$T/trace" | sort -u)" \
    '{"s_q":16,"s_k":16,"b":2,"a":2,"g":2,"d":16,"q0":0,"k0":0,"window":[-1,0]}'
is 'every tensor is f32' "$(jq -r '.. | .dtype? // empty' "$T/trace" | sort -u)" F32
cat >"$T/want" <<'end'
adamw nranges numel
add_bwd dy dbias dz drop accumulate
add_fwd z x y bias drop
add_norm_fwd type z y x sublayer_out bias drop w b
attn_bwd desc dq dk dv d_rel_bias d_sink d_o o q k v drop accumulate
attn_fwd desc o q k v drop
embed_bwd dword v0 dx accumulate
embed_fwd x word v0
linear_bwd_data dx dy w pre act accumulate
linear_bwd_weight dw dbias dy x accumulate
linear_fwd y pre x w bias act accumulate
norm_bwd type dx dw db skip dy x w accumulate
norm_fwd type y x w b
position_bwd dpos dx drop accumulate
position_fwd x pos drop
sumsq_ranges dtype nranges
xent_fwd_bwd logits
end
jq -r '[.op] + keys_unsorted[3:] | join(" ")' "$T/trace" | sort -u |
    grep -v -e load -e '^sumsq x' -e '^step_finish' -e '^weighted_sum' -e '^zero' >"$T/keys"
ok 'each operation of the model and the optimizer has its arguments' cmp "$T/keys" "$T/want"

MEG_TRACE=ops one_step --bf16 >"$T/log" 2>"$T/trace"
is 'with --bf16, weights are bf16' "$(jq -r 'select(.op == "linear_fwd") | .w.dtype' "$T/trace" | sort -u)" BF16
MEG_TRACE=ops one_step --hidden-dropout 0 --disable-bias-linear >"$T/log" 2>"$T/trace"
is 'without dropout and bias, gradients of residual additions are not copied' "$(count attn_bwd) $(count add_bwd)" '4 0'
MEG_TRACE=other one_step >"$T/log" 2>"$T/err"
is 'other words trace nothing' "$(cat "$T/err")" ''
done_testing
