#!/bin/sh
# meg-merge: both forms, what is refused, and nothing left behind.
. "${0%/*}/../lib.sh"

# dataset NAME CODE HALF...: a .bin/.idx pair, written byte by byte: one token a document
le() { # VALUE BYTES: little-endian, by printf
    le_v=$1 le_n=$2
    while [ "$le_n" -gt 0 ]; do
        printf "\\$(printf '%03o' $((le_v % 256)))"
        le_v=$((le_v / 256)) le_n=$((le_n - 1))
    done
}
dataset() {
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

status 'a folder is merged' 0 meg-merge --input in --output-prefix sorted
ok 'in the order of names' cmp sorted.bin want_sorted.bin
ok 'with an index over all' cmp sorted.idx want_sorted.idx
like 'and says what it read' "$(cat err)" '^meg-merge: in/b: 2 documents, 2 tokens$'
status 'datasets are merged' 0 meg-merge -q --datasets in/b in/a --output-prefix given
ok 'in the order given' cmp given.bin want_given.bin
ok 'with their index' cmp given.idx want_given.idx
is 'quietly with -q' "$(cat err)" ''
status 'one is enough' 0 meg-merge --datasets wide --output-prefix one
ok 'and is copied' cmp one.idx wide.idx

status 'another type of token is corrupt input' 65 meg-merge --datasets in/b wide --output-prefix x
like 'which is named' "$(cat err)" '^meg-merge: wide.idx: tokens are int32, but those of the datasets before it are uint16; '
ok 'and leaves nothing behind' test ! -e x.bin -a ! -e x.idx
is 'not even a temporary file' "$(find . -name '*.tmp.*')" ''

: >in/notes.txt
status 'a stray file is refused' 65 meg-merge --input in --output-prefix x
like 'by name' "$(cat err)" 'in/notes.txt: neither .bin nor .idx'
rm in/notes.txt
mv in/c.bin c.bin
status 'half a pair is missing input' 66 meg-merge --input in --output-prefix x
like 'which half, too' "$(cat err)" 'in/c.bin is missing, but in/c.idx exists'
mv c.bin in
mkdir empty
status 'an empty folder is missing input' 66 meg-merge --input empty --output-prefix x
status 'a folder that is not there, too' 66 meg-merge --input nowhere --output-prefix x
status 'so is a dataset' 66 meg-merge --datasets nowhere --output-prefix x

cp in/b.idx t.idx && printf 1 >t.bin
status 'a truncated .bin is corrupt input' 65 meg-merge --datasets t --output-prefix x
like 'bytes there and bytes due' "$(cat err)" \
    '^meg-merge: t.bin: 1 bytes, expected 4 for the 2 uint16 tokens of t.idx: '
head -c 60 in/b.idx >t.idx && cp in/b.bin t.bin
status 'a truncated .idx is corrupt input' 65 meg-merge --datasets t --output-prefix x
like 'the same for it' "$(cat err)" '^meg-merge: t.idx: 60 bytes, expected 82 for 2 sequences '

status 'no output is a wrong command line' 2 meg-merge --input in
status 'so is no input' 2 meg-merge --output-prefix x
status 'so are two' 2 meg-merge --input in --datasets wide --output-prefix x
status 'so is an output inside of the input' 2 meg-merge --input in --output-prefix in/all
status 'so is --multimodal without modes' 65 meg-merge --multimodal --datasets wide --output-prefix x
is 'none of these wrote a thing' "$(find . -name 'x*')" ''

cp given.bin before.bin
(ulimit -f 0; trap '' XFSZ; exec meg-merge --datasets in/a in/b --output-prefix given) 2>err
is 'a full disk is an I/O error' $? 74
ok 'and what was there before is still there' cmp given.bin before.bin
ok 'with its index' cmp given.idx want_given.idx
is 'and no temporary file' "$(find . -name '*.tmp.*')" ''

# Every call of the write path fails once.  What is then under the final names, a letter a call: the older pair
# (o), the new one (n), no index (-), or something else (X); t: a temporary file is left.
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
    KILL) like 'no pair is mixed when the process is killed' "$seen" '^o{8,}[-n]*n$' ;;
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
ok 'the reference merge: .bin' cmp merged.bin "$g/merged.bin"
ok 'the reference merge: .idx' cmp merged.idx "$g/merged.idx"
status 'modes are not lost unasked' 65 meg-merge --datasets "$g/modes" --output-prefix modes
meg-merge -q --multimodal --datasets "$g/modes" --output-prefix modes
ok 'modes are kept: .idx' cmp modes.idx "$g/modes.idx"
f=$golden/data/fork
meg-merge -q --datasets "$f/mmap1" "$f/mmap2" --output-prefix fork
ok 'the reference merge of Megatron-DeepSpeed: .bin' cmp fork.bin "$f/mmap_merged.bin"
ok 'the reference merge of Megatron-DeepSpeed: .idx' cmp fork.idx "$f/mmap_merged.idx"
for impl in lazy cached; do
    meg-merge -q --datasets "$f/${impl}1" "$f/${impl}2" --output-prefix parts
    meg-merge -q --datasets "$f/${impl}_merged" --output-prefix whole
    ok "$impl files become what we read: .bin" cmp parts.bin "$f/${impl}_merged.bin"
    ok "$impl files become what we read: .idx" cmp parts.idx whole.idx
    is "in our format" "$(head -c 7 parts.idx)" MMIDIDX
    rm -f parts.* whole.*
done
done_testing
