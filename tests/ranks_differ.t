#!/bin/sh
# needs: ranks/comm
# modules: run
# A rank that differs from rank 0 in options, program, data or checkpoint ends the run with a message that names it.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

cat >"$T/conf" <<'EOF'
num-layers = 1
hidden-size = 16
num-attention-heads = 2
seq-length = 8
max-position-embeddings = 8
micro-batch-size = 1
global-batch-size = 6
train-iters = 4
save-interval = 2
lr = 1e-3
split = 1,0,0
data-path = ids_text_document
data-cache-path = cache
tokenizer-type = NullTokenizer
vocab-size = 50
eval-iters = 0
EOF
mkdir "$T/a" "$T/b"
awk 'BEGIN { for (i = 0; i < 40; i++) { s = ""; for (k = 0; k < 9; k++) s = s " " (i * 7 + k * 3) % 50
             print "{\"text\":\"" substr(s, 2) "\"}" } }' >"$T/a/text"
sed '20s/":"[0-9]*/":"1/' "$T/a/text" >"$T/b/text"
for d in a b; do
    meg-preprocess -q --input "$T/$d/text" --tokenizer-type NullTokenizer --vocab-size 50 --output-prefix "$T/$d/ids"
done
mkdir "$T/other"
cp "$(command -v meg-train)" "$T/other/meg-train"
printf x >>"$T/other/meg-train"
cd "$T/a" || exit 1

# each N CODE OPTION...: run meg-train on N ranks in directory a; rank 1 first runs the shell code CODE, in which "$@"
# is the command
each() {
    each_n=$1
    each_one=$2
    shift 2
    ranks_but "$each_n" 1 "$each_one" meg-train -q --config "$T/conf" "$@" >"$T/out" 2>"$T/err"
    each_status=$?
}

# reported NAME STATUS REGEX: check the status and the only message of the last run
reported() {
    is "$1: the status is $2" "$each_status" "$2"
    like "$1: the message names rank and difference" "$(grep '^meg-train' "$T/err")" "$3"
    is "$1: the difference is reported once" "$(grep -c '^meg-train.*differs' "$T/err")" 1
    [ "$each_status" = "$2" ] || sed 's/^/# /' "$T/err"
}

each 2 'cd ../a'
is 'equal ranks train' "$each_status" 0
each 2 'set -- "$@" --data-cache-path other'
is '--data-cache-path may differ' "$each_status" 0
each 3 'set -- "$@" --lr 1e-2'
reported 'another value of an option' 2 '^meg-train\[1\]: rank 1 of 3 on .* differs from rank 0: --lr = 0.01 on rank 1, --lr = 0.001 on rank 0; all ranks must have the same'
each 3 'set -- "$@" --exit-interval 3'
reported 'an option that only one rank has' 2 'rank 1 of 3 .*: --exit-interval = 3 on rank 1, nothing on rank 0'
each 3 : --nonsense 1
is 'an unknown option: the status is 2' "$each_status" 2
is 'an unknown option: reported once' "$(grep '^meg-train' "$T/err")" 'meg-train: unknown option --nonsense'
each 3 'set -- "$@" --nonsense 1'
is 'an unknown option of one rank: the status is 2' "$each_status" 2
is 'an unknown option of one rank: that rank reports it' "$(grep '^meg-train' "$T/err")" 'meg-train[1]: unknown option --nonsense'
each 3 "PATH='$T/other':\$PATH"
reported 'another program' 2 'rank 1 of 3 on .* differs from rank 0: .* bytes, XXH3 .*; all ranks must run the same build'
each 2 'cd ../b'
reported 'another data file' 65 'rank 1 of 2 on .* differs from rank 0: ids_text_document.bin = [0-9]* bytes, XXH3 .*; all ranks must read the same files'
each 2 'cd ../a' --save run
is 'equal ranks save' "$each_status $(cd run && echo iter_*)" '0 iter_0000002 iter_0000004'
cp -r "$T/a/run" "$T/b/run"
cp "$T"/a/ids* "$T/b"
echo 2 >"$T/b/run/latest_checkpointed_iteration.txt"
each 2 'cd ../b' --load run --train-iters 6 --override-opt_param-scheduler
is 'another tracker: all ranks load the iteration that rank 0 opened' "$each_status" 0
echo >>"$T/b/run/iter_0000004/manifest.json"
each 2 'cd ../b' --load run --train-iters 6 --override-opt_param-scheduler
reported 'another checkpoint' 65 'rank 1 of 2 on .* differs from rank 0: .*run.iter_0000004'
done_testing
