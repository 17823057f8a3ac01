#!/bin/sh
# modules: data
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

# ---- a dataset shorter than a sample, alone and in a blend ----
# Megatron core 0.10.0 wrote the names and sums below.  The first array of "tiny" repeats its sequence 16 times.
echo '{"text":"1 2 3"}' | meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 9 --append-eod --output-prefix tiny
i=0
while [ $i -lt 40 ]; do
    echo '{"text":"1 2 3 4 5 6 7 8"}'
    i=$((i + 1))
done | meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 9 --append-eod --output-prefix big
status 'a blend with a dataset shorter than a sample trains' 0 meg-train -q --tokenizer-type NullTokenizer --vocab-size 9 \
    --num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8 \
    --micro-batch-size 1 --train-iters 20 --lr 1e-3 --eval-iters 0 --megatron-release 0.10 --data-cache-path short \
    --split 1 --data-path 0.7 big_text_document 0.3 tiny_text_document
cat >want <<end
be1a44f669ba79b5a0600e7a103d6764  21e8e3fee2f14bbd7668da7dddde0fac-BlendedDataset-train-dataset_index.npy
389d012739b4f108480eb60c7be5ea88  21e8e3fee2f14bbd7668da7dddde0fac-BlendedDataset-train-dataset_sample_index.npy
de8b44c3d8943416d93de46adaa31591  e0fe1e549dbc8441ce1c381117e3be28-GPTDataset-train-document_index.npy
5fe8948452997e88879427f43258a8f0  e0fe1e549dbc8441ce1c381117e3be28-GPTDataset-train-sample_index.npy
a844b52a6032091b3034020323cd5bcf  e0fe1e549dbc8441ce1c381117e3be28-GPTDataset-train-shuffle_index.npy
c07a77e55b0ca34aa0fc785ee5433e03  fef349db23646bb1b7b6c4416d195021-GPTDataset-train-document_index.npy
bd58a0d880eb1ba9b8d33c51138865f8  fef349db23646bb1b7b6c4416d195021-GPTDataset-train-sample_index.npy
aa6d1df3ae3ccafe90681b1f091ea037  fef349db23646bb1b7b6c4416d195021-GPTDataset-train-shuffle_index.npy
end
is 'the index of such a blend equals that of Megatron-LM' "$(cd short && md5sum -- *.npy)" "$(cat want)"

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
