#!/bin/sh
# modules: foreign
# Files and directories of other programs are named, with what was expected and what to do, by each command that opens
# them.
. "${0%/*}/lib.sh"
top=$(cd "${0%/*}/.." && pwd)
cd "$T" || exit 1

# ---- files ----

# Each line: a name, what is found, a part of the remedy, and the bytes for printf.
table() {
    cat <<'end'
lfs|a Git LFS pointer to a file of 4976698672 bytes|git lfs pull|version https://git-lfs.github.com/spec/v1\noid sha256:4665465afa61ae21ef9e40beb1b2f4eb5c1f2d3b3f3e1e7d7b0b5e9c3a4b5c6d\nsize 4976698672\n
hawser|a Git LFS pointer to a file of 12 bytes|git lfs pull|version https://hawser.github.com/spec/v1\noid sha256:4665465a\nsize 12\n
annex|a git-annex pointer|git annex get|/annex/objects/SHA256E-s10--abc.bin\n
7z|a 7z archive|7z x|7z\274\257\047\034\000\004
rar|a RAR archive|unrar x|Rar!\032\007\001\000
zip|a ZIP file|unzip|PK\003\004\024\000\000\000\010\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\005\000\000\000a.txt
npz|a NumPy .npz file|JSON lines|PK\003\004\024\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\005\000\000\000a.npy
torch|a torch.save file|format of Hugging Face|PK\003\004\024\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\020\000\000\000archive/data.pkl
bzip2|bzip2 data|bzip2 -d|BZh91AY&SY\001\002
lz4|lz4 data|lz4 -d|\004\042\115\030\144\100
lzip|lzip data|lzip -d|LZIP\001\014
lzma|LZMA data|xz -d --format=lzma|\135\000\000\200\000\377\377\377\377\377\377\377\377\000
Z|data of compress|gzip -d|\037\235\220\141
zlib|zlib data|pigz -dz|x\234\253V*I\255(Q\262RJT\252\345\252\036\231\034\000)\004NI
snappy|a snappy stream|decompress|\377\006\000\000sNaPpY
parquet|a Parquet file|convert it to JSON lines|PAR1\025\004\025
arrow|an Arrow file|convert it to JSON lines|ARROW1\000\000
stream|an Arrow stream|convert it to JSON lines|\377\377\377\377\020\000\000\000
orc|an ORC file|convert it to JSON lines|ORC\000
avro|an Avro file|convert it to JSON lines|Obj\001\004
sqlite|an SQLite database|convert it to JSON lines|SQLite format 3\000\020
npy|a NumPy .npy file|convert it to JSON lines|\223NUMPY\001\000v\000
pdf|a PDF document|pdftotext|%%PDF-1.7\n
gguf|a GGUF file|of which it is a conversion|GGUF\003\000\000\000\001\000
safetensors|a safetensors file|format of Hugging Face|\002\000\000\000\000\000\000\000{}
hdf5|an HDF5 file|format of Hugging Face|\211HDF\r\n\032\n
onnx|an ONNX model|format of Hugging Face|\010\010\022\007pytorch
pb|a SavedModel of TensorFlow|format of Hugging Face|\010\001\022\200\001\012\000\000
spm|a SentencePiece model|--tokenizer-model|\n\016\n\005<unk>\025\000\000\000\000\030\002
idx|an .idx file of a token dataset|without .idx|MMIDIDX\000\000\001\000\000\000\000\000\000\000\010
oldpt|a torch.save file of PyTorch before 1.6|newer PyTorch|\200\002\212\012\154\374\234\106\371\040\152\250\120\031.\200\002
pickle|a Python pickle|program that wrote it|\200\004\225\001\000\000\000
elf|an ELF program or library|check the name|\177ELF\002\001\001
utf16|UTF-16 text|iconv -f UTF-16 -t UTF-8|\377\376{\000"\000t\000e\000
utf16be|UTF-16 text|iconv -f UTF-16 -t UTF-8|\376\377\000{\000"\000t\000e
utf16le|UTF-16 text|iconv -f UTF-16 -t UTF-8|{\000"\000t\000e\000x\000
utf16be0|UTF-16 text|iconv -f UTF-16 -t UTF-8|\000{\000"\000t\000e\000x
utf32|UTF-32 text|iconv -f UTF-32 -t UTF-8|\377\376\000\000{\000\000\000"\000\000\000
utf32be|UTF-32 text|iconv -f UTF-32 -t UTF-8|\000\000\000{\000\000\000"\000\000\000t\000\000\000e
html|an HTML page|/resolve/|<!DOCTYPE html>\n<html class=""><head></head></html>\n
html2|an HTML page|/resolve/|\n <html>\n<body>Sign in</body></html>\n
xml|an XML document|download the file again|<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>\n
wiki|an XML document|download the file again|\n<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n
hub|an error message of the Hugging Face Hub|download it again|Entry not found
warc|a WARC file|extract its text|WARC/1.0\r\nWARC-Type: warcinfo\r\n
array|a JSON array|jq -c '.[]'|[{"text": "1"}, {"text": "2"}]
array2|a JSON array|jq -c '.[]'|\357\273\277\n[\n {\n  "text": "1"\n }\n]\n
pretty|a JSON object over several lines|jq -c .|{\n  "text": "1"\n}\n{\n  "text": "2"\n}\n
pretty2|a JSON object over several lines|jq -c .|{"text": "a \\" {",\n "b":\n{"c": [\n1]}}\n
binary|binary data, not text|check the name|abc\000\001def
end
}
mkdir files
table | while IFS='|' read -r name found remedy bytes; do
    printf "$bytes" >"files/$name"
done
printf 'text\n' >a.txt
tar -cf files/tar a.txt
printf 'name: x\n' >model_config.yaml
tar -cf files/nemo model_config.yaml
rows() {
    table | cut -d '|' -f 1-3
    echo 'tar|a tar archive|tar -xf'
    echo 'nemo|a NeMo archive|format of Hugging Face'
}

# Run a command on each file, except those named in $skip.  Its message is one line of at most 400 bytes, which begins
# with the path; it names what is found, what is expected, and the remedy.
#   each NAME EXPECTED COMMAND...   FILE in the arguments is replaced by the path
each() {
    each_name=$1 expected=$2 failures=
    shift 2
    rows >rows
    while IFS='|' read -r name found remedy; do
        case " ${skip:-} " in *" $name "*) continue ;; esac
        line=
        for arg; do line="$line '$(printf '%s\n' "$arg" | sed "s!FILE!files/$name!")'"; done
        eval "timeout 20 $line" </dev/null >out 2>err
        r=$?
        message=$(cat err)
        case $message in
        *": files/$name${suffix:-}: found $found, expected $expected; "*"$remedy"*) ;;
        *) failures="$failures
$name: $message" ;;
        esac
        [ $r -eq 65 ] && [ "$(wc -l <err)" -eq 1 ] && [ "$(wc -c <err)" -le 400 ] || failures="$failures
$name: status $r: $message"
    done <rows
    is "$each_name names what it finds" "$failures" ''
}

# Binary formats are refused when the file is opened, and others only where JSON lines are required.
markup='html html2 xml wiki hub warc array array2 pretty pretty2'
null='meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 9 --output-prefix o'
skip="$markup binary" each 'meg-preprocess --input' 'text or JSON lines' $null --input FILE
skip="$markup binary" each 'meg-preprocess --replace-invalid' 'text or JSON lines' $null --replace-invalid --input FILE
skip="$markup binary" each 'meg-vocab --input' 'text or JSON lines' meg-vocab -q --vocab-size 300 --output-dir v --input FILE
texts=$(rows | cut -d '|' -f 1 | grep -vxF "$(printf '%s\n' $markup binary)" | tr '\n' ' ')
skip=$texts each 'meg-preprocess --input of JSON and markup' 'JSON lines' $null --input FILE
skip=$texts each 'meg-vocab --input-format jsonl' 'JSON lines' \
    meg-vocab -q --vocab-size 300 --output-dir v --input-format jsonl --input FILE
skip="$texts html html2 xml wiki hub warc binary" each 'meg-vocab --input of JSON' 'JSON lines' \
    meg-vocab -q --vocab-size 300 --output-dir v --input FILE
ok 'no output is left' test ! -e o_text_document.bin

# Compressed files are identified by their text.
gzip -kc files/tar >a.tar.gz
gzip -kc files/array >array.json.gz
gzip -c files/pdf | gzip -c >twice.gz
for row in 'a.tar.gz|a tar archive' 'array.json.gz|a JSON array' 'twice.gz|gzip data'; do
    for command in "$null --input" 'meg-vocab -q --vocab-size 300 --output-dir v --input'; do
        status "${command%% *} of ${row%|*} ends with 65" 65 $command "${row%|*}"
        like "${command%% *} of ${row%|*} names what it finds" "$(cat err)" "${row%|*}: found ${row#*|}, expected "
    done
done
cat files/array files/tar | $null --input - 2>err
like 'standard input is examined, too' "$(cat err)" 'standard input: found a JSON array, expected JSON lines; convert it to one object per line'
printf '["1", "2"]\n' >line.txt
$null --input line.txt 2>want
status 'meg-vocab does not train on an array in one line' 65 meg-vocab -q --vocab-size 300 --output-dir v --input line.txt
is 'in the words of meg-preprocess' "$(sed 's/^[^:]*//' err)" "$(sed 's/^[^:]*//' want)"
for text in '[1]\nfirst' '["1", "2"' '[text]'; do
    printf "$text\\n" >line.txt
    ok "$text is text" meg-vocab -q --vocab-size 257 --output-dir v --input line.txt
done
printf '{"text":"1"}\n{"text":"\\u00zz"}\n' >bad.jsonl
$null --input bad.jsonl 2>err
like 'an invalid line of JSON lines is named by its number' "$(cat err)" 'bad.jsonl: line 2: byte'
printf '{"text": "1",\n{"text": "2"}\n' >cut.jsonl
$null --input cut.jsonl 2>err
like 'a truncated line of JSON lines is named by its number' "$(cat err)" 'cut.jsonl: line 1: '
printf '{"text": "a long line"\n{"text": "another"}\n' | gzip -c >broken.gz
status 'meg-vocab takes no damaged JSON lines for plain text' 65 meg-vocab -q --vocab-size 300 --output-dir v --input broken.gz
like 'the line is named' "$(cat err)" 'broken.gz: line 1: '
printf '<html>\n{a} [1] x^2 PK BZh PAR1 %%PDF\n' >plain.txt
status 'plain text may contain markup' 0 meg-vocab -q --vocab-size 260 --output-dir v --input plain.txt

# ---- tokenizers ----

# A tokenizer may be JSON, and its other files may be any text.
printf 'hello\n' | meg-vocab -q --vocab-size 260 --output-dir gpt2
words='[PAD] [UNK] [CLS] [SEP] [MASK] a'
printf '%s\n' $words >words.txt
data='--input data.jsonl --output-prefix o'
printf '{"text":"a"}\n' >data.jsonl
no_text='array array2 pretty pretty2 hub binary'
for type in SentencePieceTokenizer GPTSentencePieceTokenizer Llama2Tokenizer; do
    skip="$no_text spm xml wiki warc" each "$type" 'a file of a tokenizer' \
        meg-preprocess -q --tokenizer-type $type --tokenizer-model FILE $data
done
skip="$no_text spm" each TikTokenizer 'a file of a tokenizer' \
    meg-preprocess -q --tokenizer-type TikTokenizer --tokenizer-model FILE $data
for type in BertWordPieceLowerCase BertWordPieceCase; do
    skip="$no_text spm" each $type 'a file of a tokenizer' meg-preprocess -q --tokenizer-type $type --vocab-file FILE $data
done
skip="$no_text spm" each 'vocab.json of GPT2BPETokenizer' 'a file of a tokenizer' \
    meg-preprocess -q --tokenizer-type GPT2BPETokenizer --vocab-file FILE --merge-file gpt2/merges.txt $data
skip="$no_text spm" each 'merges.txt of GPT2BPETokenizer' 'a file of a tokenizer' \
    meg-preprocess -q --tokenizer-type GPT2BPETokenizer --vocab-file gpt2/vocab.json --merge-file FILE $data
mkdir hf
for name in $(rows | cut -d '|' -f 1 | grep -vxF "$(printf '%s\n' $no_text spm)"); do
    mkdir "hf/$name"
    ln -s "../../files/$name" "hf/$name/tokenizer.json"
done
for type in HuggingFaceTokenizer PretrainedFromHF; do
    option=--tokenizer-model
    [ $type = PretrainedFromHF ] && option=--tokenizer-name-or-path
    failures=
    for dir in hf/*; do
        timeout 20 meg-preprocess -q --tokenizer-type $type $option $dir $data 2>err
        [ $? -eq 65 ] && grep -qF "$dir/tokenizer.json: found $(rows | grep "^${dir#hf/}|" | cut -d '|' -f 2), expected a file of a tokenizer; " err ||
            failures="$failures $(cat err)"
    done
    is "$type names what it finds" "$failures" ''
done

# ---- checkpoints ----

for command in 'meg-convert --info FILE' 'meg-eval --task logprobs --load FILE' 'meg-generate --load FILE' \
    'meg-convert --load-dir FILE --save-dir new'; do
    skip="safetensors torch $no_text" each "${command% *}" 'the directory of a checkpoint' $command
done

# The type of tokenizer does not decide whether a pointer is followed, nor how a file is reached.
ln -s lfs files/link
ln -s link files/link2
status 'a symbolic link to a pointer ends with 65' 65 $null --input files/link2
like 'a symbolic link is followed' "$(cat err)" 'files/link2: found a Git LFS pointer to a file of 4976698672 bytes'
mkfifo fifo
status 'a FIFO as tokenizer does not block' 74 timeout 20 meg-preprocess -q --tokenizer-type Llama2Tokenizer --tokenizer-model fifo $data
like 'the FIFO is named' "$(cat err)" 'fifo: found a FIFO, expected a regular file; give the name of a file'
status 'a FIFO as checkpoint does not block' 74 timeout 20 meg-convert --info fifo
like 'the FIFO is named as that of a tokenizer' "$(cat err)" 'fifo: found a FIFO, expected a regular file'

gzip -c files/nemo >y.nemo
meg-convert --info y.nemo 2>err
like 'a compressed .nemo file is named' "$(cat err)" 'y.nemo: found a NeMo archive, expected the directory of a checkpoint; export the model with NeMo'

# Each line: a directory, what is found, a part of the remedy, and files or directories in it.
folders() {
    cat <<'end'
deepspeed|a DeepSpeed checkpoint (global_step100)|zero_to_fp32.py|latest latest_checkpointed_iteration.txt global_step20/ global_step100/
step|a DeepSpeed checkpoint (zero_pp_rank_0_mp_rank_00_optim_states.pt)|zero_to_fp32.py|mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_00_optim_states.pt
bloom|a DeepSpeed checkpoint (mp_rank_00_model_states.pt)|deepspeed_to_megatron.py|layer_01-model_00-model_states.pt mp_rank_00_model_states.pt
zero3|a DeepSpeed checkpoint (global_step500)|zero_to_fp32.py|config.json global_step500/ zero_to_fp32.py
lora|an adapter of PEFT (adapter_config.json)|merge it into some/base with merge_and_unload() of peft|adapter_config.json adapter_model.safetensors tokenizer.json
lora2|an adapter of PEFT (adapter_model.bin)|merge it into its base model with|adapter_model.bin
meta|weights of Meta (consolidated.00.pth)|convert_llama_weights_to_hf|params.json consolidated.00.pth
mistral|weights of Mistral (consolidated.safetensors)|config.json, model*.safetensors|params.json consolidated.safetensors
gguf|a GGUF model (model.gguf)|of which it is a conversion|model.gguf
nemo|a NeMo model (model_weights.ckpt)|with NeMo|model_weights.ckpt
nemo2|a NeMo model (context)|with NeMo|context/ weights/
onnx|an ONNX model (model.onnx)|of which it is an export|config.json model.onnx
flax|weights of Flax (flax_model.msgpack)|from_flax=True|config.json flax_model.msgpack
tf|weights of TensorFlow (tf_model.h5)|from_tf=True|config.json tf_model.h5
tf1|weights of TensorFlow (bert_model.ckpt.index)|from_tf=True|bert_config.json bert_model.ckpt.data-00000-of-00001 bert_model.ckpt.index
saved|weights of TensorFlow (saved_model.pb)|from_tf=True|saved_model.pb variables/
orbax|an Orbax checkpoint of JAX (_METADATA)|convert the model|_METADATA d/ manifest.ocdbt
litgpt|weights of LitGPT (lit_model.pth)|litgpt|lit_model.pth
diffusers|a Diffusers pipeline (model_index.json)|language model|model_index.json unet/
trainer|an output directory of Trainer (checkpoint-1000)|use folders/trainer/checkpoint-1000|checkpoint-500/ checkpoint-1000/ trainer_state.json
hub|a cache of the Hugging Face Hub (models--a--b)|use folders/hub/models--a--b|models--a--b/ version.txt
dist|a distributed checkpoint without .metadata (*.distcp)|--ckpt-step|common.pt __0_0.distcp
common|a distributed checkpoint without .metadata (common.pt)|copy the checkpoint again|common.pt
pointers|weights without config.json (model.safetensors)|add the config.json|model.safetensors README.md
end
}
folders | while IFS='|' read -r name found remedy files; do
    for file in $files; do
        mkdir -p "folders/$name/$file"
        case $file in */) ;; *) rmdir "folders/$name/$file" && : >"folders/$name/$file" ;; esac
    done
    [ ! -e "folders/$name/config.json" ] || echo '{"model_type":"gpt2","vocab_size":4,"n_positions":4,"n_embd":4,"n_layer":1,"n_head":1}' >"folders/$name/config.json"
done
echo 100 >folders/deepspeed/latest_checkpointed_iteration.txt
echo '{"peft_type":"LORA","base_model_name_or_path":"some/base","r":8}' >folders/lora/adapter_config.json
each_folder() { # NAME COMMAND...   FOLDER in the arguments is replaced
    each_name=$1 failures=
    shift
    folders >rows
    while IFS='|' read -r name found remedy files; do
        line=
        for arg; do line="$line '$(printf '%s\n' "$arg" | sed "s!FOLDER!folders/$name!")'"; done
        eval "timeout 20 $line" </dev/null >out 2>err
        r=$?
        case $r-$(cat err) in
        65-*": folders/$name: found $found, expected a checkpoint of meg, Megatron-LM or Hugging Face; "*"$remedy"*) ;;
        *) failures="$failures
$name: status $r: $(cat err)" ;;
        esac
        [ "$(wc -l <err)" -eq 1 ] && [ "$(wc -c <err)" -le 400 ] || failures="$failures
$name: $(wc -c <err) bytes"
    done <rows
    is "$each_name names the directory" "$failures" ''
}
each_folder meg-convert meg-convert --info FOLDER
each_folder meg-eval meg-eval --task logprobs --load FOLDER
each_folder meg-generate meg-generate --load FOLDER
tiny='--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8
    --micro-batch-size 1 --tokenizer-type NullTokenizer --vocab-size 9 --mock-data --train-iters 1'
each_folder meg-train meg-train -q $tiny --load FOLDER
meg-train -q $tiny --load empty 2>err
like 'a directory without a checkpoint is only a warning in training' "$(cat err)" 'the directory contains no checkpoint; training from scratch'

status 'a missing checkpoint ends with 66' 66 meg-convert --info some/model
like 'models are not downloaded' "$(cat err)" 'some/model: found no such directory, expected a checkpoint; check the name: models are not downloaded'
mkdir none
status 'an empty directory ends with 66' 66 meg-convert --info none
like 'the files of a checkpoint are listed' "$(cat err)" 'none: found none of latest_checkpointed_iteration.txt, .*config.json, expected a checkpoint'

# ---- what can be read is read ----

mkdir -p cache/models--a--b/snapshots cache/models--a--b/refs
snapshots=cache/models--a--b/snapshots
mkdir real $snapshots/0123456789abcdef
perl "$top/tests/tiny_gpt2.pl" real
for file in real/*; do ln -s "../../../../$file" $snapshots/0123456789abcdef; done
want=$(meg-convert --info real | grep -v '^path')
for path in cache/models--a--b cache/models--a--b/ $snapshots; do
    is "the only snapshot of $path is read" "$(meg-convert --info $path | grep -v '^path' | sed "s!$snapshots/0123456789abcdef!real!")" "$want"
done
mkdir $snapshots/fedcba9876543210
status 'several snapshots end with 65' 65 meg-convert --info cache/models--a--b
like 'the snapshots are named' "$(cat err)" "$snapshots: found 2 snapshots of the Hugging Face Hub, expected one; use the directory of one of them: 0123456789abcdef, fedcba9876543210"
printf 0123456789abcdef >cache/models--a--b/refs/main
status 'of several snapshots, the one of refs/main is read' 0 meg-convert --info cache/models--a--b
cp gpt2/tokenizer.json $snapshots/0123456789abcdef
echo '{"text":"hello"}' >hello.jsonl
for path in cache/models--a--b $snapshots; do
    status "the tokenizer of a snapshot is read from $path" 0 \
        meg-preprocess -q --tokenizer-type HuggingFaceTokenizer --tokenizer-model $path --input hello.jsonl --output-prefix s
    isnt "the tokenizer in $path encodes text" "$(meg-preprocess --decode s_text_document --tokenizer-type HuggingFaceTokenizer --tokenizer-model $path)" ''
done
printf none >cache/models--a--b/refs/main
status 'several snapshots with a tokenizer end with 65' 65 \
    meg-preprocess -q --tokenizer-type HuggingFaceTokenizer --tokenizer-model cache/models--a--b --input hello.jsonl --output-prefix s
like 'they are named' "$(cat err)" "$snapshots: found 2 snapshots of the Hugging Face Hub, expected one"
status 'a file of a checkpoint ends with 65' 65 meg-convert --info real/model.safetensors
like 'the directory is named' "$(cat err)" 'real/model.safetensors: found a safetensors file, expected the directory of a checkpoint; use the directory real$'
status 'a configuration as checkpoint ends with 65' 65 meg-convert --info real/config.json
like 'its directory is named' "$(cat err)" 'real/config.json: found a file, expected the directory of a checkpoint; use the directory real$'

# ---- files of checkpoints and datasets ----

for name in html utf16 gguf torch hdf5 zip; do
    mkdir bad
    cp real/* bad
    cp files/$name bad/model.safetensors
    meg-convert --info bad 2>err
    like "model.safetensors: $name" "$(cat err)" "bad/model.safetensors: found $(rows | grep "^$name|" | cut -d '|' -f 2), expected a safetensors file; "
    mv bad/model.safetensors bad/pytorch_model.bin
    [ $name = torch ] || [ $name = zip ] || {
        meg-convert --info bad 2>err
        like "pytorch_model.bin: $name" "$(cat err)" "bad/pytorch_model.bin: found $(rows | grep "^$name|" | cut -d '|' -f 2), expected a torch.save file; "
    }
    cp files/$name bad/config.json
    meg-convert --info bad 2>err
    like "config.json: $name" "$(cat err)" "bad/config.json: found $(rows | grep "^$name|" | cut -d '|' -f 2), expected JSON; "
    rm -r bad
done
cp -r real bad
cp files/lfs bad/model.safetensors
meg-convert --info bad 2>err
like 'weights that are a Git LFS pointer are named' "$(cat err)" 'bad/model.safetensors: found a Git LFS pointer to a file of 4976698672 bytes, expected the file itself; download the file: git lfs pull'
printf '{"text":"1 2"}\n' | $null --input -
for name in lfs html parquet tar gguf; do
    found=$(rows | grep "^$name|" | cut -d '|' -f 2)
    cp o_text_document.bin d.bin
    cp files/$name d.idx
    meg-merge --datasets d --output-prefix m 2>err
    like "meg-merge names .idx: $name" "$(cat err)" "d.idx: found $found, expected "
done
cp o_text_document.idx d.idx
cp files/lfs d.bin
meg-merge --datasets d --output-prefix m 2>err
like 'meg-merge names .bin' "$(cat err)" 'd.bin: found a Git LFS pointer to a file of 4976698672 bytes, expected the file itself; download the file: git lfs pull'
# A file or directory instead of the name of a dataset, and text files with a syntax of meg.
train="meg-train -q $(echo "$tiny" | sed 's/--mock-data//') --lr 0.1"
for command in 'meg-merge --output-prefix m --datasets' "$train --split 100,0,0 --data-path"; do
    $command files/lfs 2>err
    like "${command%% *} names a pointer instead of a dataset" "$(cat err)" 'files/lfs: found a Git LFS pointer to a file of 4976698672 bytes, expected JSON lines; '
    $command files/array 2>err
    like "${command%% *} names JSON instead of a dataset" "$(cat err)" 'files/array: found a JSON array, expected JSON lines; convert it'
    status "${command%% *} of a directory instead of a dataset ends with 66" 66 $command real
    like "${command%% *} names a directory instead of a dataset" "$(cat err)" 'real: found a directory, expected a token dataset; give the name of a .bin file in it, without .bin'
done
status 'meg-merge of a file instead of a directory ends with 66' 66 meg-merge --output-prefix m --input data.jsonl
like 'the file is named' "$(cat err)" 'data.jsonl: found a file, expected a directory of token datasets; give names of datasets with --datasets'
for option in --config --data-args-path --train-weighted-split-paths-path; do
    $train $option files/utf16 2>err
    like "$option names UTF-16" "$(cat err)" 'files/utf16: found UTF-16 text, expected a text file; convert it: iconv -f UTF-16 -t UTF-8'
done

for command in 'meg-generate --load real --input' 'meg-eval --task logprobs --load real --input' 'meg-eval --task ppl --load real --input'; do
    $command files/lfs 2>err
    like "$command names a pointer" "$(cat err)" 'files/lfs: found a Git LFS pointer to a file of 4976698672 bytes, expected text or JSON lines; '
    $command files/tar 2>err
    like "$command names an archive" "$(cat err)" 'files/tar: found a tar archive, expected text or JSON lines; '
    status "$command of a directory ends with 74" 74 $command real
    like "$command of a directory names it" "$(cat err)" 'real: found a directory, expected a file or a pipe; give the name of a file'
done
for task in logprobs ppl; do
    for name in pretty pretty2 array2; do
        status "meg-eval --task $task of JSON that is not lines ends with 65: $name" 65 meg-eval --task $task --load real --input files/$name
        like "meg-eval --task $task names it: $name" "$(cat err)" "files/$name: found $(rows | grep "^$name|" | cut -d '|' -f 2), expected JSON lines; convert it to one object per line"
    done
done
gzip -c files/pretty >pretty.gz
meg-eval --task ppl --load real --input pretty.gz 2>err
like 'meg-eval names JSON in gzip data' "$(cat err)" 'pretty.gz: found a JSON object over several lines, expected JSON lines; '
meg-generate --load real --input files/pretty 2>err
like 'meg-generate names JSON' "$(cat err)" 'files/pretty: found a JSON object over several lines, expected JSON lines; '
status 'meg-preprocess of a directory ends with 74' 74 $null --input real
like 'the directory is named as by meg-eval' "$(cat err)" 'real: found a directory, expected a file or a pipe; give the name of a file'

done_testing
