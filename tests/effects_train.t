#!/bin/sh
# The effect of each option of meg-train on steps, checkpoints and logs, in a plan, a log or files.
# shellcheck disable=SC2317  # functions are called by effect
. "${0%/*}/lib.sh"
. "${0%/*}/train.sh"
. "${0%/*}/bert.sh"
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
lr = 1e-2
data-path = ids_text_document
split = 60,20,20
tokenizer-type = NullTokenizer
vocab-size = 100
eval-iters = 0
log-interval = 1
end
gpt() { run meg-train -q --config gpt.conf "$@"; }
dry() { gpt --global-batch-size 4 --train-iters 4 --dry-run "$@"; }
log() { gpt --global-batch-size 4 --train-iters 2 "$@"; }
dry_t5() { run meg-train -q --config t5.conf --dry-run "$@"; }

# ---- training ----
# 4 iterations of 4 samples, unless the option sets their number or size
dry_iterations() {
    [ $# -gt 0 ] || set -- --train-iters 2
    gpt --global-batch-size 4 --dry-run "$@"
}
dry_batch() { gpt --train-iters 4 --dry-run --world-size 2 --global-batch-size $((4 + ($# > 0))) "$@"; }
dry_deepspeed() { gpt --train-iters 4 --dry-run "$@"; }
dry_samples() { gpt --train-samples 16 --global-batch-size 4 --dry-run "$@"; }
log_eval() { log --eval-iters 1 "$@"; }
log_masked() { log --eod-mask-loss --micro-batch-size 1 "$@"; }
log_nan() { log --lr 1e30 --train-iters 4 "$@"; }
log_spiky() { log --lr 0.3 --train-iters 8 "$@"; }
dry_long() { dry --seq-length 512 --max-position-embeddings 512 --num-layers 8 "$@"; }
dry_full() { dry_long --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "$@"; }
dry_full_tp() { dry_full --world-size 2 --tensor-model-parallel-size 2 "$@"; }
effect dry '^> run .* micro-batch 1,' --micro-batch-size 1
effect dry '^> run .* global batch 8,' --global-batch-size 8
echo '{"train_batch_size": 6}' >ds.json
effect dry_deepspeed '^> run .* global batch 6,' --deepspeed_config ds.json
effect dry_samples '^> ramp-up  *from 2 by 2 over 8 samples' --rampup-batch-size 2 2 8
effect dry_batch '^> run .* global batch 5,' --decrease-batch-size-if-needed
effect dry '^> run .* sequence 8' --seq-length 8
effect dry_t5 '^> run .* decoder sequence 12' --decoder-seq-length 12
effect dry_iterations '^> run  *3 iterations' --train-iters 3
effect dry_iterations '^> run  *3 iterations' --train-samples 12
effect log '^< .* iteration  *2/' --exit-interval 1
effect log '^< .* iteration  *2/' --exit-duration-in-mins 1e-7
effect log '^> .* validation loss at iteration 2 on test set' --eval-iters 1
effect log_eval '^> .* validation loss at iteration 1 ' --eval-interval 1
effect log_eval '^< .* iteration  *1/' --skip-train
effect log '^> .* lm loss' --seed 7
unseen --distributed-timeout-minutes 'it ends waits for ranks that are stuck: tests/faults.t, tests/torchrun.t'
effect dry_long '^>   activations' --recompute-activations
effect dry_long '^>   activations' --recompute-granularity selective
effect dry_full '^>   activations' --recompute-method block
effect dry_full '^>   activations' --recompute-num-layers 4
effect dry_full_tp '^>   activations' --distribute-saved-activations
unseen --cuda-graph-impl 'a CPU has no graphs: tests/queue.t, tests/cuda_golden.t'
unseen --enable-cuda-graph 'a CPU has no graphs: tests/queue.t'
effect log_masked '^> .* lm loss' --calculate-per-token-loss
effect log_nan '^< status|^> .* number of nan iterations: *1' --no-check-for-nan-in-loss-and-grad
effect log_nan '^< status|^> .* number of nan iterations: *1' --on-nan skip
unseen --check-weight-hash-across-dp-replicas-interval 'it compares several ranks: tests/ranks_copies.t'
effect log_spiky '^> .* lm loss changed' --check-for-spiky-loss
effect log '^> model ' --dry-run
effect dry '^> model .*: 12 layers, hidden 768' --model-preset gpt2
effect log '^> llama-3.1-8b ' --list-presets
effect log '^> the fastest layouts' --plan
effect dry '^> layout  *2 ranks' --world-size 2
effect dry '^> .* predicted for h100' --hardware h100
covers meg-train training

# ---- device ----
effect log '^> status' --device cuda
unseen --deterministic-mode 'it selects algorithms of a GPU: tests/queue.t, make check-gpu'
covers meg-train device

# ---- checkpoints ----
# files DIR: list the files with checksums of tensors
files() { find "$1" -type f | sort; cksum "$1"/*/*.safetensors; }
saved() { rm -rf ck; log "$@"; [ ! -e ck ] || files ck; }
saved_ck() { saved --save ck "$@"; }
saved_each() { saved_ck --save-interval 1 "$@"; }
meg-train -q --config gpt.conf --global-batch-size 4 --train-iters 2 --save old --save-interval 1 >log
sed -n '/^num\|^hidden\|^max/!p' gpt.conf >no_sizes.conf
reseeded() { resumed --seed 7 "$@"; }
resumed() { gpt --global-batch-size 4 --train-iters 4 --load old --override-opt_param-scheduler "$@"; }
# The same run in the directory of another one
saved_over() { rm -rf ck; cp -r old ck; log --save ck "$@"; }
# The schedule differs from that of the checkpoint
rescheduled() { gpt --global-batch-size 4 --train-iters 4 --load old --lr 2e-2 "$@"; }
without_sizes() {
    run meg-train -q --config no_sizes.conf --global-batch-size 4 --train-iters 4 --load old \
        --override-opt_param-scheduler "$@"
}
missing() { log --load missing "$@"; }
# saving OPTION...: train with saves; call MEG_FAULT_AT on files of a checkpoint fails or waits (MEG_FAULT_ERRNO)
saving() { (
    export MEG_FAULT_IN=iter_ LD_PRELOAD=fault.so
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
    exec meg-train -q --config gpt.conf --global-batch-size 4 --train-iters 4 --save ck --save-interval 2 "$@"
); }
MEG_FAULT_LOG=$T/calls saving >log 2>&1
# Tensor files are created with their headers first.  The first write of tensors is a further one to such a file.
write=$(awk '/iter_/ { n++ } $2 == "close" { is_created[$3] } $2 == "pwrite" && $3 in is_created { print n; exit }' calls)
failing() { rm -rf ck; MEG_FAULT_AT=$write MEG_FAULT_ERRNO=ENOSPC run saving "$@"; }
# While the first write of tensors waits for the file go, print whether the next iteration ends.
waiting() {
    rm -rf ck go waiting.log
    MEG_FAULT_AT=$write MEG_FAULT_ERRNO=WAIT MEG_FAULT_GO=$T/go saving "$@" >waiting.log 2>&1 &
    until_true $((1 + 30 * ($# > 0))) grep -q 'iteration  *3/' waiting.log && echo 'iteration 3 ends during the save'
    : >go
    wait $!
    files ck
}
state() { rm -rf ck; log --save ck "$@"; jq 'del(.options)' ck/*/state.json; }
effect saved '^> ck/iter_0000002/' --save ck
effect saved_ck '^> ck/iter_0000001/' --save-interval 1
effect saved_each '^< ck/iter_0000001/' --keep-last-n 1
effect saved_over '^< status' --overwrite-checkpoints
effect failing '^> status' --exit-on-save-failure
effect log '^< .* iteration  *1/' --load old
effect log '^> .* iteration  *1/.*lm loss' --pretrained-checkpoint old
effect resumed '^> .* iteration  *2/' --ckpt-step 1
effect missing '^> status' --exit-on-missing-checkpoint
effect resumed '^> .* iteration  *1/' --finetune
effect resumed '^> .* iteration  *4/.* lm loss' --no-load-optim
effect reseeded '^> .* lm loss' --no-load-rng
effect waiting '^> iteration 3 ends during the save' --async-save
effect saved_ck '^< ck/iter_0000002/.*optim' --no-save-optim
effect state '^< .*seed' --no-save-rng
effect without_sizes '^< status' --use-checkpoint-args
effect rescheduled '^< status' --override-opt_param-scheduler
effect rescheduled '^< status' --use-checkpoint-opt_param-scheduler
covers meg-train checkpoints

# ---- logging ----
logged() { rm -rf out; mkdir out; log "$@"; (cd out && ls | sed 's/tfevents.*/tfevents/'); }
tensorboard() {
    rm -rf tb
    log --eval-iters 1 --tensorboard-dir tb "$@"
    cat tb/* | grep -aoE '(lm loss validation|learning-rate)( [a-z ]*)?'
}
effect log '^< .* iteration  *1/' --log-interval 2
effect logged '^> m.json' --log-json out/m.json
effect log '^> .* throughput' --log-throughput
effect log '^> .* params norm' --log-params-norm
effect log '^> .* num zeros' --log-num-zeros-in-grad
effect log '^>  slowest ranks' --log-straggler
effect saved_ck '^> ck/progress.txt' --log-progress
effect logged '^> events.out.tfevents' --tensorboard-dir out
effect tensorboard '^< learning-rate' --tensorboard-log-interval 2
effect tensorboard '^> lm loss validation ppl' --log-validation-ppl-to-tensorboard
covers meg-train logging
done_testing
