#!/bin/sh
# modules: ckpt
# meg-convert: conversions between Hugging Face, meg and Megatron preserve weights; --info; refusals.
. "${0%/*}/../lib.sh"
top=$(cd "${0%/*}/../.." && pwd)
gpt2=$golden/models/gpt2-tiny

# entry NAME SIZE...: add a tensor to the header; $at is the number of bytes so far
at=0 header='{"__metadata__":{"format":"pt"}'
entry() {
    name=$1 n=4 shape=
    shift
    for d; do n=$((n * d)) shape="$shape${shape:+,}$d"; done
    header="$header,\"$name\":{\"dtype\":\"F32\",\"shape\":[$shape],\"data_offsets\":[$at,$((at + n))]}"
    at=$((at + n))
}
# Create a model of 1 layer, hidden size 8, 2 heads, 4 positions and 5 ids.
t=transformer.h.0
entry $t.attn.c_attn.bias 24
entry $t.attn.c_attn.weight 8 24
entry $t.attn.c_proj.bias 8
entry $t.attn.c_proj.weight 8 8
for ln in ln_1 ln_2; do entry $t.$ln.bias 8; entry $t.$ln.weight 8; done
entry $t.mlp.c_fc.bias 32
entry $t.mlp.c_fc.weight 8 32
entry $t.mlp.c_proj.bias 8
entry $t.mlp.c_proj.weight 32 8
entry transformer.ln_f.bias 8
entry transformer.ln_f.weight 8
entry transformer.wpe.weight 4 8
entry transformer.wte.weight 5 8
header="$header}"
while [ $((${#header} % 8)) -ne 0 ]; do header="$header "; done
mkdir "$T/hf"
{
    printf "\\$(printf %03o $((${#header} % 256)))\\$(printf %03o $((${#header} / 256)))\0\0\0\0\0\0%s" "$header"
    awk -v n="$at" 'BEGIN { for (i = 0; i < n; i++) printf "%c", 33 + i % 64 }'
} >"$T/hf/model.safetensors"
printf '{"model_type":"gpt2","n_layer":1,"n_embd":8,"n_head":2,"n_positions":4,"vocab_size":5,"eos_token_id":4}' \
    >"$T/hf/config.json"
printf '{}' >"$T/hf/vocab.json"
printf '#version: 0.2\n' >"$T/hf/merges.txt"
cd "$T" || exit 1

status 'Hugging Face to native succeeds' 0 meg-convert --load-dir hf --save-dir ours
is 'the tracker is release' "$(cat ours/latest_checkpointed_iteration.txt)" release
status 'native to Hugging Face succeeds' 0 meg-convert --load-dir ours --save-dir back
ok 'weights are bit-identical after a round trip' cmp hf/model.safetensors back/model.safetensors
ok 'tokenizer files are copied unchanged' cmp hf/merges.txt back/merges.txt
is 'config.json keeps the settings' "$(jq -c '[.n_layer,.n_head,.eos_token_id]' back/config.json)" '[1,2,4]'

# Generation settings and bos and eos ids are preserved, also through a native checkpoint.
cp -R hf said
jq -c '. + {bos_token_id: 1, eos_token_id: [4, 2]}' hf/config.json >said/config.json
printf '{"eos_token_id": [4, 2, 3], "temperature": 0.6}\n' >said/generation_config.json
printf '{{ messages }}' >said/chat_template.jinja
printf '{"<x>": 4}' >said/added_tokens.json
meg-convert -q --load-dir said --save-dir said-ours && meg-convert -q --load-dir said-ours --save-dir said-out
for f in generation_config.json chat_template.jinja added_tokens.json; do
    ok "$f is copied" cmp said/$f said-out/$f
done
is 'bos and eos ids are preserved' "$(jq -c '[.bos_token_id, .eos_token_id]' said-out/config.json)" '[1,[4,2,3]]'
is 'state.json has bos and eos ids' "$(jq -c '[.eod_id, .end_ids, .bos_id]' said-ours/release/state.json)" '[4,[2,3],1]'
ok 'the checkpoint passes --verify' meg-convert --info said-ours --verify
is 'a missing generation_config.json is generated' \
    "$(jq -c . back/generation_config.json)" '{"bos_token_id":4,"eos_token_id":4}'
rm -r said*

# --params-dtype and --max-shard-size
status '--params-dtype sets the dtype' 0 meg-convert --load-dir ours --save-dir half --params-dtype bf16
is 'config.json has torch_dtype' "$(jq -r .torch_dtype half/config.json)" bfloat16
types() { meg-convert --info "$1" --json | jq -c '[.tensors[].dtype] | unique'; }
is 'all tensors have the dtype' "$(types half)" '["BF16"]'
is 'bf16 halves the size' "$(meg-convert --info half --json | jq '[.tensors[].bytes] | add')" \
    "$(meg-convert --info hf --json | jq '[.tensors[].bytes] | add / 2')"
meg-convert -q --load-dir half --save-dir half-ours && meg-convert -q --load-dir half-ours --save-dir half-out
is 'the dtype is kept by default, also in a native checkpoint' "$(types half-ours) $(types half-out)" '["BF16"] ["BF16"]'
ok 'bf16 weights are bit-identical after a round trip' cmp half/model.safetensors half-out/model.safetensors
meg-convert -q --load-dir half --save-dir half-ours --overwrite --params-dtype fp32
is '--params-dtype fp32 converts a native checkpoint' "$(types half-ours)" '["F32"]'
meg-convert -q --load-dir ours --save-dir half --overwrite --params-dtype fp16
is '--params-dtype fp16 converts' "$(types half)" '["F16"]'
status '--max-shard-size splits the weights' 0 meg-convert --load-dir ours --save-dir shards --max-shard-size 1KB
is 'shards are numbered' "$(cd shards && echo model-*.safetensors)" \
    "$(seq -s ' ' -f 'model-%05g-of-00007.safetensors' 7)"
is 'the index lists the shards' "$(jq -c '[.metadata.total_size, (.weight_map | length), .weight_map["transformer.wte.weight"]]' \
    shards/model.safetensors.index.json)" '[3840,16,"model-00001-of-00007.safetensors"]'
meg-convert -q --load-dir shards --save-dir shards-ours && meg-convert -q --load-dir shards-ours --save-dir shards-out
ok 'weights from shards are bit-identical' cmp hf/model.safetensors shards-out/model.safetensors
status 'an invalid --max-shard-size is refused' 2 meg-convert --load-dir ours --save-dir x --max-shard-size 5GBs
status '--params-dtype is refused for mcore' 2 meg-convert --load-dir ours --save-dir x --saver mcore --params-dtype bf16
status '--params-dtype is refused with target sizes' 2 meg-convert --load-dir ours --save-dir x --params-dtype bf16 \
    --target-tensor-parallel-size 2
ok 'a refusal writes nothing' test ! -e x
rm -r half* shards*

# A run that starts from a Hugging Face directory keeps its eos ids, and its weights are exported in their dtype.
perl "$top/tests/tiny_gpt2.pl" tiny-gpt2
printf '{"eos_token_id":[256,65]}' >tiny-gpt2/generation_config.json
meg-train -q --load tiny-gpt2 --save tiny-run --finetune --mock-data --train-iters 1 --seq-length 16 --micro-batch-size 1 \
    --global-batch-size 1 --lr 1e-3 --eval-iters 0 --bf16 >log
meg-convert -q --load-dir tiny-run --save-dir tiny-out
is 'a run in bf16 is exported in bf16' "$(types tiny-out) $(jq -r .torch_dtype tiny-out/config.json)" '["BF16"] bfloat16'
is 'the eos ids of the initial directory are exported' \
    "$(jq -c .eos_token_id tiny-out/config.json) $(cat tiny-out/generation_config.json)" '[256,65] {"eos_token_id":[256,65]}'
rm -r tiny-* log

# A tokenizer is exported with a tokenizer.json, unless this cannot represent it, and is imported as the same type.
ids() { # OPTION...: print the ids of three texts
    printf '{"text":"abc Abc\\n"}\n{"text":"  two  blanks "}\n{"text":"The quick, brown fox: 12"}\n' |
        meg-preprocess -q --input - --output-prefix ids "$@" && meg-preprocess --decode ids_text_document --json "$@" | jq -c .ids
}
round() { # NAME TYPE FILES-OPTIONS...: convert the directory $T/NAME with these files to native and back
    cp hf/config.json hf/model.safetensors "$1"
    printf '{"meg_tokenizer":["tokenizer-type = %s"],"chat_template":"{{x}}"}' "$2" >"$1/tokenizer_config.json"
    meg-convert -q --load-dir "$1" --save-dir "$1-ours" && meg-convert -q --load-dir "$1-ours" --save-dir "$1-out"
    is "$2 is preserved" "$(for d in "$1-ours" "$1-out"; do meg-convert --info "$d" --json | jq -r '.options["tokenizer-type"]'; done | uniq)" "$2"
    rm -rf "$1-ours"
    name=$1 type=$2
    shift 2
    is "tokenizer.json of $type encodes to the same ids" "$(ids --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$name-out")" \
        "$(ids --tokenizer-type "$type" "$@")"
    is "tokenizer_config.json of $type names the class" "$(jq -c '[.tokenizer_class, .chat_template]' "$name-out/tokenizer_config.json")" \
        '["PreTrainedTokenizerFast","{{x}}"]'
}
mkdir spm bpe bert
cat "$top/tests/data/spm/14.model" >spm/tokenizer.model
round spm GPTSentencePieceTokenizer --tokenizer-model spm/tokenizer.model
is 'only a BPE model is called tokenizer.model' "$(cd spm-out && echo *.model)" meg_tokenizer.model
rm -rf spm-out
round spm Llama2Tokenizer --tokenizer-model spm/tokenizer.model
is 'tokenizer.json of Llama2Tokenizer adds the bos id' "$(jq -c '[.post_processor.single[].SpecialToken.id]' spm-out/tokenizer.json)" \
    "$(jq -c '[.bos_token, null]' spm-out/tokenizer_config.json)"
meg-vocab -q --input "$top/LICENSE" --vocab-size 300 --output-dir bpe
rm bpe/tokenizer*.json
round bpe GPT2BPETokenizer --vocab-file bpe/vocab.json --merge-file bpe/merges.txt
jq -c 'del(.eos_token_id)' hf/config.json >bpe/config.json
meg-convert -q --load-dir bpe --save-dir bpe-ours && meg-convert -q --load-dir bpe-ours --save-dir bpe-out --overwrite
is 'the eos id is that of the tokenizer if config.json has none' "$(jq .eos_token_id bpe-out/config.json)" 0
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' abc two blank '##s' the , : quick fox 12 >bert/vocab.txt
round bert BertWordPieceLowerCase --vocab-file bert/vocab.txt
printf '{"meg_tokenizer":["tokenizer-type = BertWordPieceCase","vocab-extra-ids = 3"]}' >bert/tokenizer_config.json
meg-convert -q --load-dir bert --save-dir bert-ours && meg-convert -q --load-dir bert-ours --save-dir bert-out --overwrite
is '--vocab-extra-ids is preserved' "$(for d in bert-ours bert-out; do meg-convert --info $d --json | jq -r '.options["vocab-extra-ids"]'; done | uniq)" 3
is 'tokenizer.json has the extra ids' "$(jq -c '.model.vocab["<extra_id_2>"]' bert-out/tokenizer.json)" 19
rm spm/tokenizer_config.json
is 'a SentencePiece model alone is a Llama2Tokenizer' "$(meg-convert --info spm --json | jq -r '.options["tokenizer-type"]')" Llama2Tokenizer
printf '{"add_bos_token":false}' >spm/tokenizer_config.json
is 'add_bos_token false makes it a GPTSentencePieceTokenizer' \
    "$(meg-convert --info spm --json | jq -r '.options["tokenizer-type"]')" GPTSentencePieceTokenizer
cat "$top/tests/data/spm/0.model" >spm/tokenizer.model
meg-convert -q --load-dir spm --save-dir spm-ours && meg-convert -q --load-dir spm-ours --save-dir spm-none 2>err
like 'a warning names a tokenizer that tokenizer.json cannot represent' "$(cat err)" 'cannot write tokenizer.json.*tokenizer.model: tokenizer.json cannot represent unused pieces'
is 'the directory cannot be opened with another tokenizer' "$(cd spm-none && echo tokenizer.* && jq -r .tokenizer_class tokenizer_config.json)" \
    "$(printf 'tokenizer.*\nPreTrainedTokenizerFast')"
rm -rf spm* bpe* bert* ids*

status '--info --verify accepts a native checkpoint' 0 meg-convert --info ours --verify
like '--info lists tensors' "$(cat out)" '^decoder.layers.0.mlp.linear_fc1.weight +F32 +\[32,8\] +1024  model-1-layer-00000.safetensors$'
like '--info lists options' "$(cat out)" '^    num-attention-heads = 2$'
is '--info --json describes a native checkpoint' "$(meg-convert --info ours --json | jq -c '[.format,.iteration,.parameters,.vocab_size,(.tensors|length)]')" \
    '["native",null,960,5,16]'
is '--info --json describes a Hugging Face directory' \
    "$(meg-convert --info hf --json | jq -c '[.format,.parameters,.options["tokenizer-type"]]')" '["hf",960,"GPT2BPETokenizer"]'

status 'an unknown --model-type is refused' 2 meg-convert --model-type MAMBA --load-dir hf --save-dir bert
status 'the --model-type of another model is refused' 65 meg-convert --model-type BERT --load-dir hf --save-dir bert
like 'the message names both types' "$(cat err)" '^meg-convert: hf: --model-type is BERT, but the model of the checkpoint is a GPT'
is 'a refused --model-type writes nothing' "$(echo bert*)" 'bert*'
status 'a --save-dir with a checkpoint is refused' 2 meg-convert --load-dir hf --save-dir ours
like 'the message names --overwrite' "$(cat err)" 'ours: .* a checkpoint.*--overwrite'
status '--overwrite replaces a native checkpoint' 0 meg-convert --load-dir hf --save-dir ours --overwrite
status '--overwrite replaces a Hugging Face directory' 0 meg-convert --load-dir ours --save-dir back/ --overwrite
ok 'the replaced directory is complete' cmp hf/model.safetensors back/model.safetensors
status 'native to Megatron succeeds' 0 meg-convert --load-dir ours --save-dir ranks --target-tensor-parallel-size 2
is 'each rank has a file' "$(cd ranks && find . -type f | sort | tr '\n' ' ')" \
    './latest_checkpointed_iteration.txt ./release/mp_rank_00/model_optim_rng.pt ./release/mp_rank_01/model_optim_rng.pt '
is 'the vocabulary is sharded and padded' "$(meg-convert --info ranks --json | jq -c '[.format, .vocab_size,
    (.tensors[] | select(.name == "embedding.word_embeddings.weight").shape)]')" '["megatron",5,[128,8],[128,8]]'
status 'Megatron to Hugging Face succeeds' 0 meg-convert --load-dir ranks --save-dir back --saver hf --overwrite
ok 'weights are bit-identical through mcore' cmp hf/model.safetensors back/model.safetensors
status '--saver megatron succeeds' 0 meg-convert --load-dir ranks --save-dir ranks --saver megatron --overwrite
meg-convert -q --load-dir ranks --save-dir back --saver hf --overwrite
ok 'weights are bit-identical through legacy Megatron' cmp hf/model.safetensors back/model.safetensors
status 'a tensor-parallel size that does not divide the heads is refused' 2 meg-convert --load-dir ours --save-dir x --target-tensor-parallel-size 3
like 'the message has both numbers' "$(cat err)" 'target-tensor-parallel-size 3: must divide the number of attention heads, 2'
status 'a vocabulary larger than its rows is refused' 2 meg-convert --load-dir ranks --save-dir x --saver native --true-vocab-size 300
like 'the message has the rows' "$(cat err)" 'vocabulary of 300 tokens, expected 1 to 256, the number of rows'
printf '{"a":0,"b":1,"c":2}' >three.json
status '--vocab-file is accepted' 0 meg-convert --load-dir ranks --save-dir x --saver native --vocab-file three.json
is 'the vocabulary has the size of --vocab-file' "$(meg-convert --info x --json | jq .vocab_size)" 3
rm -r x
status 'a --vocab-file of another size than --true-vocab-size is refused' 2 meg-convert --load-dir ranks --save-dir x --vocab-file three.json --true-vocab-size 4
status 'target sizes are refused for hf' 2 meg-convert --load-dir ours --save-dir x --saver hf --target-tensor-parallel-size 2
status '--loader mcore reads Megatron' 0 meg-convert --load-dir ranks --save-dir x --loader mcore --no-checking
rm -r x ranks three.json
# --overwrite replaces a meg checkpoint or a complete Hugging Face directory and removes no other files.
mkdir keep keep/out.tmp keep/out.old keep/real keep/config
echo letter | tee keep/out.tmp/letter >keep/out.old/letter
status 'a directory is written next to similar names' 0 meg-convert --load-dir hf --saver hf --save-dir keep/out
status 'a directory is replaced next to similar names' 0 meg-convert --load-dir hf --saver hf --save-dir keep/out --overwrite
is 'similar names are kept' "$(cat keep/out.tmp/letter keep/out.old/letter)" "$(printf 'letter\nletter')"
echo notes >keep/out/notes.txt
status 'a Hugging Face directory with a file of the user is refused' 2 \
    meg-convert --load-dir hf --saver hf --save-dir keep/out --overwrite
like 'the message names the file' "$(cat err)" 'keep/out/notes.txt is not a file of a Hugging Face checkpoint'
is 'the file is kept' "$(cat keep/out/notes.txt)" notes
echo '{}' >keep/config/config.json
status 'a directory with only a config.json is refused' 2 \
    meg-convert --load-dir hf --saver hf --save-dir keep/config --overwrite
like 'the message says that it is incomplete' "$(cat err)" 'keep/config does not contain a complete Hugging Face checkpoint'
is 'the incomplete directory is unchanged' "$(cat keep/config/config.json)" '{}'
status 'a directory of checkpoints is not replaced by a Hugging Face directory' 2 \
    meg-convert --load-dir hf --saver hf --save-dir ours --overwrite
ln -s real keep/link
status 'a symbolic link is followed' 0 meg-convert --load-dir hf --saver hf --save-dir keep/link --overwrite
ok 'the link is kept' test -L keep/link
ok 'the link points to the new directory' cmp hf/model.safetensors keep/real/model.safetensors
status 'a symbolic link is followed on replacement' 0 meg-convert --load-dir hf --saver hf --save-dir keep/link/ --overwrite
ok 'the link is kept on replacement' test -L keep/link
is 'no other files are created' "$(ls keep | tr '\n' ' ')" 'config link out out.old out.tmp real '
rm -r keep
mkdir mine
echo letter >mine/letter
status 'a directory of other files is refused with --overwrite' 2 meg-convert --load-dir hf --save-dir mine --overwrite
is 'the other files are kept' "$(ls mine)" letter
is 'no temporary files are left' "$(ls)" "$(printf '%s\n' back err hf mine ours out)"

status 'a --loader of another format is corrupt input' 65 meg-convert --load-dir hf --loader native --save-dir x
status 'a directory without a checkpoint is missing input' 66 meg-convert --load-dir mine --save-dir x
status '--ckpt-step is refused for a single checkpoint' 2 meg-convert --info hf --ckpt-step 3
status '--save-dir is required' 2 meg-convert --load-dir hf
status '--info with --save-dir is refused' 2 meg-convert --info hf --save-dir x
status 'a --save-dir that cannot be created is an I/O error' 74 meg-convert --load-dir hf --save-dir /dev/null/x
ok 'a failed conversion leaves nothing' test ! -e x

# A FIFO instead of any file is refused without waiting for its writer.
meg-convert -q --load-dir hf --save-dir ranks --saver mcore
mkdir shards
cp hf/config.json shards
mkdir words
cp hf/config.json hf/model.safetensors words
echo '[]' >words/tokenizer.model
echo '{}' | tee words/generation_config.json words/tokenizer_config.json >words/chat_template.jinja
echo '{"weight_map":{"wte":"model.safetensors"}}' >shards/model.safetensors.index.json
accepted='' unnamed=''
for file in ours/latest* ours/release/* hf/* ranks/*/*/*.pt shards/* words/*; do
    case $file in */run.conf | */model.safetensors.index.json) [ "${file%%/*}" = shards ] || continue ;; esac
    mv "$file" kept
    mkfifo "$file"
    timeout 20 meg-convert -q --load-dir "${file%%/*}" --save-dir x 2>err
    [ $? -eq 74 ] || accepted="$accepted $file"
    grep -q "$file: found a FIFO, expected a regular file" err || unnamed="$unnamed $file"
    rm "$file"
    mv kept "$file"
done
rm -r shards words ranks
is 'a FIFO is refused' "$accepted" ''
is 'the message names the FIFO' "$unnamed" ''

# Let each call of a write path fail once with ENOSPC.
if [ -e "${B:-}/tests/fault.so" ]; then
    for from in hf ours 'ours --saver mcore --target-pipeline-parallel-size 1'; do
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=1 MEG_FAULT_COUNT=count LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            meg-convert -q --load-dir $from --save-dir x
        rm -r x
        n=$(cat count) i=0 wrong=
        while [ $i -lt "$n" ]; do
            i=$((i + 1))
            OMP_NUM_THREADS=1 MEG_FAULT_AT=$i MEG_FAULT_ERRNO=ENOSPC LD_PRELOAD=fault.so \
                ASAN_OPTIONS=verify_asan_link_order=0 meg-convert -q --load-dir $from --save-dir x 2>err
            r=$?
            if [ $r -eq 0 ]; then
                meg-convert --info x --verify >out || wrong="$wrong $i:unread"
            elif [ $r -ne 74 ]; then
                wrong="$wrong $i:$r"
            elif rmdir x 2>/dev/null; then
                wrong="$wrong $i:empty"
            fi
            for f in x.* x/*.tmp* x/config.json.*; do
                [ ! -e "$f" ] || wrong="$wrong $i:$f"
            done
            rm -rf x
        done
        is "ENOSPC at each of $n calls leaves no partial output, from $from" "$wrong" ''
    done
    rm -f count
else
    skip 'ENOSPC leaves no partial output' 'fault.so is not built'
fi

size=$(wc -c <ours/release/model-2-head.safetensors)
dd if=/dev/zero of=ours/release/model-2-head.safetensors bs=1 seek=$((size - 1)) count=1 conv=notrunc 2>/dev/null
status 'a damaged byte is corrupt input' 65 meg-convert --load-dir ours --save-dir x
like 'the message names the tensor' "$(cat err)" 'model-2-head.safetensors: tensor decoder.final_layernorm.weight, chunk 1 of 1'
ok 'damage is found before anything is written' test ! -e x
head -c 300 hf/model.safetensors >short
cp short hf/model.safetensors
status 'a truncated file is corrupt input' 65 meg-convert --load-dir hf --save-dir x
like 'the message has its size' "$(cat err)" 'size is 300 bytes'

meg-convert -q --load-dir "$gpt2" --save-dir tiny
meg-convert -q --load-dir tiny --save-dir tiny-hf
ok 'gpt2-tiny is bit-identical after a round trip' cmp "$gpt2/model.safetensors" tiny-hf/model.safetensors
# Compare tensors byte by byte, at the offsets in the headers of both files.
tensors() { # FILE...: print name, shape and checksum of each tensor
    for f; do
        n=$(od -An -N2 -tu2 "$f" | tr -d ' ')
        tail -c +9 "$f" | head -c "$n" |
            jq -r 'to_entries[] | select(.key != "__metadata__") | "\(.key) \(.value.shape|tostring) \(.value.data_offsets[0]) \(.value.data_offsets[1])"' |
            while read -r name shape begin end; do
                printf '%s %s %s\n' "$name" "$shape" \
                    "$(tail -c +$((9 + n + begin)) "$f" | head -c $((end - begin)) | cksum)"
            done
    done | sort
}
tensors "$gpt2/mcore.safetensors" >want
tensors tiny/release/model-*.safetensors >got
is 'gpt2-tiny has 28 tensors' "$(wc -l <want | tr -d ' ')" 28
ok 'gpt2-tiny equals Megatron core' cmp want got

llama=$golden/models/llama-tiny
meg-convert -q --load-dir "$llama" --save-dir llama
meg-convert -q --load-dir llama --save-dir llama-hf
ok 'llama-tiny is bit-identical after a round trip' cmp "$llama/model.safetensors" llama-hf/model.safetensors
is 'llama-tiny keeps its settings' "$(jq -S . "$llama/config.json")" \
    "$(jq -S 'del(.head_dim, .initializer_range, .rope_scaling)' llama-hf/config.json)"
tensors "$llama/mcore.safetensors" >want
tensors llama/release/model-*.safetensors >got
is 'llama-tiny has 15 tensors' "$(wc -l <want | tr -d ' ')" 15
ok 'llama-tiny equals Megatron core' cmp want got
status 'llama-tiny is read from bf16 shards' 0 meg-convert --load-dir "$llama/sharded-bf16" --save-dir bf16
meg-convert -q --load-dir bf16 --save-dir bf16-hf --params-dtype fp32
# Compare values: each f32 weight has a bf16 value as its upper half and a zero lower half.
halves() { tail -c +$(($(od -An -N2 -tu2 "$1" | tr -d ' ') + 9)) "$1" | od -An -v -w4 -tx2; }
halves bf16-hf/model.safetensors >all
is 'converted bf16 weights have zero lower halves' "$(grep -v '^ 0000 ' all)" ''
is 'all weights were converted' "$(wc -l <all)" "$(halves "$llama/model.safetensors" | wc -l)"
ok 'the model has more than 10000 weights' test "$(wc -l <all)" -gt 10000
is 'each bf16 weight is the nearest to the original' "$(halves bf16-hf/model.safetensors | cut -c7- >got &&
    halves "$llama/model.safetensors" | awk '
        function hex(s, i, n) { for (i = 1; i <= 4; i++) n = 16 * n + index("0123456789abcdef", substr(s, i, 1)) - 1; return n }
        { lo = hex($1); hi = hex($2); printf "%04x\n", hi + (lo > 32768 || (lo == 32768 && hi % 2)) }' | cmp - got && echo yes)" yes
qwen3=$golden/models/qwen3-tiny
meg-convert -q --load-dir "$qwen3" --save-dir qwen3
meg-convert -q --load-dir qwen3 --save-dir qwen3-hf
ok 'qwen3-tiny is bit-identical after a round trip' cmp "$qwen3/model.safetensors" qwen3-hf/model.safetensors
is 'qwen3-tiny keeps its settings' \
    "$(jq -S 'del(.max_window_layers, .sliding_window)' "$qwen3/config.json")" \
    "$(jq -S 'del(.initializer_range)' qwen3-hf/config.json)"
meg-convert -q --load-dir qwen3 --save-dir qwen3-megatron --target-tensor-parallel-size 2
greedy() { # NAME EXPECTED DIR...: compare the tokens that the models in DIR... generate
    name=$1
    jq -c '.generate[] | {ids: .prompt}' "$2" >prompts
    jq -c '.generate[].greedy_tokens' "$2" >want
    shift 2
    for from; do
        is "greedy decoding of $name equals the reference, from ${from##*/}" \
            "$(meg-generate -q --load "$from" --greedy --tokens-to-generate 26 <prompts | jq -c .ids)" "$(cat want)"
    done
}
greedy llama-tiny "$llama/expected.json" "$llama" llama llama-hf "$llama/megatron-tp2-pp2"
greedy qwen3-tiny "$qwen3/expected.json" "$qwen3" qwen3 qwen3-hf qwen3-megatron
if [ -n "${MEG_SHARED:-}" ]; then
    stories=$MEG_SHARED/golden/models/stories260K/expected.json
    jq -c '.greedy[] | {ids: .prompt_ids_with_bos}' "$stories" >prompts
    is 'greedy decoding of stories260K equals the reference' "$(meg-generate -q --load "$MEG_SHARED/data/weights/stories260K" \
        --greedy --tokens-to-generate 116 <prompts | jq -c --slurpfile want "$stories" -n '[inputs.ids] as $got |
            [$want[0].greedy | to_entries[] | .key as $i | .value.output_ids == $got[$i][:(.value.output_ids | length)]] | all')" true
else
    skip 'greedy decoding of stories260K equals the reference' 'MEG_SHARED is not set'
fi
for from in gpt2-tiny/megatron gpt2-tiny/megatron-tp2-pp2 llama-tiny/megatron-tp2-pp2; do
    ref=$golden/models/$from
    rm -rf legacy back
    meg-convert -q --load-dir "$ref" --save-dir legacy
    tensors "${ref%/*}/mcore.safetensors" >want
    tensors legacy/release/model-*.safetensors >got
    ok "$from equals Megatron core" cmp want got
    meg-convert -q --load-dir legacy --save-dir back --saver mcore --make-vocab-size-divisible-by 1 \
        --target-tensor-parallel-size 2 --target-pipeline-parallel-size 2
    meg-convert -q --load-dir back --save-dir legacy --overwrite --saver native
    tensors legacy/release/model-*.safetensors >got
    ok "$from equals Megatron core after export to four ranks" cmp want got
done
is 'each rank has the same tensors as in the reference' \
    "$(meg-convert --info back --json | jq -c '[.tensors[] | [.name, .shape, .file]] | sort')" \
    "$(meg-convert --info "$ref" --json | jq -c '[.tensors[] | [.name, .shape, .file]] | sort')"
mkdir bin
cp "$ref/../config.json" "$ref/../pytorch_model.bin" bin
meg-convert -q --load-dir bin --save-dir bin-ours
tensors bin-ours/release/model-*.safetensors >got
ok 'pytorch_model.bin equals Megatron core' cmp want got
# A BERT vocabulary keeps its file name and tokenizer type.
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a b >words
echo '{"text":"a b a b b a b b a a"}' |
    meg-preprocess -q --input - --tokenizer-type BertWordPieceCase --vocab-file words --output-prefix ab
meg-train -q --num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 4 --max-position-embeddings 6 \
    --micro-batch-size 1 --train-iters 1 --lr 1e-3 --split 1,0,0 --eval-iters 0 --data-path ab_text_document \
    --tokenizer-type BertWordPieceCase --vocab-file words --save bert >out
meg-convert -q --load-dir bert --save-dir bert-hf
ok 'the vocabulary of BERT is exported as vocab.txt' cmp words bert-hf/vocab.txt
ok 'vocab.json is not written for BERT' test ! -e bert-hf/vocab.json
echo 'a b' | meg-generate --load bert --tokens-to-generate 1 >out
is 'the checkpoint needs no --vocab-file' "$(jq '.ids | length' out)" 1
# The run had --seq-length 4; the model has 6 positions.
meg-convert -q --load-dir bert --save-dir bert-mcore --saver mcore
is 'args.seq_length is --seq-length of the run' \
    "$(perl -0777 -ne 'print unpack "l<", $1 if /seq_lengthJ(....)/s' bert-mcore/iter_0000001/mp_rank_00/*.pt)" 4
meg-convert -q --load-dir bert-mcore --save-dir bert-back
is 'seq_length is imported as --seq-length' "$(meg-convert --info bert-back --json | jq -r '.options."seq-length"')" 4
# Without true_vocab_size in args, the padding rows of the word embedding are ids, too: the softmax has 128 ids
# instead of 9.
loss() { meg-eval --task ppl --load "$1" --data-path ab_text_document | jq .loss_nats; }
true=$(loss bert-mcore)
perl -pi -e 's/true_vocab_size/hush_vocab_size/' bert-mcore/iter_0000001/mp_rank_00/*.pt
like 'padded rows in the softmax add about ln(128/9) to the loss at the start' \
    "$(echo "$true $(loss bert-mcore)" | awk '{ d = $2 - $1 - log(128 / 9); print (d * d < 0.0004 ? "yes" : "no"), $0 }')" '^yes'

# ---- T5 ----
for v in 0 1; do
    tiny=$golden/models/t5-v1_$v-tiny
    meg-convert -q --load-dir "$tiny" --save-dir t5-$v --model-type T5 && meg-convert -q --load-dir t5-$v --save-dir t5-$v-hf
    ok "T5 v1.$v: the weights are bit-identical after a round trip through the native format" \
        cmp "$tiny/model.safetensors" t5-$v-hf/model.safetensors
    for impl in local transformer_engine; do
        meg-convert -q --load-dir t5-$v --save-dir t5-ranks --overwrite --saver mcore --saver-transformer-impl $impl \
            --target-tensor-parallel-size 2 --target-pipeline-parallel-size 4
        meg-convert -q --load-dir t5-ranks --save-dir t5-$v-hf --overwrite --saver hf
        ok "T5 v1.$v: the weights are bit-identical after a round trip through 8 ranks of Megatron Core, $impl" \
            cmp "$tiny/model.safetensors" t5-$v-hf/model.safetensors
    done
    is "T5 v1.$v: config.json is that of the source after the round trip" \
        "$(jq -S --slurpfile was "$tiny/config.json" 'with_entries(select(.key | in($was[0])))' t5-$v-hf/config.json)" \
        "$(jq -S . "$tiny/config.json")"
done
is '--info knows the family' "$(meg-convert --info t5-ranks --json | jq -r .model_type)" T5
status 'a stage with layers of both stacks is refused' 2 \
    meg-convert --load-dir t5-1 --save-dir t5-no --saver mcore --target-pipeline-parallel-size 3
status 'a relative bias has no name before Megatron Core' 2 meg-convert --load-dir t5-1 --save-dir t5-no --saver megatron
like 'the message names the option' "$(cat err)" '--position-embedding-type relative would be read as .*use --saver native'
cp -R "$golden/models/t5-v1_1-tiny" t5-files
cat "$top/tests/data/spm/14.model" >t5-files/spiece.model
printf '{"chat_template":"{{x}}"}' >t5-files/tokenizer_config.json
printf '{"decoder_start_token_id": 5, "eos_token_id": [1, 7]}' >t5-files/generation_config.json
jq '.decoder_start_token_id = 5' "$golden/models/t5-v1_1-tiny/config.json" >t5-files/config.json
meg-convert -q --load-dir t5-files --save-dir t5-ours && meg-convert -q --load-dir t5-ours --save-dir t5-out
is 'the tokenizer of T5 has a type' "$(meg-convert --info t5-ours --json | jq -r '.options["tokenizer-type"]')" GPTSentencePieceTokenizer
ok 'the SentencePiece model of T5 is copied' cmp t5-files/spiece.model t5-out/meg_tokenizer.model
meg-convert -q --load-dir t5-out --save-dir t5-out-ours && meg-convert -q --load-dir t5-out-ours --save-dir t5-again
ok 'the model keeps this name beside a tokenizer.json that is copied' \
    cmp t5-files/spiece.model t5-again/meg_tokenizer.model
ok 'the generation settings of T5 are copied' cmp t5-files/generation_config.json t5-out/generation_config.json
is 'the ids of T5 are preserved' "$(jq -c '[.decoder_start_token_id, .eos_token_id, .pad_token_id, .bos_token_id]' t5-out/config.json)" \
    '[5,[1,7],0,null]'
is 'tokenizer.json encodes to the same ids' \
    "$(ids --tokenizer-type HuggingFaceTokenizer --tokenizer-model t5-out)" \
    "$(ids --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model t5-files/spiece.model)"

done_testing
