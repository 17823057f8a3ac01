#!/usr/bin/perl
# tiny_gpt2.pl DIR [ROWS]: create DIR, a Hugging Face directory of a GPT-2 whose vocabulary is the 256 bytes and
# <|endoftext|> (256).  The word embedding has ROWS rows, by default 257.  It has 2 layers, hidden size 16, 2 heads, 48 positions and pseudo-random weights, which are so large that the
# next-token distributions are far from uniform.
use strict;
use warnings;

my ($dir, $v) = @ARGV;
my ($h, $layers, $heads, $positions) = (16, 2, 2, 48);
$v //= 257;
my $x = 12345;

sub file {
    my ($name, $bytes) = @_;
    open my $f, '>:raw', "$dir/$name" or die "$dir/$name: $!\n";
    print $f $bytes;
    close $f or die "$dir/$name: $!\n";
}

# Return a number that is approximately normal: the sum of twelve uniform numbers, less 6 (Irwin-Hall distribution).
sub normal {
    my $sum = -6;
    for (1 .. 12) {
        $x = ($x * 1103515245 + 12345) % 2147483648;
        $sum += $x / 2147483648;
    }
    return $sum;
}

my (@entries, @data);
my $at = 0;

sub tensor {
    my ($name, $mean, $std, @shape) = @_;
    my $n = 1;
    $n *= $_ for @shape;
    push @data, pack 'f<*', map { $mean + $std * normal() } 1 .. $n;
    push @entries, sprintf '"%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}', $name, join(',', @shape),
        $at, $at + 4 * $n;
    $at += 4 * $n;
}

sub norm {
    my ($name) = @_;
    tensor("$name.weight", 1, 0.1, $h);
    tensor("$name.bias", 0, 0.1, $h);
}

sub linear {
    my ($name, $in, $out) = @_;
    tensor("$name.weight", 0, 0.3, $in, $out);
    tensor("$name.bias", 0, 0.1, $out);
}

mkdir $dir;
tensor('transformer.wte.weight', 0, 0.6, $v, $h);
tensor('transformer.wpe.weight', 0, 0.3, $positions, $h);
for my $i (0 .. $layers - 1) {
    norm("transformer.h.$i.ln_1");
    linear("transformer.h.$i.attn.c_attn", $h, 3 * $h);
    linear("transformer.h.$i.attn.c_proj", $h, $h);
    norm("transformer.h.$i.ln_2");
    linear("transformer.h.$i.mlp.c_fc", $h, 4 * $h);
    linear("transformer.h.$i.mlp.c_proj", 4 * $h, $h);
}
norm('transformer.ln_f');
my $header = '{' . join(',', @entries) . '}';
$header .= ' ' x (-length($header) % 8);
file('model.safetensors', pack('Q<', length $header) . $header . join('', @data));

file('config.json', <<"END");
{ "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
  "n_layer": $layers, "n_embd": $h, "n_inner": null, "n_head": $heads, "n_positions": $positions, "n_ctx": $positions,
  "vocab_size": $v, "layer_norm_epsilon": 1e-05, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
  "bos_token_id": 256, "eos_token_id": 256, "tie_word_embeddings": true }
END

my $next = 0x100;
my @tokens = map {
    my $is_plain = ($_ >= 0x21 && $_ <= 0x7e) || ($_ >= 0xa1 && $_ <= 0xac) || $_ >= 0xae;
    sprintf '"\\u%04x":%d', $is_plain ? $_ : $next++, $_;
} 0 .. 255;
file('vocab.json', '{' . join(',', @tokens, '"<|endoftext|>":256') . "}\n");
file('merges.txt', "#version: 0.2\n");
