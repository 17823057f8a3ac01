#!/bin/sh
# modules: file
# Commands replace files atomically: of two concurrent runs one fails, and after SIGKILL at any system call the output
# is the old or the new one.  make check runs TRIALS=2 races per command and each STRIDE=16th kill; make check-faults
# runs 200 races and all kills.
. "${0%/*}/lib.sh"
top=$(cd "${0%/*}/.." && pwd)
fault=${B:-build}/tests/fault.so
[ -f "$fault" ] || skip_all 'fault.so is not built: run make check'
: "${TRIALS:=2}" "${STRIDE:=16}"
export OMP_NUM_THREADS=1
cd "$T" || exit 1

# ---- inputs and commands ----

head -c 6000 "$top/LICENSE" | jq -R -c '{text: ., title: .[0:9]}' >text.jsonl || skip_all 'no jq'
mkdir hf && perl "$top/tests/tiny_gpt2.pl" hf || exit 1
cp -r hf hf2
# Create a model with other weights of the same shapes.
perl -e 'open my $f, "+<:raw", "hf2/model.safetensors"; seek $f, -4, 2; print $f pack "f<", 0.5' || exit 1
for n in 1 2; do meg-convert -q --load-dir "hf${n#1}" --saver native --save-dir "native$n" || exit 1; done
mv native1 given1 && mv native2 given2
ids() { meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 999 "$@"; }
printf '{"text":"1 2 3","title":"4"}\n{"text":"5","title":"6 7"}\n' >1.jsonl
printf '{"text":"8 9","title":"10"}\n' >2.jsonl
for n in 1 2; do ids --input $n.jsonl --json-keys text title --output-prefix in$n || exit 1; done
seq 1 200 | paste -s -d ' ' | jq -R -c '{text: .}' | ids --input - --output-prefix train || exit 1

# NAME_run N: write output N (1: old, 2: new).  NAME_state: print the N whose output all readers find, or an error.
vocab_run() { meg-vocab -q --input text.jsonl --vocab-size $((260 + $1)) --output-dir out; }
encode() { meg-preprocess -q --input text.jsonl --output-prefix read "$@" && cksum <read_text_document.bin; }
vocab_state() {
    vocab_got="$(encode --tokenizer-type GPT2BPETokenizer --vocab-file "$1/vocab.json" --merge-file "$1/merges.txt")
$(encode --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$1")"
    for is in 1 2; do [ "$vocab_got" != "$(cat vocab$is.sum 2>/dev/null)" ] || echo $is; done
}
for n in 1 2; do
    vocab_run $n && mv out vocab$n && vocab_state vocab$n >/dev/null && printf '%s\n' "$vocab_got" >vocab$n.sum
done

preprocess_run() { ids --input "$1.jsonl" --json-keys text title --output-prefix out; }
# pair_is PREFIX WANT: true if meg reads the same dataset from both prefixes
pair_is() {
    meg-merge -q --datasets "$1" --output-prefix read && cmp -s read.bin "$2.bin" && cmp -s read.idx "$2.idx"
}
preprocess_state() {
    for is in 1 2; do
        ! { pair_is out_text_document in${is}_text_document && pair_is out_title_document in${is}_title_document; } ||
            echo $is
    done
}

merge_run() { meg-merge -q --datasets "in$1_text_document" --output-prefix out; }
merge_state() { for is in 1 2; do ! pair_is out in${is}_text_document || echo $is; done; }

# weights_of DIR: print a checksum of the weights, converted to the Hugging Face format
weights_of() {
    rm -rf read
    meg-convert --info "$1" --verify >info && meg-convert -q --load-dir "$1" --saver hf --save-dir read &&
        cksum <read/model.safetensors
}
convert_state() {
    convert_got=$(weights_of out)
    for is in 1 2; do [ "$convert_got" != "$(cat weights$is)" ] || echo $is; done
}
for n in 1 2; do weights_of given$n >weights$n || exit 1; done
isnt 'old and new weights differ' "$(cat weights1)" "$(cat weights2)"
isnt 'old and new vocabularies differ' "$(cat vocab1.sum)" "$(cat vocab2.sum)"
hf_run() { meg-convert -q --load-dir "given$1" --saver hf --save-dir out --overwrite; }
hf_state() { convert_state; }
moved_run() { MEG_FAULT_NO_EXCHANGE=1 hf_run "$1"; }
moved_state() { convert_state; }
native_run() { meg-convert -q --load-dir "given$1" --saver native --save-dir out --overwrite; }
native_state() { convert_state; }
mcore_run() { meg-convert -q --load-dir "given$1" --saver mcore --save-dir out --overwrite --target-tensor-parallel-size 2; }
mcore_state() { convert_state; }

train_options="--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 4 --max-position-embeddings 4
    --micro-batch-size 1 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 999 --data-path train_text_document --split 1,0,0
    --eval-iters 0"
# train_run ITERATION: save the checkpoint of ITERATION, which removes the checkpoint of the previous one
# shellcheck disable=SC2086 # words
train_run() { meg-train -q $train_options --save out --load out --keep-last-n 1 --train-iters "$1" \
    --override-opt_param-scheduler >log; }
train_state() { meg-convert --info out --verify --json | jq .iteration; }

# The index cache is built before training.  After any kill the losses equal those of a run without a cache.
cache_run() {
    mkdir -p out
    [ "$1" = 1 ] || trains_on_data --data-cache-path out
}
# shellcheck disable=SC2086 # words
trains_on_data() {
    rm -f losses.jsonl
    meg-train -q $train_options --train-iters 3 --log-interval 1 --log-json losses.jsonl "$@" >log && jq .lm_loss losses.jsonl
}
cache_state() {
    [ "$(trains_on_data --data-cache-path out)" != "$cache_losses" ] || echo 2
}
cache_losses=$(trains_on_data)
like 'a run without an index cache prints three losses' "$(echo $cache_losses)" '^[0-9.]+ [0-9.]+ [0-9.]+$'

# ---- kills ----

# preload: run the commands of this subshell under fault.so
preload() {
    export LD_PRELOAD=fault.so ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0
}
killed_at() { # AT NAME
    (export MEG_FAULT_NAMES=1 MEG_FAULT_AT="$1" MEG_FAULT_ERRNO=KILL && preload && "$2_run" 2) 2>err
}

sweep() { # NAME WHAT
    seen='' at=1
    while [ $at -lt 2000 ]; do
        rm -rf out out.* out_*
        "$1_run" 1 || seen="$seen first-run-fails"
        killed_at $at "$1"
        code=$?
        state=$("$1_state" out 2>read.err)
        case $state in
        1 | 2) ;;
        *) seen="$seen call $at: '$state' $(tail -n 1 read.err);" ;;
        esac
        # The next run must succeed and remove the remaining files.
        "$1_run" 2 2>err || seen="$seen call $at: next run fails: $(cat err);"
        [ "$("$1_state" out 2>/dev/null)" = 2 ] || seen="$seen call $at: the output of the next run is not found;"
        left=$(find . -name '*.tmp.*' -o -name '*.commit' -o -name '*.lock' -o -name .meg-lock)
        [ -z "$left" ] || seen="$seen call $at: files remain: $left;"
        [ $code -ne 0 ] || break
        at=$((at + STRIDE))
    done
    is "$2 old or new after SIGKILL at any call" "$seen" ''
    ok "$((at / STRIDE)) kills were made" test "$at" -gt 40
}
sweep vocab 'the vocabulary of meg-vocab is'
sweep preprocess 'the datasets of meg-preprocess are'
sweep merge 'the dataset of meg-merge is'
sweep hf 'the Hugging Face directory of meg-convert is'
sweep moved 'the Hugging Face directory, without RENAME_EXCHANGE, is'
sweep native 'the checkpoint of meg-convert is'
sweep mcore 'the checkpoint for Megatron is'
sweep train 'the checkpoint of meg-train is'
sweep cache 'the index cache is'

# ---- races ----

# racer A|B NAME: start a run, which tries to acquire the lock; if it succeeds, it waits until the other run has ended
racer() { # A|B NAME
    (export MEG_FAULT_AT=7 MEG_FAULT_ERRNO=WAIT MEG_FAULT_GO="$T/go" && preload && "$2_run" 2) 2>"err.$1"
    echo $? >"status.$1"
}
one_has_ended() { [ -s status.A ] || [ -s status.B ]; }
# one_of_two A B: start two runs; print nothing if one succeeds and the other one fails and names it
one_of_two() { # NAME NAME
    rm -f go status.? err.?
    racer A "$1" &
    racer B "$2" &
    until_true 60 one_has_ended || echo 'neither fails'
    touch go
    wait
    case $(cat status.A)-$(cat status.B) in
    0-74) refused=B winner=$1 ;;
    74-0) refused=A winner=$2 ;;
    *)
        echo "statuses $(cat status.A status.B): $(cat err.A err.B)"
        return
        ;;
    esac
    grep -Eq ': meg-[a-z]+ on host [^ ]+, process [0-9]+, started .* UTC, is writing to this output' err.$refused ||
        cat err.$refused
    one_found=$("${winner}_state" out 2>&1)
    [ "$one_found" = 2 ] || echo "found: $one_found"
}
races() { # NAME WHAT
    i=0 wrong=''
    while [ $i -lt "$TRIALS" ]; do
        i=$((i + 1))
        rm -rf out out.* out_*
        "$1_run" 1
        wrong="$wrong$(one_of_two "$1" "$1" 2>&1)"
    done
    is "one of two concurrent runs of $2 fails and names the other, $i times" "$wrong" ''
}
races vocab meg-vocab
races preprocess meg-preprocess
races merge meg-merge
races hf 'meg-convert to a Hugging Face directory'
races native 'meg-convert to a checkpoint'
races mcore "meg-convert to Megatron's files"
races train meg-train

# Commands that write different outputs in one directory, which is new or empty.
wrong=''
for pair in 'hf train' 'hf vocab' 'hf native' 'native mcore'; do
    for dir in new empty; do
        i=0
        while [ $i -lt $((TRIALS / 2)) ]; do
            i=$((i + 1))
            rm -rf out out.*
            [ $dir = new ] || mkdir out
            # shellcheck disable=SC2086 # two words
            wrong="$wrong$(one_of_two $pair 2>&1 | sed "s/^/$pair, $dir directory: /")"
        done
    done
done
is 'one of two commands that write different outputs in one directory fails and names the other' "$wrong" ''
left=$(find . -name '*.lock' -o -name .meg-lock)
is 'no lock file remains' "$left" ''

# ---- other programs ----

# interrupted AT NAME SCRIPT: run NAME_run 2, and evaluate SCRIPT before call AT; the run's status is in $code
interrupted() {
    rm -f go
    : >calls
    (export MEG_FAULT_AT="$1" MEG_FAULT_ERRNO=WAIT MEG_FAULT_GO="$T/go" MEG_FAULT_LOG="$T/calls" &&
        preload && "$2_run" 2) 2>err &
    until_true 60 eval "[ \"\$(wc -l <calls)\" -ge $1 ]"
    eval "$3"
    touch go
    wait $!
    code=$?
}
for name in hf moved; do
    rm -rf out out.*
    hf_run 1
    interrupted 8 $name 'echo mine >out/mine'
    is "$name: a directory to which another program writes is not replaced" \
        "$code $(cat out/mine) $(rm out/mine && hf_state out)" '2 mine 1'
    like "$name: the message names the file" "$(cat err)" 'out/mine is not a file of a Hugging Face checkpoint'
done
rm -rf out out.* && mkdir out
interrupted 8 hf 'echo mine >out/mine'
is 'a directory that was empty is not replaced either' "$code $(ls out)" '74 mine'
like 'the message says why' "$(cat err)" 'another process wrote to this directory, which was new or empty'

# train_3: save the iterations 1, 2 and 3
# shellcheck disable=SC2086 # words
train_3_run() { meg-train -q $train_options --save out --train-iters 3 --save-interval 1 >log; }
rm -rf out out.*
interrupted 8 train_3 'rm out/.meg-lock'
is 'a run whose lock file was removed saves all iterations' "$code $(echo out/iter_*)" \
    '0 out/iter_0000001 out/iter_0000002 out/iter_0000003'
like 'a warning names the lock file' "$(cat err)" 'out/.meg-lock: this lock file was removed .* created again'
rm -rf out
interrupted 8 train_3 'printf "program meg-train\nhost other\npid 1\n" >out/.meg-lock'
is 'a run ends at the first save after another run acquired its lock' "$code $(echo out/iter_*)" '74 out/iter_*'
like 'the message names the other run' "$(cat err)" \
    'meg-train on host other, process 1, .* is writing to this output; .*; the lock file of this process was removed'
done_testing
