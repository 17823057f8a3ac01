#!/bin/sh
# needs: ranks/layouts cuda/bin
# Training under many parallel layouts on the CUDA backend equals training of one rank on the CPU.  There is no GPU: the
# kernels are compiled for the CPU (tests/cuda/emulate.h), and the CUDA runtime, NCCL, cuBLASLt and cuDNN are test
# doubles that detect errors.  The layouts are cells of the covering array of tests/ranks/layouts.c:
#   MAX_RANKS=N   cells of at most N ranks (default: 4)
#   FIRST=I       the first cell, counted from 1
#   CELLS=N       the number of cells (default: 4, with GPT, Llama, BERT and T5 and all types of parallelism but uneven
#                 stages)
#   STEPS=N       the number of steps (default: 2)
# If the layers of a layout do not communicate, every second cell uses CUDA graphs.
. "${0%/*}/lib.sh"
[ -x "$B/tests/cuda/bin/meg-train" ] || skip_all 'this build has no headers of CUDA and NCCL'
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/train.sh"
. "${0%/*}/bert.sh"
cp "$bert_vocab" "$T/vocab.txt"
. "${0%/*}/torchrun.sh"
export OMP_NUM_THREADS=1 MEG_CACHE_DIR="$T/cache"
steps=${STEPS:-2} captures=1

# numbers KEY FILE: print the value of KEY in each JSON line of FILE that has a loss
numbers() { jq "select(has(\"lm_loss\")) | .$1" "$2"; }

# difference A B: print the largest relative difference of two files with numbers
difference() {
    paste "$1" "$2" | awk 'NF == 2 { d = ($1 > $2 ? $1 - $2 : $2 - $1) / $2; if (d > most) most = d }
        END { printf "%.1e\n", most }'
}

# data NAME: print the options of the dataset of the model of a cell
data() {
    case $1 in
    bert* | t5*) echo "--data-path $T/text_text_sentence --vocab-file $T/vocab.txt" ;;
    *) echo "--data-path $T/ids_text_document" ;;
    esac
}

"$B/tests/ranks/layouts" list "${MAX_RANKS:-4}" | tail -n "+${FIRST:-1}" | head -n "${CELLS:-4}" >"$T/cells"
tab=$(printf '\t')
while IFS=$tab read -r n name training layout; do
    training="$training --global-batch-size 8 --train-iters $steps --lr-warmup-iters 1 $(data "$name")"
    loss=1e-5 norm=1e-4
    case $name in
    *bf16) loss=2e-3 norm=2e-2 ;;
    esac

    case $layout in
    *tensor-model-parallel-size* | *context-parallel-size*) ;;
    *)
        captures=$((1 - captures))
        [ $captures -eq 0 ] || layout="$layout --cuda-graph-impl local"
        ;;
    esac

    # $cpu is the log of training on one rank on the CPU; cells with equal training options use the same log.
    cpu=$T/cpu.$(echo "$training" | cksum | tr ' ' -)
    # shellcheck disable=SC2086 # options
    [ -e "$cpu" ] || meg-train -q --device cpu --log-json "$cpu" $training >"$T/out" 2>&1 || sed 's/^/# /' "$T/out"

    rm -f "$T/gpu.json"
    # shellcheck disable=SC2086
    torchrun "$n" timeout 900 "$B/tests/cuda/bin/meg-train" -q --device cuda --log-json "$T/gpu.json" $training $layout
    is "$name: $n ranks complete, and the doubles detect no error" \
        "$(echo "$statuses" | tr ' ' '\n' | sort -u) $(cat "$T"/err.*)" '0 '
    for key in lm_loss grad_norm; do
        numbers "$key" "$cpu" >"$T/cpu.$key"
        numbers "$key" "$T/gpu.json" >"$T/gpu.$key"
    done
    echo "# $name: losses within $(difference "$T/gpu.lm_loss" "$T/cpu.lm_loss")," \
        "gradient norms within $(difference "$T/gpu.grad_norm" "$T/cpu.grad_norm") of one rank"
    is "$name: all steps are logged" "$(wc -l <"$T/cpu.grad_norm")" "$steps"
    ok "$name: losses are within $loss of one rank" near "$T/gpu.lm_loss" "$T/cpu.lm_loss" "$loss"
    ok "$name: gradient norms are within $norm of one rank" near "$T/gpu.grad_norm" "$T/cpu.grad_norm" "$norm"
done <"$T/cells"
done_testing
