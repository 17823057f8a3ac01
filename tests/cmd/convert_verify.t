#!/bin/sh
# modules: ckpt
# meg-convert --info --verify finds a changed byte in each tensor of a checkpoint: weights and optimizer state.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"
command -v jq >/dev/null || skip_all 'jq is not installed'

train --num-layers 1 --hidden-size 4 --train-iters 1 --lr-warmup-iters 0 --eval-iters 0 --save "$T/ck" >/dev/null
status 'the checkpoint of a run passes --verify' 0 meg-convert --info "$T/ck" --verify
is '--verify is not the default' "$(meg-convert --info "$T/ck")" "$(cat "$T/out")"

# last_bytes FILE: print the name and the offset of the last byte of each tensor of a safetensors file
last_bytes() {
    header=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    head -c $((8 + header)) "$1" | tail -c "$header" | jq -r --argjson at $((8 + header)) \
        'del(.__metadata__) | to_entries[] | "\(.key) \($at + .value.data_offsets[1] - 1)"'
}
# flip FILE OFFSET: replace a byte by another one
flip() {
    byte=$(od -An -tu1 -j "$2" -N1 "$1" | tr -d ' ')
    printf "\\$(printf %03o $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
tensors=0 missed=
for file in "$T"/ck/iter_0000001/*.safetensors; do
    last_bytes "$file" >"$T/bytes"
    while read -r name at; do
        flip "$file" "$at"
        meg-convert --info "$T/ck" --verify >"$T/out" 2>"$T/err"
        [ "$? $(grep -cF "$name" "$T/err")" = '65 1' ] || missed="$missed $name"
        flip "$file" "$at"
        tensors=$((tensors + 1))
    done <"$T/bytes"
done
is 'a changed byte in any tensor is found, and the message has its name' "$missed" ''
# 16 weights, and exp_avg and exp_avg_sq of each
is 'all tensors are changed once' "$tensors" 48
status 'the restored checkpoint passes --verify' 0 meg-convert --info "$T/ck" --verify
done_testing
