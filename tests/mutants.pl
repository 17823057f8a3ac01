#!/usr/bin/perl
# mutants.pl - draw one-line mutants of the library, and find out which test kills which mutant.
#
#   mutants.pl sample SEED N >TABLE            draw at most N mutants for each module of lib and for cmd
#   mutants.pl apply TABLE DIR                 compile the mutants into the sources of DIR, a copy of this directory
#   mutants.pl kills TABLE DIR TEST... >KILLS  run each test with each mutant that the test executes
#
# All mutants of a table are in one build: a mutated expression becomes `meg_mutant(ID) ? (new) : (old)`, and the
# environment variable MEG_MUTANT selects a mutant by its number.  One run without a mutant finds the mutants that a
# test executes, so that only these are tried.  tests/mutants.sh does all three steps.
#
# A row of TABLE: number, file, operator, how many equal lines of the file precede it, old line, new line.
# A row of KILLS: number, tests that kill the mutant (or "-").  Tests are tried from the fastest to the slowest; a test
# that takes longer than $KILLS_S seconds (default: 2) is tried only with mutants that fewer than $KILLERS tests
# (default: 2) have killed, and a test that takes longer than $MAX_S seconds (default: 30) is not tried.  Kills are
# printed to stderr at once.
use strict;
use warnings;
use Cwd 'getcwd';
use Time::HiRes 'time';

my %operators = (
    compare => [[' < ', ' <= '], [' <= ', ' < '], [' > ', ' >= '], [' >= ', ' > '], [' == ', ' != '], [' != ', ' == ']],
    logic   => [[' && ', ' || '], [' || ', ' && ']],
    add     => [[' + ', ' - '], [' - ', ' + ']],
    scale   => [[' * ', ' + '], [' / ', ' * ']],
);

# Return whether the parentheses of an expression match, and no comma is outside of them.
sub balanced {
    my ($s, $depth) = (shift, 0);
    for ($s =~ /[(),]/g) {
        return 0 if $_ eq ',' && $depth == 0;
        $depth += $_ eq '(' ? 1 : $_ eq ')' ? -1 : 0;
        return 0 if $depth < 0;
    }
    return $depth == 0;
}

# Split a line into the text before its expression, the expression, and the text after it.  Returns () if there is no
# expression that can become a conditional expression.
sub expression {
    local $_ = shift;
    my @part =
        /^(\s+(?:\} else )?(?:if|while) \()(.+)(\)(?: \{)?)$/                                          ? ($1, $2, $3)
      : /^(\s+return )([^;]+)(;)$/                                                                     ? ($1, $2, $3)
      : /^(\s+(?!static|const|return|if|for|while)[\w\s*>.\[\]()+-]*?[\w\]] [-+*|&]?= )([^{;][^;]*)(;)$/ ? ($1, $2, $3)
      :                                                                                                  return ();
    return balanced($part[1]) && $part[1] !~ /"|^\w+$/ ? @part : ();
}

# All mutants of a line: [operator, new line].
sub mutants_of {
    my $line = shift;
    my @found;
    if (my ($before, $e, $after) = expression($line)) {
        for my $name (sort keys %operators) {
            for my $op (@{$operators{$name}}) {
                my ($from, $to) = @$op;
                my $at = index($e, $from);
                next if $at < 0;
                my $new = $e;
                substr($new, $at, length $from) = $to;
                push @found, [$name, "$before$new$after"];
            }
        }
        push @found, ['constant', "$before$1" . ($2 + 1) . "$3$after"] if $e =~ /^(.*?(?<![\w.\[]))(\d+)((?![\w.]).*)$/;
        push @found, ['constant', "${before}false$after"] if $e eq 'true';
        push @found, ['constant', "${before}true$after"] if $e eq 'false';
        push @found, ['never', "$before($e) && 0$after"], ['always', "$before($e) || 1$after"] if $before =~ /if \($/;
    } elsif ($line =~ /^(\s+)(?!return|assert|va_|MEG_|\w*(?:free|close|unlock|prefetch|advise)\()(\w+\(.*\)|continue|break|[\w>.\[\]-]+(?:\+\+|--));$/ && balanced($2)) {
        push @found, ['removed', "$1;"];
    }
    return @found;
}

sub lines_of { my $file = shift; open my $in, '<', $file or die "$file: $!\n"; my @l = <$in>; chomp @l; return @l }

sub sample {
    my ($seed, $n) = @_;
    srand $seed;
    my %modules;
    for my $file (sort glob 'lib/*/*.c lib/*/*/*.c cmd/*/main.c') {
        next if $file =~ m{^lib/(cuda|comm/nccl|cpu/vmath)};
        my ($module) = $file =~ m{^(?:lib/)?(\w+)/};
        my (%seen, $is_in_function);
        my $previous = '';
        for my $line (lines_of($file)) {
            my $nth = $seen{$line}++;
            $is_in_function = 1 if $line eq '{';
            $is_in_function = 0 if $line eq '}';
            # A line that continues another one is not a statement.
            my $is_start = $previous =~ /[;{}:]$|^$|\*\/$/ || $previous =~ /^\s+(\} )?(if|for|while|else).*\)$|else$/;
            if ($is_in_function && $is_start && $line !~ /^\s*(\/\*|\*|#)/) {
                push @{$modules{$module}}, [$file, $_->[0], $nth, $line, $_->[1]] for mutants_of($line);
            }
            $previous = $line;
        }
    }
    my $id = 0;
    for my $module (sort keys %modules) {
        my (@drawn, %used);
        my @all = @{$modules{$module}};
        while (@drawn < $n && @all) {
            my ($m) = splice @all, int rand @all, 1;
            push @drawn, $m unless $used{"$m->[0] $m->[2] $m->[3]"}++;
        }
        print join("\t", ++$id, @$_), "\n" for sort { "@$a[0,3]" cmp "@$b[0,3]" } @drawn;
    }
}

sub table { map { [split /\t/, $_, 6] } lines_of(shift) }

# The line of mutant `id`, which selects between the old and the new line.
sub selecting {
    my ($id, $old, $new) = @_;
    if ($new =~ /^(\s+);$/) {
        my $indent = $1;
        return "$indent\{ if (!meg_mutant($id)) " . $old =~ s/^\s+//r . " }";
    }
    my ($before, $e, $after) = expression($old);
    my $changed = substr $new, length $before, length($new) - length($before) - length $after;
    return "${before}meg_mutant($id) ? ($changed) : ($e)$after";
}

sub apply {
    my ($table, $dir) = @_;
    my %files;
    push @{$files{$_->[1]}}, $_ for table($table);
    for my $file (sort keys %files) {
        my @lines = lines_of("$dir/$file");
        my %seen;
        my @nth = map { $seen{$_}++ } @lines;
        for my $m (@{$files{$file}}) {
            my ($id, undef, undef, $nth, $old, $new) = @$m;
            my ($at) = grep { $lines[$_] eq $old && $nth[$_] == $nth } 0 .. $#lines;
            defined $at or die "$file: mutant $id: the line is no longer in the file; draw mutants again: $old\n";
            $lines[$at] = selecting($id, $old, $new);
        }
        open my $out, '>', "$dir/$file" or die "$dir/$file: $!\n";
        print $out "$_\n" for @lines;
        close $out or die "$dir/$file: $!\n";
    }
}

# Run a test with mutant `id`; 0: none.  Return whether it passes.
sub passes {
    my ($test, $id, $limit_s, $executed) = @_;
    local $ENV{MEG_MUTANT} = $id;
    local $ENV{MEG_MUTANT_SEEN} = $executed;
    local $ENV{TEST_S} = $limit_s;
    delete $ENV{MEG_MUTANT_SEEN} unless defined $executed;
    return system("tests/tap.sh '$test' </dev/null >/dev/null 2>&1") == 0;
}

sub kills {
    my ($table, $dir, @tests) = @_;
    my @mutants = map { $_->[0] } table($table);
    chdir $dir or die "$dir: $!\n";
    my (%time, %executes, %killers);
    for my $test (@tests) {
        my $list = getcwd . "/executed.$$";
        open my $empty, ">", $list or die "$list: $!\n";
        close $empty;
        my $start = time;
        my $is_good = passes($test, 0, 600, $list) && -s $list;
        $time{$test} = time - $start;
        $executes{$test} = { map { $_ => 1 } lines_of($list) } if $is_good;
        print STDERR $is_good ? sprintf("%s: %.1f s, executes %d mutants\n", $test, $time{$test}, scalar keys %{$executes{$test}})
                              : "$test: not tried: it fails, or executes no mutant\n";
        unlink $list;
    }
    my ($fast_s, $enough, $max_s) = ($ENV{KILLS_S} // 2, $ENV{KILLERS} // 2, $ENV{MAX_S} // 30);
    for my $test (sort { $time{$a} <=> $time{$b} } grep { $time{$_} <= $max_s } keys %executes) {
        for my $id (grep { $executes{$test}{$_} } @mutants) {
            next if $time{$test} > $fast_s && @{$killers{$id} // []} >= $enough;
            next if passes($test, $id, int(10 + 5 * $time{$test}));
            push @{$killers{$id}}, $test;
            print STDERR "$id\t$test\n";
        }
    }
    for my $id (@mutants) {
        my @by = map { s{^.*tests/}{}r } @{$killers{$id} // []};
        print "$id\t", @by ? "@by" : (grep { $executes{$_}{$id} } keys %executes) ? '-' : '- (not executed)', "\n";
    }
}

my ($command, @arguments) = @ARGV;
my %commands = (sample => \&sample, apply => \&apply, kills => \&kills);
die "usage: mutants.pl sample SEED N | apply TABLE DIR | kills TABLE DIR TEST...\n" unless $commands{$command // ''};
$commands{$command}->(@arguments);
