#!/bin/sh
# modules: data
# meg-merge: merging a directory or given datasets, invalid input, failing writes, reference files.
. "${0%/*}/../lib.sh"

le() { # VALUE BYTES: print a little-endian integer
    le_v=$1 le_n=$2
    while [ "$le_n" -gt 0 ]; do
        printf "\\$(printf '%03o' $((le_v % 256)))"
        le_v=$((le_v / 256)) le_n=$((le_n - 1))
    done
}
dataset() { # NAME TYPE SIZE TOKEN...: write a .bin/.idx pair with one token in each document
    name=$1 code=$2 size=$3
    shift 3
    : >"$name.bin"
    for token; do le "$token" "$size" >>"$name.bin"; done
    {
        printf 'MMIDIDX\0\0'
        le 1 8
        le "$code" 1
        le $# 8
        le $(($# + 1)) 8
        for token; do le 1 4; done
        i=0
        while [ $i -lt $# ]; do le $((i * size)) 8; i=$((i + 1)); done
        i=0
        while [ $i -le $# ]; do le $i 8; i=$((i + 1)); done
    } >"$name.idx"
}

cd "$T" || exit 1
mkdir in
dataset in/b 8 2 1 2
dataset in/a 8 2 3
dataset in/c 8 2
dataset wide 4 4 5 6
dataset want_sorted 8 2 3 1 2
dataset want_given 8 2 1 2 3

status 'a directory is merged' 0 meg-merge --input in --output-prefix sorted
ok 'the tokens are in the order of names' cmp sorted.bin want_sorted.bin
ok 'the index covers all datasets' cmp sorted.idx want_sorted.idx
like 'each dataset read is logged' "$(cat err)" '^meg-merge: in/b: 2 documents, 2 tokens$'
printf '{"text":"1 2 3"}\n{"text":"4"}\n' |
    meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix long --input -
like 'tokens are counted, not sequences' "$(meg-merge --datasets long_text_document --output-prefix longer 2>&1)" \
    '^meg-merge: long_text_document: 2 documents, 4 tokens$'
status 'given datasets are merged' 0 meg-merge -q --datasets in/b in/a --output-prefix given
ok 'the tokens are in the order given' cmp given.bin want_given.bin
ok 'the index is in the order given' cmp given.idx want_given.idx
is '-q logs nothing' "$(cat err)" ''
status 'one dataset is merged' 0 meg-merge --datasets wide --output-prefix one
ok 'a single dataset is copied' cmp one.idx wide.idx

status 'datasets of different token types end with 65' 65 meg-merge --datasets in/b wide --output-prefix x
like 'the message has both types' "$(cat err)" '^meg-merge: wide.idx: the dtype is int32, but the datasets before it have uint16; '
ok 'no output is left' test ! -e x.bin -a ! -e x.idx
is 'no temporary file is left' "$(find . -name '*.tmp.*')" ''

: >in/other.txt
status 'a directory with another file ends with 65' 65 meg-merge --input in --output-prefix x
like 'the message names the other file' "$(cat err)" 'in/other.txt: the name ends in neither .bin nor .idx'
rm in/other.txt
mv in/c.bin c.bin
status 'a missing .bin ends with 66' 66 meg-merge --input in --output-prefix x
like 'the message names both files' "$(cat err)" 'in/c.bin is missing, but in/c.idx exists'
mv c.bin in
mkdir empty
status 'an empty directory ends with 66' 66 meg-merge --input empty --output-prefix x
status 'a missing directory ends with 66' 66 meg-merge --input nowhere --output-prefix x
status 'a missing dataset ends with 66' 66 meg-merge --datasets nowhere --output-prefix x

cp in/b.idx t.idx && printf 1 >t.bin
status 'a truncated .bin ends with 65' 65 meg-merge --datasets t --output-prefix x
like 'the message has both sizes of .bin' "$(cat err)" \
    '^meg-merge: t.bin: 1 bytes, expected 4 for the 2 uint16 tokens of t.idx; '
head -c 60 in/b.idx >t.idx && cp in/b.bin t.bin
status 'a truncated .idx ends with 65' 65 meg-merge --datasets t --output-prefix x
like 'the message has both sizes of .idx' "$(cat err)" '^meg-merge: t.idx: 60 bytes, expected 82 for 2 sequences '

status 'a missing --output-prefix ends with 2' 2 meg-merge --input in
status 'a missing input ends with 2' 2 meg-merge --output-prefix x
status '--input with --datasets ends with 2' 2 meg-merge --input in --datasets wide --output-prefix x
status 'an output inside the input directory ends with 2' 2 meg-merge --input in --output-prefix in/all
status '--multimodal without modes ends with 65' 65 meg-merge --multimodal --datasets wide --output-prefix x
is 'no failed merge leaves a file' "$(find . -name 'x*')" ''

cp given.bin before.bin
(ulimit -f 0; trap '' XFSZ; exec meg-merge --datasets in/a in/b --output-prefix given) 2>err
is 'a full disk ends with 74' $? 74
ok 'the older .bin is unchanged' cmp given.bin before.bin
ok 'the older .idx is unchanged' cmp given.idx want_given.idx
is 'a full disk leaves no temporary file' "$(find . -name '*.tmp.*')" ''

# Let each call of the write path fail once.  Record a letter per call for the final state of the output: older pair
# (o), new pair (n), no index (-), or another state (X); t: a temporary file remains.
is_pair() { cmp -s out.idx "$1.idx" && cmp -s out.bin "$1.bin"; }
sweep() { # HOW OPTION...
    how=$1
    shift
    seen=
    for at in $(seq 50); do
        cp want_given.bin out.bin && cp want_given.idx out.idx
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=$how LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0 \
            meg-merge -q "$@" --output-prefix out
        if is_pair want_given; then state=o
        elif is_pair want_new; then state=n
        elif [ -e out.idx ]; then state=X
        else state=-
        fi
        [ "$how" = KILL ] || [ -z "$(find . -name '*.tmp.*')" ] || state=t
        seen=$seen$state
        rm -f out.*
    done 2>"$T/err"
    case $how in
    KILL) like 'after a kill the pair is old, new or incomplete, never mixed' "$seen" '^o{8,}[-n]*n$' ;;
    *) like "the pair is old or new after a fault ($how)" "$seen" '^(n*o){20}[on]*n$' ;;
    esac
}
dataset more 8 2 7 8 9
dataset want_new 8 2 3 7 8 9
if [ -f "${B:-}/tests/fault.so" ]; then
    for error in ENOSPC EIO KILL; do sweep $error --datasets in/a more; done
    for name in in/a more want_new; do
        cp $name.bin "${name##*/}_m.bin" && cp $name.idx "${name##*/}_m.idx"
    done
    printf '\1' >>a_m.idx && printf '\0\1\1' >>more_m.idx && printf '\1\0\1\1' >>want_new_m.idx
    for name in bin idx; do mv want_new_m.$name want_new.$name; done
    sweep ENOSPC --multimodal --datasets a_m more_m
else
    skip 'a fault at each call' 'fault.so is not built: run make check'
fi

g=$golden/data/indexed
mkdir in_order
for name in second tiny mixed; do cp "$g/${name}_text_document".* in_order; done
meg-merge -q --input in_order --output-prefix merged
ok '.bin equals that of Megatron-LM' cmp merged.bin "$g/merged.bin"
ok '.idx equals that of Megatron-LM' cmp merged.idx "$g/merged.idx"
status 'modes without --multimodal end with 65' 65 meg-merge --datasets "$g/modes" --output-prefix modes
meg-merge -q --multimodal --datasets "$g/modes" --output-prefix modes
ok '--multimodal keeps modes: .idx' cmp modes.idx "$g/modes.idx"
f=$golden/data/fork
meg-merge -q --datasets "$f/mmap1" "$f/mmap2" --output-prefix fork
ok '.bin equals that of Megatron-DeepSpeed' cmp fork.bin "$f/mmap_merged.bin"
ok '.idx equals that of Megatron-DeepSpeed' cmp fork.idx "$f/mmap_merged.idx"
for impl in lazy cached; do
    meg-merge -q --datasets "$f/${impl}1" "$f/${impl}2" --output-prefix parts
    meg-merge -q --datasets "$f/${impl}_merged" --output-prefix complete
    ok "merged $impl files have the tokens of the reference" cmp parts.bin "$f/${impl}_merged.bin"
    ok "merged $impl files equal the merged reference: .idx" cmp parts.idx complete.idx
    is "merged $impl files are written in the current format" "$(head -c 7 parts.idx)" MMIDIDX
    rm -f parts.* complete.*
done
done_testing
