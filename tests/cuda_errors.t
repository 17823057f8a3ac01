#!/bin/sh
# needs: cuda/bin
# modules: cuda
# The CUDA backend with missing or old drivers and libraries, unsuitable GPUs, too little memory and failures of a GPU.
# An error ends the run with a message and a status, and leaves no incomplete file.  Without a GPU or a usable driver,
# --device auto trains on the CPU; without a usable cuDNN, attention uses the kernels of meg.  The CUDA runtime and the
# libraries are test doubles, whose environment variables simulate failures (tests/nccl/double.h).
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
. "${0%/*}/torchrun.sh"
train=$B/tests/cuda/bin/meg-train
[ -x "$train" ] || skip_all 'this build has no headers of CUDA and NCCL'
export MEG_CACHE_DIR="$T/cache" MEG_DOUBLE_ABORTS="$T/aborts"

tiny_gpt >"$T/conf"
echo 'train-iters = 6' >>"$T/conf"
save=$T/save quiet=-q

# clean: the directory of checkpoints has no lock and no temporary file
clean() {
    [ ! -e "$save" ] || [ -z "$(find "$save" -name '.meg-lock*' -o -name '*.tmp*')" ]
}

# run VARIABLES OPTION...: train with the environment variables VARIABLES, which are separated by commas
run() {
    run_variables=$1
    shift
    rm -rf "$save"
    # shellcheck disable=SC2086 # words
    (IFS=, && exec env $run_variables "$train" $quiet --config "$T/conf" --save "$save" "$@")
}

# fails NAME REGEX VARIABLES OPTION...: the run exits with status 1 and a message
fails() {
    fails_name=$1 fails_regex=$2
    shift 2
    status "$fails_name: status" 1 run "$@"
    like "$fails_name: message" "$(cat "$T/err")" "^meg-train: $fails_regex"
    is "$fails_name: one message" "$(grep -c '^meg-train: ' "$T/err")" 1
    ok "$fails_name: no lock and no temporary file" clean
}

# ---- driver and GPU ----

fails 'no driver' '--device cuda: no NVIDIA driver .libcuda.so.1. is installed; install it, or use --device cpu' \
    MEG_DOUBLE_DRIVER=0 --device cuda
fails 'an old driver' 'the NVIDIA driver supports CUDA 12.4, but this build requires [0-9.]*; update the driver, or use --device cpu' \
    MEG_DOUBLE_DRIVER=12040 --device cuda
fails 'no GPU' '--device cuda: the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu' \
    MEG_DOUBLE_GPUS=0 --device cuda
fails 'a driver that fails' 'the NVIDIA driver fails: .*cudaErrorSystemNotReady.*check nvidia-fabricmanager, or use --device cpu' \
    MEG_DOUBLE_DRIVER_ERROR=802 --device cuda
fails 'an old GPU' 'GPU 0 .double. has compute capability 7.5, but 8.0 or later is required; use another GPU, or --device cpu' \
    MEG_DOUBLE_CC=75 --device auto
fails 'too few GPUs' 'local rank 2 has no GPU: this process may use 2; start at most 2 ranks per node, or check CUDA_VISIBLE' \
    MEG_DOUBLE_GPUS=2,LOCAL_RANK=2 --device cuda
fails 'heads that are too large for the GPU' \
    'GPU 0 .double.: attention with head size 2048 requires 129 KiB of shared memory per block, but the GPU has 99 KiB; use more' \
    MEG_DOUBLE_CC=89 --device cuda --kv-channels 2048

for variables in MEG_DOUBLE_DRIVER=0 MEG_DOUBLE_GPUS=0; do
    status "$variables: --device auto trains on the CPU" 0 run "$variables" --device auto
    is "$variables: no message" "$(cat "$T/err")" ''
    ok "$variables: the checkpoint is complete" test -e "$save/iter_0000006/state.json"
done
status 'an old driver: --device auto trains on the CPU' 0 run MEG_DOUBLE_DRIVER=12040 --device auto
like 'an old driver: --device auto warns' "$(cat "$T/err")" '--device auto selects the CPU: the NVIDIA driver supports CUDA 12.4'

# ---- libraries ----

# without LIBRARY: set $train to a copy of the program that is not linked to the test double of LIBRARY.  When the
# program loads LIBRARY, it finds an empty file.
without() {
    mkdir -p "$T/bin" "$T/empty"
    : >"$T/empty/$1"
    perl -0777 -pe "s/\\Q$1\\E/substr('libdl.so.2' . chr(0) x 99, 0, length '$1')/e" "$B/tests/cuda/bin/meg-train" >"$T/bin/meg-train"
    chmod +x "$T/bin/meg-train"
    train=$T/bin/meg-train
}
libraries=$B/tests/nccl:$B/tests/cuda:$LD_LIBRARY_PATH

without libcublasLt.so.13
fails 'no cuBLASLt' 'GPUs require libcublasLt.so.13: .*too short; install cuBLAS 13 or set LD_LIBRARY_PATH, or use --device cpu' \
    "LD_LIBRARY_PATH=$T/empty:$libraries" --device cuda
rm -r "$T/empty"
train=$B/tests/cuda/bin/meg-train
fails 'another cuBLASLt' 'libcublasLt.so.13 has version 12.9.0, but this build requires cuBLAS 13; install it' \
    MEG_DOUBLE_CUBLASLT_VERSION=120900 --device cuda

if [ -e "$B/tests/cuda/libcudnn.so.9" ]; then
    without libcudnn.so.9
    quiet=
    status 'no cuDNN: training completes' 0 run "LD_LIBRARY_PATH=$T/empty:$libraries" --device cuda
    quiet=-q
    like 'no cuDNN: message' "$(cat "$T/err")" \
        "attention uses meg's own kernels, .*libcudnn.so.9: .*too short; install cuDNN 9.19 or set LD_LIBRARY_PATH"
    train=$B/tests/cuda/bin/meg-train
    status 'an old cuDNN: training completes' 0 run MEG_DOUBLE_CUDNN_VERSION=91002 --device cuda
    like 'an old cuDNN: warning' "$(cat "$T/err")" \
        "attention uses meg's own kernels, because cuDNN 9.10.2 is older than 9.19; install a newer cuDNN"
else
    skip 'cuDNN is missing or old' 'this build has no headers of cuDNN'
fi

# ---- memory ----

fails 'a model that is too large' 'not enough memory on the GPU of rank 0: tensors need 0.[1-9] GiB, but only 0.0 GiB are free; use a smaller --micro-batch-size' \
    MEG_DOUBLE_MEMORY=96 --device cuda --hidden-size 1024 --ffn-hidden-size 4096
fails 'no memory for the workspace' 'GPU 0 .double.: out of memory: an operation requires 64 MiB of workspace, but 48 of 48 MiB are free; reduce --micro-batch-size' \
    MEG_DOUBLE_MEMORY=48 --device cuda
status 'memory that another process allocates: status' 1 run \
    MEG_DOUBLE_MEMORY=1024,MEG_DOUBLE_OTHER_MEMORY=956 --device cuda --hidden-size 1024 --ffn-hidden-size 4096
like 'memory that another process allocates: how much is free' "$(cat "$T/err")" \
    '^meg-train: GPU 0 .double.: cannot allocate [0-9]* MiB of device memory; [0-9]* MiB are free'
like 'memory that another process allocates: what is needed' "$(cat "$T/err")" \
    '^meg-train: out of memory: the model requires [0-9.]* MiB for parameters.*; use a smaller --micro-batch-size'
ok 'memory that another process allocates: no lock and no temporary file' clean

# ---- failures of a GPU ----

last='the last operation that was queued is that of lib/cuda/[a-z_0-9/]*[.][chu]*:[0-9]* in step [0-9]*(, layer [0-9]*)*, but an earlier one may have failed: set CUDA_LAUNCH_BLOCKING=1 to find it'
for n in 1 200; do
    fails "kernel $n accesses an illegal address" \
        "GPU 0 .double.: .* .cudaErrorIllegalAddress., reported by [A-Za-z ]*; $last; check dmesg for errors of the GPU .Xid." \
        "MEG_DOUBLE_FAILURE=$n:700" --device cuda
done
fails 'uncorrectable memory error' ".*cudaErrorECCUncorrectable.*; $last; the memory of the GPU or its driver failed: check nvidia-smi -q and dmesg .Xid." \
    MEG_DOUBLE_FAILURE=300:214 --device cuda
fails 'NVLink error' ".*cudaErrorNvlinkUncorrectable.*; a connection between GPUs failed: check nvidia-smi nvlink -e and dmesg .Xid." \
    MEG_DOUBLE_FAILURE=300:220 --device cuda
fails 'unspecified launch failure' ".*cudaErrorLaunchFailure.*; the GPU or its driver may have failed: check nvidia-smi -q and dmesg .Xid." \
    MEG_DOUBLE_FAILURE=300:719 --device cuda

# operation N: print the source file, step and layer of the N-th operation, which fails before the next one is queued
operation() {
    run "MEG_DOUBLE_FAILURE=$1:700,CUDA_LAUNCH_BLOCKING=1" --device cuda 2>&1 |
        sed -n 's,.*IllegalAddress[^;]*; the operation is that of lib/cuda/\([a-z_/]*[.]cu*\):[0-9]*\( in.*\); check dmesg.*,\1\2,p'
}
is 'CUDA_LAUNCH_BLOCKING=1: the operation is exact' "$(operation 1) $(operation 2) $(operation 3) $(operation 4)" \
    'embedding.cu in step 1 embedding.cu in step 1 norm.cu in step 1, layer 0 cublas/gemm.c in step 1, layer 0'

fails 'a matrix product' ".*cudaErrorIllegalAddress., reported by cublasLtMatmul; the operation is that of lib/cuda/cublas/gemm.c:[0-9]* in step 1, layer 0; check dmesg" \
    MEG_DOUBLE_FAILURE=4:700,CUDA_LAUNCH_BLOCKING=1 --device cuda --deterministic-mode
if [ -e "$B/tests/cuda/libcudnn.so.9" ]; then
    fails 'attention by cuDNN' ".*cudaErrorIllegalAddress., reported by cudnnBackendExecute; the operation is that of lib/cuda/cudnn/attention.c:" \
        MEG_DOUBLE_FAILURE=6:700,CUDA_LAUNCH_BLOCKING=1 --device cuda --deterministic-mode --bf16 --attention-dropout 0 \
        --seq-length 64 --max-position-embeddings 64
fi

# A checkpoint is written before the failure.
status 'a failure after a checkpoint: status' 1 run MEG_DOUBLE_FAILURE=1000:700 --device cuda --save-interval 1 --train-iters 1000
ok 'a failure after a checkpoint: no lock and no temporary file' clean
ok 'a failure after a checkpoint: it is complete' meg-convert -q --info "$save" --verify

# ---- several ranks ----

# fail_on RANK VARIABLES OPTION...: train on two ranks, one of which has the variables
fail_on() {
    fail_rank=$1 fail_variables=$2
    shift 2
    rm -rf "$save"
    # shellcheck disable=SC2016 # expanded by the ranks
    torchrun 2 sh -c 'rank=$1 variables=$2 IFS=,; shift 2; [ "$RANK" != "$rank" ] || export $variables; exec "$@"' sh \
        "$fail_rank" "$fail_variables" "$train" --config "$T/conf" --save "$save" --device cuda "$@"
}
for rank in 0 1; do
    fail_on $rank MEG_DOUBLE_FAILURE=200:214
    name="rank $rank of 2 has an uncorrectable memory error"
    is "$name: all ranks exit with status 1" "$statuses" '1 1'
    like "$name: it names the cause" "$(cat "$T/err.$rank")" 'cudaErrorECCUncorrectable.*check nvidia-smi -q and dmesg'
    like "$name: rank 0 names the cause" "$(cat "$T/err.0")" 'cudaErrorECCUncorrectable'
    ok "$name: no lock and no temporary file" clean
done
fail_on 1 MEG_DOUBLE_CC=75
is 'rank 1 of 2 has an old GPU: all ranks exit with status 1' "$statuses" '1 1'
like 'rank 1 of 2 has an old GPU: rank 0 names the cause' "$(cat "$T/err.0")" 'rank 1 .*compute capability 7.5'
fail_on 1 MEG_DOUBLE_GPUS=0 --device auto
is 'rank 1 of 2 has no GPU: all ranks exit with status 2' "$statuses" '2 2'
like 'rank 1 of 2 has no GPU: message' "$(cat "$T/err.0")" 'computes on .*, but other ranks do not; give --device cpu, or'
fail_on 1 MEG_DOUBLE_GPUS=1
is 'rank 1 of 2 has the GPU of rank 0: all ranks exit with status 2' "$statuses" '2 2'
like 'rank 1 of 2 has the GPU of rank 0: message' "$(cat "$T/err.0")" 'ranks 0 and 1 use the same GPU'
fail_on 1 MEG_DOUBLE_MEMORY=96 --hidden-size 1024 --ffn-hidden-size 4096
is 'rank 1 of 2 has too little memory: all ranks exit with status 1' "$statuses" '1 1'
like 'rank 1 of 2 has too little memory: rank 0 names the cause' "$(cat "$T/err.0")" 'not enough memory on the GPU of rank 1'
fail_on 1 MEG_DOUBLE_MEMORY=1024,MEG_DOUBLE_OTHER_MEMORY=956 --nccl-ub --hidden-size 1024 --ffn-hidden-size 4096
is 'another process allocates the memory that NCCL needs: all ranks exit with status 1' "$statuses" '1 1'
like 'another process allocates the memory that NCCL needs: how much is free' "$(cat "$T/err.1")" \
    'NCCL cannot allocate [0-9]* MiB of device memory; [0-9]* MiB are free'
like 'another process allocates the memory that NCCL needs: what is needed' "$(cat "$T/err.1")" \
    'out of memory: the model requires [0-9.]* MiB for parameters'

mkdir -p "$T/old"
ln -s "$(ldd "$train" | sed -n 's/.*libz[.]so.* => \([^ ]*\).*/\1/p')" "$T/old/libnccl.so.2"
fail_on 1 "LD_LIBRARY_PATH=$T/old:$LD_LIBRARY_PATH"
is 'rank 1 of 2 has an old NCCL: all ranks exit with status 1' "$statuses" '1 1'
like 'rank 1 of 2 has an old NCCL: message' "$(cat "$T/err.1")" 'libnccl.so.2: .*; install NCCL [0-9.]* or later'
done_testing
