#!/bin/sh
# needs: cuda/bin
# The recipe of 'make demo' has the results of the CPU on the CUDA backend: losses, perplexity, samples, filled masks.
# There is no GPU: the kernels are compiled for the CPU (tests/cuda/emulate.h), and the CUDA runtime, cuBLASLt and cuDNN
# are test doubles that detect errors.
. "${0%/*}/lib.sh"
[ -x "$B/tests/cuda/bin/meg-train" ] || skip_all 'this build has no headers of CUDA and NCCL'
cd "${0%/*}/.." || exit 1
. tests/demo.sh
export MEG_CACHE_DIR="$T/cache"
for model in gpt bert t5; do
    printf '%s\n' 'train-iters = 6' 'eval-interval = 3' 'log-interval = 1' >>"$T/exp/$model.conf"
done

# Without --device, the programs of tests/cuda select the GPU of the double.
on_cuda() { (PATH=$B/tests/cuda/bin:$PATH && recipe "$@"); }

# same_run: the run of the recipe in $T/cuda has the losses of the run in $T/cpu
same_run() {
    for device in cpu cuda; do
        jq .lm_loss "$T/$device/metrics.jsonl" >"$T/$device.losses"
    done
    is "$name: six steps and their evaluations are logged" "$(grep -c . "$T/cpu.losses")" 10
    ok "$name: losses are those of the CPU" near "$T/cuda.losses" "$T/cpu.losses"
}

# same_text: the perplexity and the samples of a GPT are those of the CPU
same_text() {
    for device in cpu cuda; do
        jq .ppl "$T/$device/eval.json" >"$T/$device.ppl"
    done
    ok "$name: the perplexity is that of the CPU" near "$T/cuda.ppl" "$T/cpu.ppl"
    ok "$name: samples are those of the CPU" cmp "$T/cuda/samples.txt" "$T/cpu/samples.txt"
}

# same_masks: masks are filled as on the CPU, and the most likely tokens have the same probabilities
same_masks() {
    for device in cpu cuda; do
        jq .text "$T/$device/filled.jsonl" >"$T/$device.text"
        jq '.top_logprobs[][].logprob | -.' "$T/$device/filled.jsonl" >"$T/$device.logprobs"
    done
    ok "$name: masks are filled as on the CPU" cmp "$T/cuda.text" "$T/cpu.text"
    ok "$name: probabilities are those of the CPU" near "$T/cuda.logprobs" "$T/cpu.logprobs"
}

for model in gpt bert t5; do
    name=MODEL=$model
    if [ $model != gpt ]; then
        recipe $name masked.jsonl >"$T/log" 2>&1
        sed -n 1,2p "$T/out/masked.jsonl" >"$T/masked" && cp "$T/masked" "$T/out/masked.jsonl"
    fi
    ok "$name: the recipe runs on the CPU" recipe $name
    mv "$T/out/$model" "$T/cpu"
    ok "$name: the recipe runs on the CUDA backend" on_cuda $name
    mv "$T/out/$model" "$T/cuda"
    same_run
    if [ $model = gpt ]; then same_text; else same_masks; fi
    rm -r "$T/cpu" "$T/cuda"
done
ok 'the CUDA backend has timed matrix products' test -s "$T"/cache/cublaslt-*
done_testing
