#!/bin/sh
# modules: model
# The effect of each option of meg-train on the network, the optimizer and the precision, in a plan or a log.
# shellcheck disable=SC2317  # functions are called by effect
. "${0%/*}/lib.sh"
. "${0%/*}/train.sh"
. "${0%/*}/bert.sh"
cp "$T/conf" "$T/bert.conf"
. "${0%/*}/t5.sh"
cp "$T/conf" "$T/t5.conf"
. "${0%/*}/effects.sh"
cd "$T" || exit 1
cat >gpt.conf <<'end'
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 2
global-batch-size = 4
lr = 1e-2
data-path = ids_text_document
split = 100,0,0
tokenizer-type = NullTokenizer
vocab-size = 100
eval-iters = 0
log-interval = 1
log-params-norm = yes
init-method-std = 0.5
end
dry() { run meg-train -q --config gpt.conf --train-iters 1 --dry-run "$@"; }
log() { run meg-train -q --config gpt.conf --train-iters 1 "$@"; }
dry_bert() { run meg-train -q --config bert.conf --dry-run "$@"; }
log_bert() { run meg-train -q --config bert.conf --train-iters 1 --eval-iters 0 --lr-warmup-iters 0 "$@"; }
dry_t5() { run meg-train -q --config t5.conf --dry-run "$@"; }
log_t5() { run meg-train -q --config t5.conf --train-iters 1 --eval-iters 0 --lr-warmup-iters 0 "$@"; }

# ---- network ----
dry_two_groups() { dry --group-query-attention --num-query-groups 2 "$@"; }
log_rope() { log --position-embedding-type rope "$@"; }
log_long_rope() { log_rope --rotary-base 50000 "$@"; }
log_rope_window() { log_rope --window-size 3,0 "$@"; }
log_yarn() {
    log --position-embedding-type yarn --yarn-original-max-position-embeddings 512 --rotary-scaling-factor 4 "$@"
}
log_unrounded() { log_yarn --no-yarn-correction-range-round-to-int "$@"; }
log_longrope() {
    log_rope --rope-long-factors 1,1,1,1 --rope-short-factors 1,1,1,1 --rope-original-max-position-embeddings 8 "$@"
}
log_longrope_short() { log_longrope --rope-original-max-position-embeddings 16 "$@"; }
log_temperature() { log_rope --attn-temperature-beta 0.5 --attn-temperature-floor 4 "$@"; }
log_llama3() { log_long_rope --use-rope-scaling "$@"; }
log_window() { log --window-size 3,0 "$@"; }
log_relative() { log_t5 --position-embedding-type relative --init-method-std 0.5 "$@"; }
dry_unbiased() { dry --disable-bias-linear "$@"; }
log_swiglu() { log --swiglu "$@"; }
log_unbiased() { log --disable-bias-linear "$@"; }
dry_norm_unbiased() { dry --norm-no-bias "$@"; }
dry_qk_norm() { dry --qk-layernorm "$@"; }
log_rope_qk_norm() { log_rope --qk-layernorm --init-method-std 1 "$@"; }
log_exact() { log --no-bias-gelu-fusion "$@"; }
effect dry_bert '^> model  *GPT: ' --model gpt
effect dry '^> model .*: 3 layers' --num-layers 3
effect dry_t5 '^> model .* 2 encoder and 3 decoder layers' --decoder-num-layers 3
effect dry '^> model .* hidden 64, feed-forward 256' --hidden-size 64
effect dry '^> model .* feed-forward 100,' --ffn-hidden-size 100
effect dry '^> model .* 2 heads of 16,' --num-attention-heads 2
effect dry '^> model .* 4 heads of 24,' --kv-channels 24
# 10 more positions of 32 elements
effect dry '^>   all  *28  *29536' --max-position-embeddings 26
effect dry '^>   all  *28  *29536' --position-embedding-offset 10
effect dry '^>   all  *28  *26048' --group-query-attention --num-query-groups 1
effect dry_two_groups '^>   all  *28  *26048' --num-query-groups 1
effect log '^> .* lm loss' --position-embedding-type rope
effect log_relative '^> .* lm loss' --relative-attention-num-buckets 8
effect log_relative '^> .* lm loss' --relative-attention-max-distance 20
effect log '^> .* lm loss' --use-rotary-position-embeddings
effect log_rope '^> .* lm loss' --rotary-base 100
effect log_rope '^> .* lm loss' --rotary-percent 0.5
effect log_rope '^> .* lm loss' --rotary-interleaved
effect log_rope '^> .* lm loss' --rotary-seq-len-interpolation-factor 4
effect log_rope '^> .* lm loss' --no-rope-freq 2
effect log_rope_window '^> .* lm loss' --rotary-base-window 100
effect log_long_rope '^> .* lm loss' --use-rope-scaling
effect log_llama3 '^> .* lm loss' --rope-scaling-factor 2
effect log_llama3 '^> .* lm loss' --rope-scaling-original-max-position-embeddings 1024
effect log_llama3 '^> .* lm loss' --rope-scaling-low-freq-factor 0.01
effect log_llama3 '^> .* lm loss' --rope-scaling-high-freq-factor 1024
effect log_yarn '^> .* lm loss' --yarn-original-max-position-embeddings 16
effect log_yarn '^> .* lm loss' --rotary-scaling-factor 2
effect log_yarn '^> .* lm loss' --yarn-beta-fast 3
effect log_yarn '^> .* lm loss' --yarn-beta-slow 0.01
effect log_unrounded '^> .* lm loss' --yarn-correction-range-round-to-int
effect log_yarn '^> .* lm loss' --mscale 3
effect log_yarn '^> .* lm loss' --mscale-all-dim 2
effect log_yarn '^> .* lm loss' --yarn-attention-factor 2
effect log_longrope '^> .* lm loss' --rope-long-factors 1,2,3,4
# sequences have 16 tokens
effect log_longrope_short '^> .* lm loss' --rope-short-factors 1,2,3,4
effect log_longrope '^> .* lm loss' --rope-original-max-position-embeddings 4
effect log_temperature '^> .* lm loss' --attn-temperature-beta 2
effect log_temperature '^> .* lm loss' --attn-temperature-floor 2
effect log '^> .* lm loss' --window-size 3,0
effect log_window '^> .* lm loss' --window-attn-skip-freq 2
effect log '^> .* lm loss' --normalization RMSNorm
effect log '^> .* params norm: ' --apply-layernorm-1p
effect dry '^>   all  *23 ' --norm-no-bias
effect dry_norm_unbiased '^>   all  *18 ' --norm-no-weight
effect log '^> .* lm loss' --norm-placement post
effect log '^> .* lm loss' --parallel-residual two-norms
effect dry '^>   all  *30 ' --embed-layernorm
effect log '^> .* lm loss' --embedding-multiplier sqrt
effect log_unbiased '^> .* lm loss' --residual-multiplier 0.5
effect log '^> .* lm loss' --norm-epsilon 0.1
effect log '^> .* lm loss' --qk-layernorm
effect dry_qk_norm '^>   all  *36  *29472' --qk-norm-scope width
effect log_rope_qk_norm '^> .* lm loss' --qk-norm-after-rope
effect log '^> .* params norm: ' --init-method-std 0.1
effect log '^> .* params norm: ' --init-method-xavier-uniform
effect dry '^>   all  *29 ' --untie-embeddings-and-output-weights
effect log '^> .* lm loss' --swiglu
effect log '^> .* lm loss' --glu-activation geglu
effect log '^> .* lm loss' --quick-geglu
effect log '^> .* lm loss' --squared-relu
effect log '^> .* lm loss' --activation-func relu
effect log '^> .* lm loss' --gated-linear-unit
effect log_swiglu '^> .* lm loss' --glu-linear-offset 1
effect log_swiglu '^> .* lm loss' --activation-func-clamp-value 0.1
effect log_t5 '^> .* lm loss' --softmax-scale 2
effect log '^> .* lm loss' --logit-multiplier 2
effect log '^> .* lm loss' --clip-qkv 0.5
effect dry '^>   all  *30 ' --softmax-type learnable
effect log '^> .* lm loss' --attn-logit-softcapping 0.5
effect log '^> .* lm loss' --final-logit-softcapping 0.5
effect dry '^>   all  *20 ' --disable-bias-linear
effect dry_unbiased '^>   all  *22 ' --add-qkv-bias
effect dry_unbiased '^>   all  *22 ' --add-proj-bias
effect dry_unbiased '^>   all  *24 ' --add-mlp-bias
effect dry '^>   all  *29 ' --add-output-bias
effect log '^> .* lm loss' --no-bias-gelu-fusion
effect log_exact '^> .* lm loss' --openai-gelu
effect log '^> .* lm loss' --attention-dropout 0.5
effect log '^> .* lm loss' --hidden-dropout 0.5
effect log_bert '^> .* lm loss' --apply-residual-connection-post-layernorm
effect log_bert '^< .* sop loss' --bert-no-binary-head
effect dry_bert '^>   all  ' --num-tokentypes 3
covers meg-train network

# ---- optimizer ----
log4() { run meg-train -q --config gpt.conf --train-iters 4 "$@"; }
log_samples() { run meg-train -q --config gpt.conf --train-samples 16 "$@"; }
log_constant() { log4 --lr-decay-style constant "$@"; }
log_warm() { log4 --lr-warmup-iters 2 "$@"; }
log_wsd() { log4 --lr-decay-style WSD --lr-wsd-decay-iters 3 "$@"; }
log_wsd_samples() { log_samples --lr-decay-style WSD --lr-wsd-decay-samples 12 "$@"; }
log_decoupled() { log4 --decoupled-lr 0.1 "$@"; }
log_decay() { log4 --weight-decay-incr-style linear --start-weight-decay 0.1 --end-weight-decay 1 "$@"; }
log_sgd() { log4 --optimizer sgd "$@"; }
dry_bf16() { dry --bf16 --hidden-size 512 "$@"; }
effect log '^> .* params norm: ' --optimizer sgd
effect log4 '^> .* iteration  *2/.* learning rate: 1.000000E-02 ' --lr 2e-2
effect log4 '^> .* iteration  *4/.* learning rate: 5.000000E-03 ' --min-lr 5e-3
effect log4 '^> .* iteration  *4/.* learning rate: 1.000000E-02 ' --lr-decay-style constant
effect log4 '^> .* iteration  *1/.* learning rate: 5.000000E-03 ' --lr-decay-iters 2
effect log_samples '^> .* iteration  *1/.* learning rate: 5.000000E-03 ' --lr-decay-samples 8
effect log4 '^> .* iteration  *1/.* learning rate: 5.000000E-03 ' --lr-warmup-iters 2
effect log_samples '^> .* iteration  *1/.* learning rate: 5.000000E-03 ' --lr-warmup-samples 8
effect log4 '^> .* iteration  *1/.* learning rate: 5.000000E-03 ' --lr-warmup-fraction 0.5
effect log_warm '^> .* iteration  *1/.* learning rate: 7.500000E-03 ' --lr-warmup-init 5e-3
effect log_wsd '^> .* iteration  *2/.* learning rate: ' --lr-wsd-decay-style linear
effect log_wsd '^> .* iteration  *2/.* learning rate: 1.000000E-02 ' --lr-wsd-decay-iters 2
effect log_wsd_samples '^> .* iteration  *2/.* learning rate: 1.000000E-02 ' --lr-wsd-decay-samples 8
effect log4 '^> .* iteration  *1/.* decoupled learning rate: 7.500000E-02 ' --decoupled-lr 0.1
effect log_decoupled '^> .* iteration  *4/.* decoupled learning rate: 5.000000E-02 ' --decoupled-min-lr 5e-2
effect log '^> .* params norm: ' --weight-decay 1
effect log_decay '^> .* iteration  *4/.* params norm: ' --weight-decay-incr-style cosine
effect log_decay '^> .* iteration  *1/.* params norm: ' --start-weight-decay 0.5
effect log_decay '^> .* iteration  *4/.* params norm: ' --end-weight-decay 0.5
effect log_sgd '^> .* params norm: ' --clip-grad 0.1
effect log4 '^> .* params norm: ' --adam-beta1 0.1
effect log4 '^> .* params norm: ' --adam-beta2 0.1
effect log4 '^> .* params norm: ' --adam-eps 0.1
effect dry_bf16 '^<   main parameters' --main-params-dtype bf16
effect dry_bf16 '^>   optimizer state' --exp-avg-dtype bf16
effect dry_bf16 '^>   optimizer state' --exp-avg-sq-dtype bf16
effect log_sgd '^> .* params norm: ' --sgd-momentum 0.1
covers meg-train optimizer

# ---- precision ----
dry_fp16() { dry --fp16 --hidden-size 512 "$@"; }
log_fp16() { log4 --fp16 --initial-loss-scale 65536 "$@"; }
log_overflow() { log4 --fp16 --hysteresis 1 "$@"; }
effect dry '^>   main parameters' --fp16
effect dry '^>   main parameters' --bf16
effect dry_fp16 '^>   gradients' --accumulate-allreduce-grads-in-fp32
effect dry_bf16 '^>   gradients' --main-grads-dtype bf16
effect dry_bf16 '^>   activations' --fp32-residual-connection
effect log_fp16 '^> .* loss scale: 128.0 ' --loss-scale 128
effect log_fp16 '^> .* loss scale: 16.0 ' --initial-loss-scale 16
# all iterations at the minimum overflow, so the run fails
effect log_overflow '^> status 1$' --min-loss-scale 2147483648
effect log_fp16 '^> .* loss scale: 131072.0 ' --loss-scale-window 1
effect log_overflow '^> .* loss scale: 4294967296.0 ' --hysteresis 3
covers meg-train precision
done_testing
