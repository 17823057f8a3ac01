#!/bin/sh
# The effect of each option of all commands except meg-train, in output or files.
# shellcheck disable=SC2317  # functions are called by effect
. "${0%/*}/lib.sh"
. "${0%/*}/effects.sh"
perl "${0%/*}/tiny_gpt2.pl" "$T/hf"
tests=$(cd "${0%/*}" && pwd)
tokenizers=$tests/data/tokenizers
cd "$T" || exit 1

# ---- meg-preprocess: checksums of datasets of three documents ----
printf '%s\n' '{"text":"A dog. Dr. No, CamelCase 123456!?\nA cat <extra_id_0>.","other":"Two words."}' \
    '{"text":"The dog, the cat.","other":"x"}' '{"text":"x","other":"y"}' >in.jsonl
printf '{"text":"\377"}\n' >bad.jsonl
printf '{"text":"A cat"}\n' >in2.jsonl
cp "$tokenizers/bert-lower.txt" bert.txt
bert='--tokenizer-type BertWordPieceLowerCase --vocab-file bert.txt'
prep() {
    rm -rf out out_* out.*
    run meg-preprocess -q --input in.jsonl --output-prefix out "$@"
    for bin in *.bin; do echo "$bin $(cksum <"$bin") $(cksum <"${bin%.bin}.idx")"; done
}
prep_bert() { prep $bert "$@"; }
prep_gpt2() {
    prep --tokenizer-type GPT2BPETokenizer --vocab-file "$tokenizers/gpt2-vocab.json" \
        --merge-file "$tokenizers/gpt2-merges.txt" "$@"
}
prep_split() { prep_gpt2 --split-sentences "$@"; }
mkdir -p punkt/english punkt/german
for f in abbrev_types.txt sent_starters.txt collocations.tab ortho_context.tab; do : >punkt/english/$f; done
cp punkt/english/* punkt/german
echo dr >punkt/english/abbrev_types.txt
prep_sentences() { prep_bert --split-sentences "$@"; }
prep_punkt() { prep_bert --split-sentences --punkt-data punkt "$@"; }
prep_partitions() { prep_bert --partitions 2 "$@"; }
prep_type() {
    [ $# -gt 0 ] || set -- $bert
    prep "$@"
}
prep_loud() {
    rm -f out_*
    run meg-preprocess --input in.jsonl --output-prefix out $bert "$@" | sed 's|, [0-9.]* s, .*||'
}
prep_bad() {
    rm -f out_*
    run meg-preprocess -q --input bad.jsonl --output-prefix out $bert "$@"
}
effect prep_bert '^> out_text_document.bin' --input in2.jsonl
effect prep_bert '^> out_other_document.bin' --json-keys other
effect prep_bert '^> new_text_document.bin' --output-prefix new
rm new*
effect prep_bert '^> out_text_sentence.bin' --split-sentences
effect prep_split '^> out_text_sentence.bin' --keep-newlines
effect prep_punkt '^> out_text_sentence.bin' --lang german
effect prep_sentences '^> out_text_sentence.bin' --punkt-data punkt
effect prep_bert '^> out_text_document.bin' --append-eod
effect prep_bad '^< status' --replace-invalid
unseen --workers 'the number of threads does not change the output: tests/cmd/preprocess.t compares them'
effect prep_bert '^> out_text_document.bin' --partitions 2
effect prep_partitions '^> out_text_document.bin' --keep-sequential-samples
unseen --dataset-impl 'it has only one value'
effect prep_loud '^> .*documents' --log-interval 1
covers meg-preprocess preprocess

prep_bert >log
inspect() { [ $# -eq 0 ] || run meg-preprocess $bert "$@"; }
explained() { [ $# -eq 0 ] || run meg-preprocess "$@"; }
decoded() { inspect --decode out_text_document "$@"; }
effect inspect '^> .*dog' --decode out_text_document
effect inspect '^> .*documents' --info out_text_document
effect explained '^> size: 640' --explain "$tokenizers/hf-gpt2"
effect decoded '^> .*"ids"' --json
covers meg-preprocess inspect

# ---- tokenizers ----
echo '{"text":"150"}' >number.jsonl
prep_null() {
    rm -f out*
    run meg-preprocess -q --input number.jsonl --output-prefix out --tokenizer-type NullTokenizer --vocab-size 100 "$@"
}
prep_hf() { prep --tokenizer-type HuggingFaceTokenizer --tokenizer-name-or-path "$tokenizers/hf-gpt2" "$@"; }
prep_spm() { prep --tokenizer-type SentencePieceTokenizer --tokenizer-model "$tokenizers/spm-bpe.model" "$@"; }
prep_llama2() { prep --tokenizer-type Llama2Tokenizer --tokenizer-model "$tokenizers/spm-bpe.model" "$@"; }
prep_tiktoken() { prep --tokenizer-type TikTokenizer --tokenizer-model "$tokenizers/ranks.json" --append-eod "$@"; }
head -n 50 "$tokenizers/gpt2-merges.txt" >merges.txt
head -n 100 "$tokenizers/bert-lower.txt" >vocab.txt
effect prep_type '^> out_text_document.bin' --tokenizer-type HuggingFaceTokenizer --tokenizer-name-or-path "$tokenizers/hf-gpt2"
effect prep_bert '^> out_text_document.bin' --vocab-file vocab.txt
effect prep_gpt2 '^> out_text_document.bin' --merge-file merges.txt
effect prep_spm '^> out_text_document.bin' --tokenizer-model "$tokenizers/spm-unigram.model"
effect prep_hf '^> out_text_document.bin' --tokenizer-name-or-path "$tokenizers/hf-bert"
effect prep_spm '^> out_text_document.bin' --vocab-extra-ids 10
effect prep_null '^< status' --vocab-size 200
effect prep_tiktoken '^> out_text_document.bin' --tiktoken-pattern v1
effect prep_tiktoken '^> out_text_document.bin' --tiktoken-num-special-tokens 900
effect prep_tiktoken '^> out_text_document.bin' --tiktoken-special-tokens '<x>' '<unk>' '<s>' '</s>'
effect prep_llama2 '^> out_text_document.bin' --megatron-release 0.15
covers meg-preprocess tokenizer

# ---- meg-merge ----
mkdir sets
cp out_text_document.bin sets/a_document.bin
cp out_text_document.idx sets/a_document.idx
for end in bin idx; do cp sets/a_document.$end sets/c_document.$end; cp sets/a_document.$end b_document.$end; done
merge() {
    rm -f merged*
    run meg-merge -q "$@"
    cksum merged*
}
merge_sets() {
    [ $# -gt 0 ] || set -- --datasets b_document
    merge --output-prefix merged "$@"
}
merge_to() {
    [ $# -gt 0 ] || set -- --output-prefix merged_ab
    merge --input sets "$@"
}
effect merge_sets '^> .*merged.bin' --datasets b_document sets/a_document
effect merge_sets '^> .*merged' --input sets
effect merge_to '^> .*merged.*bin' --output-prefix merged_cd
unseen --multimodal 'it needs datasets of modes: tests/cmd/merge.t'
covers meg-merge merge

# ---- meg-convert: files of a directory ----
convert() {
    rm -rf new
    run meg-convert -q --load-dir hf --save-dir new "$@"
    [ ! -d new ] || find new -type f -exec cksum {} + | sort -k 3
}
convert_to() {
    rm -rf new other
    [ $# -gt 0 ] || set -- --save-dir new
    run meg-convert -q --load-dir hf "$@"
    [ ! -d other ] || echo other
}
meg-convert -q --load-dir hf --save-dir native
ranks='--saver mcore --target-tensor-parallel-size 2'
meg-convert -q --load-dir hf --save-dir ranks $ranks
meg-train -q --load hf --finetune --save steps --mock-data --train-iters 2 --save-interval 1 --seq-length 16 \
    --micro-batch-size 1 --lr 1e-2 --eval-iters 0 >log 2>&1
printf '{"a":0,"b":1}' >vocab.json
convert_mcore() { convert $ranks "$@"; }
convert_ranks() { convert --load-dir ranks "$@"; }
convert_native() { convert --load-dir native "$@"; }
convert_steps() { convert --load-dir steps "$@"; }
cp -r hf odd
jq '.odd = 1' hf/config.json >odd/config.json
convert_odd() { convert --load-dir odd "$@"; }
convert_over() {
    rm -rf new
    cp -r native new
    run meg-convert -q --load-dir hf --saver native --save-dir new "$@"
}
describe() { [ $# -eq 0 ] || run meg-convert "$@"; }
info() { run meg-convert --info native "$@"; }
cp -r native bad
layer=$(ls bad/release/*layer*0.safetensors)
printf xxxx | dd of="$layer" bs=1 seek=$(($(wc -c <"$layer") - 4)) conv=notrunc status=none
info_bad() { run meg-convert --info bad "$@"; }
effect convert '^> .*new/model.safetensors' --load-dir native
effect convert_to '^> other' --save-dir other
effect convert '^> status' --loader megatron
effect convert '^> .*mp_rank_00/model_optim_rng.pt' --saver megatron
effect convert '^> status' --model-type BERT
effect convert '^> .*mp_rank_01/' --target-tensor-parallel-size 2
effect convert '^> .*mp_rank_00_001/' --target-pipeline-parallel-size 2
effect convert_mcore '^> .*mp_rank_01/' --make-vocab-size-divisible-by 64
effect convert_ranks '^> .*output_layer|^> .*embedding' --true-vocab-size 200
effect convert_odd '^< status' --ignore-config-keys odd
effect convert_ranks '^> .*embedding' --vocab-file vocab.json
effect convert_mcore '^> .*mp_rank_01/' --saver-transformer-impl transformer_engine
effect convert '^> .*safetensors' --params-dtype bf16
effect convert_native '^> .*model-00002-of' --max-shard-size 20KB
effect convert_steps '^> .*safetensors' --ckpt-step 1
effect convert_over '^< status' --overwrite
effect describe '^> .*hidden-size' --info native
effect info '^> [{]' --json
effect info_bad '^> status' --verify
covers meg-convert convert

# ---- meg-eval ----
printf '{"text":"abc"}\n{"text":"The dog"}\n' >lines
printf '{"text":"ab"}\n' >other.jsonl
bytes='--tokenizer-type GPT2BPETokenizer --vocab-file hf/vocab.json --merge-file hf/merges.txt'
meg-preprocess -q --input lines $bytes --append-eod --output-prefix lines
score() { run meg-eval --load hf --task logprobs --input lines "$@"; }
score_task() {
    [ $# -gt 0 ] || set -- --task logprobs
    run meg-eval --load hf --input lines "$@"
}
ppl() { run meg-eval --load hf --task ppl "$@" <lines; }
ppl_short() { ppl --seq-length 4 "$@"; }
score_steps() { run meg-eval --load steps --task logprobs --input lines "$@"; }
effect score_task '^> .*"ppl"' --task ppl
effect score '^> .*"ids"' --input other.jsonl
effect ppl '^> .*"documents":2' --data-path lines_text_document
effect ppl '^> .*"seq_length":4' --seq-length 4
effect ppl_short '^> .*"overlapping_eval":2' --overlapping-eval 2
covers meg-eval eval
effect score '^> .*"tokens"' --return-tokens
effect score '^> .*"top_logprobs"' --top-n-logprobs 2
covers meg-eval 'token output'
effect score '^> .*"logprobs"' --load steps
effect score_steps '^> .*"logprobs"' --ckpt-step 1
effect score '^> .*"logprobs"' --params-dtype bf16
effect score '^> .*"logprobs"' --bf16
effect score '^> .*"logprobs"' --fp16
covers meg-eval model

# ---- meg-generate ----
printf '{"prompt":"The d"}\n{"prompt":"A cat, a"}\n' >prompts
printf '{"prompt":"x"}\n' >other.jsonl
generate() { run meg-generate --load hf --greedy --tokens-to-generate 8 --input prompts "$@"; }
generate_steps() { run meg-generate --load steps --greedy --tokens-to-generate 8 --input prompts "$@"; }
generate_probs() { generate --return-log-probs "$@"; }
sample() { run meg-generate --load hf --tokens-to-generate 8 --input prompts "$@"; }
effect generate '^> .*"text"' --input other.jsonl
effect generate '^> ' --format text
effect generate '^> .*"ids"' --tokens-to-generate 3
effect generate '^> .*"logprobs"' --return-log-probs
unseen --max-batch-size 'the output of a prompt does not depend on the others: tests/cmd/generate.t'
covers meg-generate generate
effect generate '^> .*"tokens"' --return-tokens
effect generate '^> .*"top_logprobs"' --top-n-logprobs 2
covers meg-generate 'token output'
effect generate '^> .*"ids"' --load steps
effect generate_steps '^> .*"ids"' --ckpt-step 1
effect generate_probs '^> .*"logprobs"' --params-dtype bf16
effect generate_probs '^> .*"logprobs"' --bf16
effect generate_probs '^> .*"logprobs"' --fp16
covers meg-generate model
effect sample '^> .*"ids"' --greedy
effect sample '^> .*"ids"' --temperature 0.2
effect sample '^> .*"ids"' --top_k 2
effect sample '^> .*"ids"' --top_p 0.2
effect sample '^> .*"ids"' --seed 7
covers meg-generate sampling

# ---- the device and the tokenizer of meg-eval and meg-generate ----
# Models without a tokenizer, and the ids of a text with the tokenizer of the options.
train_wide() {
    run meg-train --num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 48 --max-position-embeddings 48 \
        --mock-data --micro-batch-size 1 --train-iters 1 --lr 1e-3 --eval-iters 0 --tokenizer-type NullTokenizer \
        --vocab-size 1999 "$@"
}
train_wide --save wide >log
meg-convert -q --load-dir wide --save-dir wide_hf
rm -f wide_hf/tokenizer_config.json
text='A dog, <extra_id_0> CamelCase 123456!?\\nin the   theThe'
echo "{\"text\":\"$text\"}" >text
echo "{\"prompt\":\"$text\"}" >prompt
# words OPTION...: score a text, or generate a token after a prompt.  numbers: the same for the id 150
words() {
    case $command in
    meg-eval) run meg-eval --load wide_hf --task logprobs --input text "$@" ;;
    *) run meg-generate --load wide_hf --greedy --tokens-to-generate 1 --return-log-probs --input prompt "$@" ;;
    esac
}
words_type() {
    [ $# -gt 0 ] || set -- $bert
    words "$@"
}
words_bert() { words $bert "$@"; }
words_gpt2() {
    words --tokenizer-type GPT2BPETokenizer --vocab-file "$tokenizers/gpt2-vocab.json" \
        --merge-file "$tokenizers/gpt2-merges.txt" "$@"
}
words_spm() { words --tokenizer-type SentencePieceTokenizer --tokenizer-model "$tokenizers/spm-bpe.model" "$@"; }
words_llama2() { words --tokenizer-type Llama2Tokenizer --tokenizer-model "$tokenizers/spm-bpe.model" "$@"; }
words_hf() { words --tokenizer-type HuggingFaceTokenizer --tokenizer-name-or-path "$tokenizers/hf-gpt2" "$@"; }
words_tiktoken() { words --tokenizer-type TikTokenizer --tokenizer-model "$tokenizers/ranks.json" "$@"; }
numbers() { words --tokenizer-type NullTokenizer --vocab-size 100 --input number "$@"; }
special() { words --tokenizer-type TikTokenizer --tokenizer-model "$tokenizers/ranks.json" --return-tokens --input ids "$@"; }
echo '{"ids":[0,1,2,3]}' >ids
for command in meg-eval meg-generate; do
    rm -f .base.words* .base.numbers .base.special
    [ $command = meg-eval ] && key=text || key=prompt
    echo "{\"$key\":\"150\"}" >number
    effect words_type '^> .*"logprobs"' --tokenizer-type HuggingFaceTokenizer --tokenizer-name-or-path "$tokenizers/hf-gpt2"
    effect words_bert '^> .*"logprobs"' --vocab-file vocab.txt
    effect words_gpt2 '^> .*"logprobs"' --merge-file merges.txt
    effect words_spm '^> .*"logprobs"' --tokenizer-model "$tokenizers/spm-unigram.model"
    effect words_hf '^> .*"logprobs"' --tokenizer-name-or-path "$tokenizers/hf-bert"
    effect words_spm '^> .*"logprobs"' --vocab-extra-ids 10
    effect numbers '^< status' --vocab-size 200
    effect words_tiktoken '^> .*"logprobs"' --tiktoken-pattern v1
    effect words_tiktoken '^> .*"logprobs"' --tiktoken-num-special-tokens 900
    if [ $command = meg-eval ]; then
        effect special '^> .*"tokens":."<x>"' --tiktoken-special-tokens '<x>' '<unk>' '<s>' '</s>'
    else
        unseen --tiktoken-special-tokens 'only the text of special ids depends on it, as in the row of meg-eval'
    fi
    effect words_llama2 '^> .*"logprobs"' --megatron-release 0.15
    covers $command tokenizer
    effect words_bert '^> status' --device cuda
    unseen --deterministic-mode 'it selects algorithms of a GPU: make check-gpu'
    covers $command device
done

# ---- meg-vocab ----
printf '%s\n' '{"text":"abab abab cdcd","other":"xyxy"}' >text.jsonl
vocab() {
    rm -rf v w
    run meg-vocab -q --input text.jsonl --vocab-size 264 --output-dir v "$@"
    cksum v/* w/* 2>&1
}
effect vocab '^> .* w/' --output-dir w
effect vocab '^> .*vocab.txt' --tokenizer-type BertWordPieceLowerCase
effect vocab '^> .*v/' --vocab-size 260
effect vocab '^> .*v/' --min-frequency 3
covers meg-vocab vocabulary
effect vocab '^> .*v/' --input in.jsonl
effect vocab '^> .*v/' --input-format text
effect vocab '^> .*v/' --json-keys other
covers meg-vocab input

# ---- options of every command; tests/options.t checks them for each command ----
common() { [ $# -eq 0 ] || run meg-vocab "$@"; }
common_loud() {
    rm -rf v
    run meg-vocab --input text.jsonl --vocab-size 264 --output-dir v "$@"
}
echo 'vocab-size = 260' >config
if [ -z "${MEG_RESET:-}" ]; then # no table of the command has these options
    effect common '^> usage: ' --help
    effect common '^> meg-vocab [0-9]' --version
    effect vocab '^> .*v/' --config config
    effect common '^> vocab-size = 30000' --dump-config
    effect common '^> vocab-size.N.30000' --list-options
    effect common '^> complete ' --completion bash
    effect common_loud '^< meg-vocab: ' --quiet
    effect train_wide '^> meg-train: memory: peak' --verbose
    covers meg-vocab 'every command'
fi

# ---- each group of options of each command is covered by a test ----
# tests/cmd/given_model.t has the options that a command only compares with the checkpoint.
for command in preprocess merge train convert eval generate vocab; do
    meg-$command --list-options | awk -F '\t' '$6 == "" { print $4 }' | sort -u |
        grep -vx -e 'every command' -e ignored -e 'accepted and ignored' -e 'model shape, as in the checkpoint' |
        while read -r group; do
            grep -Eqx " *covers (meg-$command|\\\$command) .*('$group'|$group).*" "$tests"/effects_*.t || echo "meg-$command: $group"
        done
done >groups
is 'each group of options is covered' "$(cat groups)" ''
done_testing
