#!/usr/bin/perl
# rename_tensors.pl FROM TO CODE: copy a safetensors file.  The Perl code CODE changes $_, the name of a tensor; a tensor
# whose name becomes empty is omitted.
use strict;
use warnings;

my ($from, $to, $code) = @ARGV;
open my $in, '<:raw', $from or die "$from: $!\n";
local $/;
my $file = <$in>;
my $n = unpack 'Q<', $file;
my ($header, $data) = (substr($file, 8, $n), substr($file, 8 + $n));
my (@entries, $kept);

$kept = '';
while ($header =~ /"([^"]+)":\s*(\{[^}]*?)"data_offsets":\s*\[(\d+),\s*(\d+)\]([^}]*\})/g) {
    my ($before, $begin, $end, $after) = ($2, $3, $4, $5);
    local $_ = $1;
    eval $code;
    die $@ if $@;
    next if $_ eq '';
    my $at = length $kept;
    $kept .= substr $data, $begin, $end - $begin;
    push @entries, sprintf '"%s":%s"data_offsets":[%d,%d]%s', $_, $before, $at, length $kept, $after;
}
$header = '{' . join(',', @entries) . '}';
open my $out, '>:raw', $to or die "$to: $!\n";
print $out pack('Q<', length $header), $header, $kept;
close $out or die "$to: $!\n";
