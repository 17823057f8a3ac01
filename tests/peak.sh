# Sourced by tests after lib.sh.  Functions to test the memory that a command uses.
#   sparse_llama DIR LAYERS DTYPE   make a Hugging Face directory of a Llama model with 1000 tokens, hidden size 1024 and
#                                   131072 positions, whose weights are 0 and need no disk space; DTYPE is F32, BF16, F16
#   peak COMMAND...                 run COMMAND and write its peak resident memory in KiB to $T/peak
# skip_unless_peak_is_measured skips all tests on a machine where getrusage has an unknown number, or in a build with a
# sanitizer, which uses memory of its own.
case $(uname -m) in
x86_64) getrusage=98 ;;
aarch64 | riscv64) getrusage=165 ;;
*) getrusage= ;;
esac

skip_unless_peak_is_measured() {
    [ -n "$getrusage" ] || skip_all 'the number of the system call getrusage is not known for this machine'
    if nm "$(command -v meg-generate)" 2>/dev/null | grep -q __asan_init; then
        skip_all 'a sanitizer uses memory of its own'
    fi
}

peak() {
    perl -e '
        my ($number, $file, @command) = @ARGV;
        my $status = system @command;
        my $usage = "\0" x 144;
        syscall($number, -1, $usage) == 0 or die "getrusage: $!\n"; # -1: RUSAGE_CHILDREN
        open my $f, ">", $file or die "$file: $!\n";
        print $f unpack("x32 q", $usage), "\n"; # ru_maxrss follows two timevals
        exit($status >> 8 || $status & 127);' "$getrusage" "$T/peak" "$@"
}

sparse_llama() {
    perl -e '
        my ($dir, $layers, $dtype) = @ARGV;
        my ($h, $f, $v, $at, @entries) = (1024, 2816, 1000, 0);
        sub tensor {
            my ($name, @shape) = @_;
            my $n = $dtype eq "F32" ? 4 : 2;
            $n *= $_ for @shape;
            push @entries, sprintf q("%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}), $name, $dtype,
                join(",", @shape), $at, $at + $n;
            $at += $n;
        }
        tensor("model.embed_tokens.weight", $v, $h);
        for my $i (0 .. $layers - 1) {
            tensor("model.layers.$i.self_attn.${_}_proj.weight", $h, $h) for qw(q k v o);
            tensor("model.layers.$i.mlp.${_}_proj.weight", $f, $h) for qw(gate up);
            tensor("model.layers.$i.mlp.down_proj.weight", $h, $f);
            tensor("model.layers.$i.${_}_layernorm.weight", $h) for qw(input post_attention);
        }
        tensor("model.norm.weight", $h);
        tensor("lm_head.weight", $v, $h);
        my $header = "{" . join(",", @entries) . "}";
        mkdir $dir;
        open my $w, ">:raw", "$dir/model.safetensors" or die "$dir: $!\n";
        print $w pack("Q<", length $header), $header;
        close $w or die "$dir: $!\n";
        truncate "$dir/model.safetensors", 8 + length($header) + $at or die "$dir: $!\n";
        open my $c, ">", "$dir/config.json" or die "$dir: $!\n";
        print $c qq({"model_type":"llama","num_hidden_layers":$layers,"hidden_size":$h,"intermediate_size":$f,),
            qq("num_attention_heads":16,"vocab_size":$v,"max_position_embeddings":131072});
        close $c or die "$dir: $!\n";' "$@"
}
