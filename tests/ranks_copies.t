#!/bin/sh
# needs: ranks/comm ranks/straggler
# modules: train
# --check-weight-hash-across-dp-replicas-interval reports rank and tensor of a weight that differs; --log-straggler
# reports the slowest rank of each phase.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_llama >"$T/conf"
cat >>"$T/conf" <<'EOF'
train-iters = 6
lr = 1e-3
log-interval = 2
check-weight-hash-across-dp-replicas-interval = 4
EOF
mkdir "$T/a" "$T/b"
cd "$T/a" || exit 1
meg-train -q --config ../conf --train-iters 1 --save one >"$T/out" 2>&1
meg-convert -q --load-dir one --save-dir hf --saver hf >"$T/out" 2>&1
cp -r hf ../b
header=$(od -An -t u8 -N 8 hf/model.safetensors | tr -d ' ')
row=$(head -c $((header + 8)) hf/model.safetensors |
    sed 's/.*layers.1.post_attention_layernorm.weight":{[^}]*data_offsets":\[\([0-9]*\).*/\1/')
printf '\001' | dd of=../b/hf/model.safetensors bs=1 seek=$((8 + header + row + 4)) conv=notrunc 2>"$T/err"

# one_differs RANKS RANK OPTIONS...: train with one bit of a weight flipped on RANK
one_differs() {
    differs_n=$1 differs_rank=$2
    shift 2
    ranks_but "$differs_n" "$differs_rank" 'cd ../b' meg-train -q --config ../conf --load hf --finetune "$@" \
        >"$T/out" 2>"$T/err"
    differs_status=$?
}

for layout in '2 1' '3 0' '3 2' '2 1 --tensor-model-parallel-size 2'; do
    one_differs $layout
    is "$layout: a differing weight ends the run" "$differs_status" 1
    like "$layout: rank and tensor are named" "$(cat "$T/err")" \
        "rank $differs_rank of $differs_n on $(hostname): iteration 4: decoder.layers.1.*norm.*weight differs from its replicas"
    is "$layout: the run ends at the first comparison" "$(grep -c 'iteration  ' "$T/out")" 1
done
one_differs 3 9 --log-straggler
is 'training continues with equal weights' "$differs_status" 0
is 'the slowest ranks are logged at each interval' "$(grep -c '^ slowest ranks to iteration' "$T/out")" 3
like 'the slowest ranks are logged for all phases' "$(cat "$T/out")" \
    '^ slowest ranks to iteration        2 .ms a step, median. \| batch: [0-2] on [^ ]* [0-9.]+, [0-9.]+ \| forward-backward: .* \| gradient reduction: .* \| optimizer: .* \|$'

ranks 3 "$B/tests/ranks/straggler" >"$T/out" 2>"$T/err"
is 'a program with slow ranks runs' $? 0
like 'the log names the rank that computes longest, not those that wait' "$(cat "$T/out")" \
    '^ slowest ranks to iteration        2 .*\| batch: 2 on [^ ]* [0-9.]+, [0-9.]+ \| forward-backward: 1 on [^ ]* [1-9][0-9.]+, [0-9.]+ \|'
done_testing
