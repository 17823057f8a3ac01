#!/bin/sh
# modules: preprocess
# meg-preprocess writes the same files as Megatron-LM's preprocess_data.py.
. "${0%/*}/../lib.sh"
indexed=$golden/data/indexed
cd "$T" || exit 1

same() { # NAME INPUT VOCAB-SIZE OPTION...
    name=$1 input=$2 size=$3
    shift 3
    for workers in 1 3; do
        rm -f out_*
        meg-preprocess -q --input "$indexed/$input.jsonl" --tokenizer-type NullTokenizer --vocab-size "$size" \
            --workers "$workers" --output-prefix out "$@"
        ok "$name.bin equals the reference, $workers workers" cmp out_text_document.bin "$indexed/$name.bin"
        ok "$name.idx equals the reference, $workers workers" cmp out_text_document.idx "$indexed/$name.idx"
    done
}
for name in tiny second third mixed; do
    same ${name}_text_document "$name" 1000 --append-eod
done
same big_text_document big 70000 --append-eod
same mixednoeod_text_document mixed 1000
same tiny_partitions3_rr tiny 1000 --append-eod --partitions 3
same tiny_partitions3_seq tiny 1000 --append-eod --partitions 3 --keep-sequential-samples

masked=$golden/data/masked
for workers in 1 3; do
    rm -f sents_*
    meg-preprocess -q --input "$masked/sents.jsonl" --tokenizer-type BertWordPieceLowerCase \
        --vocab-file "$masked/vocab.txt" --workers "$workers" --output-prefix sents
    for ext in bin idx; do
        ok "sentences by WordPiece: .$ext equals the reference, $workers workers" \
            cmp "sents_text_document.$ext" "$masked/sents_text_sentence.$ext"
    done
done

fork=$golden/data/fork
ok 'there are at least nine reference datasets of Megatron-DeepSpeed' test "$(jq length "$fork/datasets.json")" -ge 9
for name in $(jq -r 'keys[]' "$fork/datasets.json"); do
    is "the format of $name is the one that Megatron-DeepSpeed infers" "$(meg-preprocess --info "$fork/$name" --json | jq -r .format)" \
        "$(jq -r ".$name.inferred_impl" "$fork/datasets.json" | sed s/cached/legacy/)"
done
done_testing
