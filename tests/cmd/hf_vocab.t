#!/bin/sh
# modules: ckpt tokenizer
# Hugging Face directories whose tokenizer has more or fewer tokens than the model has rows: meg-eval, meg-generate,
# meg-convert and meg-train use the tokenizer of the directory, and refuse only ids that the model does not have.
. "${0%/*}/../lib.sh"
. "${0%/*}/../facts.sh"
source=$PWD
cd "$T" || exit 1

hf() { # FROM TO: copy the directory FROM to TO, without files of a tokenizer
    mkdir "$2"
    cp "$1/config.json" "$1"/*.safetensors "$2"
}
fill() { # DIR: the ids of a line with a mask, as meg-eval fills the mask
    echo 'a is [MASK].' | meg-eval --task fill-mask --load "$1" 2>err | jq -c .ids
}

# ---- a BERT with as many rows as its vocab.txt has lines, as bert-base-uncased: [BOS] and [EOS] are not in the model

cat >>conf <<'end'
model = bert
num-layers = 1
mask-prob = 0.3
train-iters = 200
lr = 1e-2
end
meg-train -q --config conf --save trained 2>err || cat err
meg-convert -q --load-dir trained --save-dir exported 2>err || cat err
hf exported bert
{
    cat "$bert_vocab"
    printf '[unused1]\n[unused2]\n'
} >bert/vocab.txt
echo '{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}' >bert/tokenizer_config.json
is 'the model has as many rows as vocab.txt has lines' "$(jq .vocab_size bert/config.json)" "$(grep -c . bert/vocab.txt)"
fill exported >want
isnt 'the mask is filled' "$(cat want)" ''
is 'vocab.txt: the mask is filled alike' "$(fill bert)" "$(cat want)"
is 'vocab.txt: no token of the file is outside of the model, so there is no warning' "$(cat err)" ''
is 'vocab.txt of the options: the mask is filled alike' "$(echo 'a is [MASK].' | meg-eval --task fill-mask --load bert \
    --tokenizer-type BertWordPieceLowerCase --vocab-file bert/vocab.txt | jq -c .ids)" "$(cat want)"
status 'vocab.txt: meg-convert converts the directory' 0 meg-convert -q --load-dir bert --save-dir native
is 'vocab.txt: the converted model fills the mask alike' "$(fill native)" "$(cat want)"
tune() { # DIR OPTION...: continue training with the tokenizer of DIR
    dir=$1
    shift
    meg-train --load "$dir" --finetune --use-checkpoint-args --seq-length 16 --micro-batch-size 2 --train-iters 2 \
        --lr 1e-4 --log-interval 1 --eval-iters 0 --split 100,0,0 "$@"
}
for dir in bert native; do
    status "$dir: training continues" 0 tune $dir --data-path facts_text_sentence --save "tuned-$dir"
    is "$dir: the trained model has the rows of the checkpoint" "$(meg-convert --info "tuned-$dir" --json | jq .vocab_size)" 502
done
ok 'both formats continue alike' same_tensors tuned-bert/iter_0000002 tuned-native/iter_0000002

# ---- tokenizer.json beside vocab.txt is the tokenizer, as in transformers

hf bert both
cp bert/vocab.txt both
jq -c '.model.vocab |= (del(.["[BOS]"], .["[EOS]"]) | .["[unused1]"] = 500) | .added_tokens |= map(select(.content |
    test("OS") | not)) + [{id: 501, content: "<new>", single_word: false, lstrip: false, rstrip: false, normalized: false,
    special: true}]' exported/tokenizer.json >both/tokenizer.json
jq -c '{tokenizer_class: "BertTokenizer", do_lower_case: true, mask_token, pad_token, cls_token, sep_token, unk_token}' \
    exported/tokenizer_config.json >both/tokenizer_config.json
is 'tokenizer.json beside vocab.txt: an added token is one id' "$(echo 'a [MASK]<new>' |
    meg-eval --task fill-mask --load both | jq '.ids[3]')" 501
is 'tokenizer.json beside vocab.txt: the mask is filled alike' "$(fill both)" "$(cat want)"
status 'tokenizer.json beside vocab.txt: training continues' 0 tune both --data-path facts_text_sentence

# ---- a GPT with fewer rows than its tokenizer has tokens, as Llama 2 with [PAD]

perl "$source/tests/tiny_gpt2.pl" gpt
meg-convert -q --load-dir gpt --save-dir json --saver hf
hf gpt equal
echo '{"eos_token": "<|endoftext|>"}' >eos.json
cp json/tokenizer.json equal
cp eos.json equal/tokenizer_config.json
cp -r equal less
jq -c '.added_tokens += [{id: 257, content: "[PAD]", single_word: false, lstrip: false, rstrip: false,
    normalized: false, special: true}]' json/tokenizer.json >less/tokenizer.json
printf '{"text":"The cat"}\n' >line
meg-eval --task logprobs --load equal --input line >want
is 'more tokens than rows: a text is scored alike' "$(meg-eval --task logprobs --load less --input line 2>err)" "$(cat want)"
like 'more tokens than rows: the warning has both sizes' "$(cat err)" \
    'less: the tokenizer .* has 258 tokens, but the vocabulary of the model has only 257; text with a token of id 257'
is 'more tokens than rows: the perplexity is alike' "$(meg-eval --task ppl --load less --input line 2>err)" \
    "$(meg-eval --task ppl --load equal --input line)"
is 'more tokens than rows: a text is continued alike' "$(echo The cat | meg-generate --top_k 1 --load less 2>err)" \
    "$(echo The cat | meg-generate --top_k 1 --load equal)"
printf '{"text":"a"}\n{"text":"The [PAD]"}\n' >pad
outside="the text contains the token '\\[PAD\\]', whose id is 257; the vocabulary of the model has ids 0 to 256; remove"
status 'logprobs: a token outside of the model is refused' 65 meg-eval --task logprobs --load less --input pad
like 'logprobs: the message names line, token and id' "$(cat err)" "pad: line 2: $outside"
is 'logprobs: the line before it is scored' "$(jq -c .ids out)" '[97]'
status 'ppl: a token outside of the model is refused' 65 meg-eval --task ppl --load less --input pad
like 'ppl: the message names line, token and id' "$(cat err)" "pad: line 2: $outside"
echo 'The [PAD]' >plain
status 'ppl of a text: a token outside of the model is refused' 65 meg-eval --task ppl --load less --input plain
like 'ppl of a text: the message names token and id' "$(cat err)" "plain: $outside"
status 'meg-generate: a token outside of the model is refused' 65 meg-generate --load less --input plain
like 'meg-generate: the message names line, token and id' "$(cat err)" "plain: line 1: $outside"
status 'meg-convert converts the directory' 0 meg-convert -q --load-dir less --save-dir less-native
is 'the converted model scores the text alike' "$(meg-eval --task logprobs --load less-native --input line 2>err)" "$(cat want)"
meg-preprocess -q --append-eod --input facts.jsonl --tokenizer-type HuggingFaceTokenizer --tokenizer-model less --output-prefix text
meg-preprocess -q --append-eod --input pad --tokenizer-type HuggingFaceTokenizer --tokenizer-model less --output-prefix bad
tune equal --data-path text_text_document >out 2>err
sed -n 's/.*\(lm loss: [^|]*\).*/\1/p' out >want
is 'training continues' "$(grep -c . want)" 2
tune less --data-path text_text_document >out 2>err
is 'more tokens than rows: training continues alike' "$(sed -n 's/.*\(lm loss: [^|]*\).*/\1/p' out)" "$(cat want)"
like 'more tokens than rows: meg-train warns' "$(cat err)" 'has 258 tokens, but the vocabulary of the model has only 257;'
status 'a token outside of the model is refused in training' 65 tune less --data-path bad_text_document --seq-length 4
like 'the message has id and size' "$(cat err)" 'bad_text_document.bin: token id 257 is outside the vocabulary of 257 ids'

# ---- a GPT with more rows than its tokenizer has tokens, as Qwen2

perl "$source/tests/tiny_gpt2.pl" more 272
rm more/vocab.json more/merges.txt
cp equal/tokenizer.json equal/tokenizer_config.json more
status 'more rows than tokens: training continues' 0 tune more --data-path text_text_document --save tuned-more
is 'more rows than tokens: the trained model has the rows of the checkpoint' "$(meg-convert --info tuned-more --json | jq .vocab_size)" 272
status 'more rows than tokens: the run resumes' 0 meg-train --load tuned-more --use-checkpoint-args --seq-length 16 \
    --micro-batch-size 2 --train-iters 3 --lr 1e-4 --eval-iters 0 --split 100,0,0 --data-path text_text_document \
    --override-opt_param-scheduler
tune more --data-path text_text_document --dry-run >out 2>err
like '--dry-run: the model has the rows of the checkpoint' "$(cat out)" ' vocabulary 272$'
like '--dry-run: the number of tokens is printed' "$(cat out)" 'is that of the checkpoint; the tokenizer has 257 tokens'
tune equal --data-path text_text_document --dry-run >out 2>err
unlike '--dry-run: equal sizes are not mentioned' "$(cat out)" 'the tokenizer has'
status 'more rows than tokens: the trained model is exported' 0 meg-convert -q --load-dir tuned-more --save-dir more-out
is 'more rows than tokens: the exported model has all rows' "$(jq .vocab_size more-out/config.json)" 272
is 'more rows than tokens: rows without a token are not sampled' \
    "$(echo 'The cat' | meg-generate --load more --random-seed 1 --tokens-to-generate 40 | jq '.ids | max < 257')" true

# ---- a T5 with more rows than its tokenizer has tokens, which lacks [MASK] and [BOS], as every T5 of the Hub

tokenizers=$golden/../tokenizers
mkdir t5tok
cp "$tokenizers/hf-t5/tokenizer_config.json" t5tok
jq -c '.added_tokens += [range(100) | { id: (400 + .), content: "<extra_id_\(99 - .)>", single_word: false, lstrip: false,
    rstrip: false, normalized: false, special: true }]' "$tokenizers/hf-t5/tokenizer.json" >t5tok/tokenizer.json
t5='--model t5 --num-layers 1 --hidden-size 16 --num-attention-heads 2 --position-embedding-type relative
    --normalization RMSNorm --disable-bias-linear --softmax-scale 1 --activation-func relu --logit-multiplier 0.25
    --max-position-embeddings 64'
steps='--seq-length 64 --decoder-seq-length 64 --micro-batch-size 2 --train-iters 1 --lr 1e-4 --eval-iters 0 --split 100,0,0'
meg-preprocess -q --input facts.jsonl --tokenizer-type PretrainedFromHF --tokenizer-name-or-path t5tok --split-sentences \
    --output-prefix t5 2>err
# shellcheck disable=SC2086 # lists of options
meg-train -q $t5 $steps --tokenizer-type BertWordPieceLowerCase --vocab-file "$bert_vocab" --vocab-extra-ids 26 \
    --data-path facts_text_sentence --save t5-528 >out 2>err || cat err
meg-convert -q --load-dir t5-528 --save-dir t5-hf
hf t5-hf t5-more
cp t5tok/* t5-more
jq '.decoder_start_token_id = 0 | .eos_token_id = 1' t5-hf/config.json >t5-more/config.json
is 'a T5 has more rows than tokens' "$(jq .vocab_size t5-more/config.json)" 528
# shellcheck disable=SC2086 # a list of options
status 'a T5 with its own tokenizer: training continues' 0 meg-train --load t5-more --finetune --use-checkpoint-args $steps \
    --data-path t5_text_sentence --save t5-tuned
is 'a T5 with its own tokenizer: the rows are kept' "$(meg-convert --info t5-tuned --json | jq .vocab_size)" 528
status 'a T5 with its own tokenizer: the result fills spans' 0 sh -c 'echo "a is <extra_id_0>." | meg-eval --task fill-mask --load t5-tuned'
done_testing
