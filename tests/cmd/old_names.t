#!/bin/sh
# modules: option
# Options of earlier releases and of Megatron-DeepSpeed configure the same run as the options that replace them.
. "${0%/*}/../lib.sh"

# same OLD... = NEW...: check that both lists of options set the same values, and that one warning names the old ones
same() {
    both=$*
    old=${both%% = *} new=${both#* = }
    # shellcheck disable=SC2086 # lists of options
    meg-train $new --dump-config >"$T/want" && meg-train $old --dump-config >"$T/got"
    is "$old: sets $new" "$(diff "$T/want" "$T/got")" ''
    # shellcheck disable=SC2086
    like "$old: a warning names it" "$(meg-train $old 2>&1)" "^meg-train: these options have new names: ${old%% *} \(now --"
}
same --checkpoint-activations = --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
same --checkpoint-num-layers 2 --checkpoint-activations = --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 2
same --distribute-checkpointed-activations = --distribute-saved-activations
same --activations-checkpoint-method block --activations-checkpoint-num-layers 3 = --recompute-granularity full \
    --recompute-method block --recompute-num-layers 3
same --activations-checkpoint-method uniform = --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 1
same --override-lr-scheduler = --override-opt_param-scheduler
same --use-checkpoint-lr-scheduler = --use-checkpoint-opt_param-scheduler
same --multi-query-attention = --group-query-attention --num-query-groups 1
same --num-key-value-heads 4 = --group-query-attention --num-query-groups 4
same --rotary-position-embeddings-theta 500000 = --rotary-base 500000
same --no-position-embedding = --position-embedding-type rope
same --enable-zbh1-pipeline = --pipeline-schedule zb-h1
same --ds-sequence-parallel-size 4 = --context-parallel-size 4 --cp-comm-type a2a
same --tokenizer-special-tokens '<s>' '</s>' = --tiktoken-special-tokens '<s>' '</s>'
same --eval-only true = --skip-train

# Values of Megatron-DeepSpeed have other names, too, and values that are not supported name their feature.
while read -r option value regex; do
    status "$option $value ends with 2" 2 meg-train "$option" "$value"
    like "$option $value: the message says why" "$(cat "$T/err")" "^meg-train: $option $value: $regex"
done <<end
--position-embedding-type rotary this value is now called rope
--position-embedding-type absolute this value is now called learned_absolute
--normalization rmsnorm this value is now called RMSNorm
--normalization layernorm this value is now called LayerNorm
--glu-activation swiglu use --swiglu
--optimizer lion not supported yet: optimizers other than Adam and SGD
--tokenizer-type MultimodalTokenizer not supported yet: multimodal tokenizers
end

# A run with old names, those without effect and a feature that is off equals the run with the new names.
train() {
    meg-train -q --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 \
        --micro-batch-size 2 --train-iters 2 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 99 \
        --eval-iters 0 --log-interval 1 --split 1,0,0 "$@" >"$T/log" 2>"$T/err" || cat "$T/err"
    sed 's/.*lm loss: \([^|]*\).*grad norm: \([^|]*\).*/\1 \2/' "$T/log"
}
train --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --layernorm-epsilon 1e-3 >"$T/want"
train --checkpoint-activations --DDP-impl torch --layernorm-epsilon 1e-3 --adlr-autoresume --cpu-optimizer --deepspeed \
    --deepspeed-activation-checkpointing --rerun-mode disabled --error-injection-rate 0 --partition-activations \
    --no-pipeline-parallel >"$T/got"
ok 'the losses of old and new names are equal' cmp "$T/want" "$T/got"
ok 'there are losses' grep -q '[0-9]E' "$T/got"
is 'one message names all of them' "$(grep -c 'no effect' "$T/err")" 1
like 'a feature that is off has no effect' "$(cat "$T/err")" 'no effect.*: --DDP-impl, .* --rerun-mode, --error-injection-rate, '
status 'a feature that is on is refused' 2 meg-train --rerun-mode validate_results

# ---- --deepspeed_config ----
cat >"$T/ds.json" <<'end'
{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 4, "gradient_clipping": 0.5, "zero_optimization": {"stage": 0},
 "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
          "initial_scale_power": 12}, "steps_per_print": 2000, "wall_clock_breakdown": false}
end
train --global-batch-size 4 --clip-grad 0.5 --fp16 --loss-scale-window 500 --initial-loss-scale 4096 >"$T/want"
train --deepspeed --deepspeed_config "$T/ds.json" >"$T/got"
ok 'the settings of DeepSpeed are those of the options' cmp "$T/want" "$T/got"
ok 'there are losses, and loss scales of 4096' grep -q 'loss scale: 4096' "$T/log"
train --deepspeed_config "$T/ds.json" --clip-grad 0.5 --fp16 >"$T/got"
ok 'equal options may be given, too' cmp "$T/want" "$T/got"
status 'a contradiction ends with 2' 2 meg-train --deepspeed_config "$T/ds.json" --clip-grad 1
like 'the message has both values' "$(cat "$T/err")" \
    '^meg-train: --clip-grad is 0.5 in --deepspeed_config .*/ds.json \(gradient_clipping\), but 1.0 on the command line'
status 'a contradiction in a section ends with 2' 2 meg-train --deepspeed_config "$T/ds.json" --hysteresis 3
like 'the message names the section' "$(cat "$T/err")" '\(fp16.hysteresis\), but 3.0 on'
echo '{"train_batch_size": "auto", "bf16": {"enabled": "auto"}}' >"$T/auto.json"
train >"$T/want"
train --deepspeed_config "$T/auto.json" >"$T/got"
ok '"auto" leaves an option unset' cmp "$T/want" "$T/got"
echo '{"train_batch_size": 2.5}' >"$T/bad.json"
status 'a wrong type ends with 65' 65 meg-train --deepspeed_config "$T/bad.json"
status 'a missing file ends with 66' 66 meg-train --deepspeed_config "$T/none.json"

# ---- --pretrained-checkpoint ----
train --save "$T/base" >"$T/want"
train --load "$T/base" --finetune >"$T/want"
train --pretrained-checkpoint "$T/base" --load "$T/tuned" --save "$T/tuned" >"$T/got"
ok '--pretrained-checkpoint starts from weights as --load --finetune does' cmp "$T/want" "$T/got"
is 'there are two iterations' "$(grep -c '[0-9]E' "$T/got")" 2
train --pretrained-checkpoint "$T/base" --load "$T/tuned" --save "$T/tuned" --train-iters 3 --override-lr-scheduler >"$T/got"
is 'the same command resumes from its own checkpoint' "$(grep -c '^ .* iteration *3/ *3 ' "$T/log") $(grep -c . "$T/log")" '1 1'
status 'a missing directory ends with 66' 66 meg-train --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 \
    --max-position-embeddings 16 --micro-batch-size 2 --train-iters 2 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer \
    --vocab-size 99 --pretrained-checkpoint "$T/none"
like 'the message names the option' "$(cat "$T/err")" '^meg-train: --pretrained-checkpoint .*/none: the directory contains no checkpoint'
done_testing
