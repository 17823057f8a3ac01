#!/bin/sh
# Files of the index cache have the names and descriptions that Megatron-LM computes for the same options.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

cd "$T" || exit 1
ok 'a run writes its cache' train --data-path ids_text_document --data-cache-path cache --train-iters 1 --lr-warmup-iters 0
found=$(ls cache/*-GPTDataset-train-description.txt)
cat >want <<end
{
    "class": "GPTDataset",
    "dataset_path": "ids_text_document",
    "num_samples": 4,
    "index_split": "train",
    "random_seed": 1234,
    "sequence_length": 16,
    "split": "90,8,2",
    "split_matrix": [
        [
            0,
            0.9
        ],
        [
            0.9,
            0.98
        ],
        [
            0.98,
            1.0
        ]
    ],
    "tokenizer": {
        "class": "_NullTokenizer",
        "tokenizer_path": [
            null
        ],
        "vocab_size": "100"
    }
}
end
is 'the description is the JSON of Megatron-LM, the tokenizer indented once' "$(cat "$found")" "$(cat want)"
is 'the file names have the MD5 of the description' "$found" cache/0b0be1486f4017305fdd66c287f08fae-GPTDataset-train-description.txt

# ---- damage ----
# flip FILE: flip the lowest bit of the sixth byte from the end, which is in the array
flip() {
    at=$(($(wc -c <"$1") - 6))
    byte=$(od -An -tu1 -j "$at" -N 1 "$1" | tr -d ' ')
    printf "\\$(printf '%o' $((byte ^ 1)))" | dd of="$1" bs=1 seek="$at" conv=notrunc 2>/dev/null
}
run() { train --data-path ids_text_document --data-cache-path damaged 2>err | steps; }
run >want
for name in document sample shuffle; do
    flip "$(ls damaged/*-GPTDataset-train-"${name}"_index.npy)"
    run >got
    ok "a flipped bit in the $name index does not change the run" cmp got want
    like 'a warning names the checksums' "$(cat err)" 'train-checksums.txt: the arrays of the index do not match these checksums'
done
run >got
is 'a damaged cache is rebuilt' "$(cat err)" ''
rm damaged/*-checksums.txt
run >got
ok 'a cache of Megatron-LM, without checksums, results in the same run' cmp got want
is 'a cache without checksums causes no warning' "$(cat err)" ''
done_testing
