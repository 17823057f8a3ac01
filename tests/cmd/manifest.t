#!/bin/sh
# modules: ckpt
# A manifest.json that does not describe the files of the checkpoint is refused.
. "${0%/*}/../lib.sh"
cd "$T" || exit 1
export OMP_NUM_THREADS=1
jq -n 1 >/dev/null 2>&1 || skip_all 'no jq'
seq 1 40 | paste -s -d ' ' | sed 's/.*/{"text":"&"}/' |
    meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 99 --input - --output-prefix ids || exit 1
meg-train -q --num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 4 --max-position-embeddings 4 \
    --micro-batch-size 1 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 99 --data-path ids_text_document \
    --split 1,0,0 --eval-iters 0 --train-iters 1 --save ckpt >log || exit 1
manifest=ckpt/iter_0000001/manifest.json
cp $manifest good.json
ok 'the checkpoint is valid' meg-convert --info ckpt --verify

# refused WHAT FILTER: with the filter applied to the manifest, every command refuses the checkpoint
refused() {
    jq "$2" good.json >$manifest
    status "$1" 65 meg-convert --info ckpt --verify
    like "$1: the message names tensor and file" "$(cat err)" "ckpt/iter_0000001/$3: tensor $4 is missing, or its dtype, shape or offset differs from manifest.json; the checkpoint is damaged or was edited"
}
for part in model optim; do
    name=$(jq -r "[.tensors | to_entries[] | select(.value.file | startswith(\"$part\"))][0].key" good.json)
    file=$(jq -r ".tensors[\"$name\"].file" good.json)
    t=".tensors[\"$name\"]"
    refused "$part: a negative offset" "$t.offset = -1" "$file" "$name"
    refused "$part: an offset beyond the file" "$t.offset = 9007199254740992" "$file" "$name"
    refused "$part: another shape" "$t.shape = [4611686018427387904, 8]" "$file" "$name"
    refused "$part: another dtype" "$t.dtype = \"U8\"" "$file" "$name"
    refused "$part: another file" "$t.file = \"$part-2-head.safetensors\"" "$part-2-head.safetensors" "$name"
    refused "$part: a tensor that no file contains" ".tensors[\"$name.more\"] = $t" "$file" "$name.more"
done
jq '.tensors |= map_values(.offset = 0)' good.json >$manifest
status 'a conversion refuses it, too' 65 meg-convert --load-dir ckpt --save-dir converted --saver megatron
name=$(jq -r '.tensors | keys[0]' good.json)
jq ".tensors[\"$name\"].xxh3_128 = []" good.json >$manifest
status 'missing checksums are refused' 65 meg-convert --info ckpt --verify
like 'the message says what to do' "$(cat err)" "tensor $name: manifest.json has 0 checksums .*; copy the checkpoint again\$"
cp good.json $manifest
state=ckpt/iter_0000001/state.json
tr '1' '2' <$state >changed && cp changed $state
status 'a changed state.json is refused' 65 meg-convert --info ckpt
like 'the message says what to do, too' "$(cat err)" 'state.json: checksum is .*; the file is damaged or was edited: copy the checkpoint again$'
done_testing
