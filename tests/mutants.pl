#!/usr/bin/perl
# mutants.pl - draw one-line mutants of the library, and find out which tests kill them.
#
#   mutants.pl sample SEED N >TABLE            draw at most N mutants for each module of lib and for cmd
#   mutants.pl apply TABLE DIR                 compile the mutants into the sources of DIR, a copy of this directory
#   mutants.pl kills TABLE DIR TEST... >TABLE  run tests with the mutants that they execute, and record those that kill
#   mutants.pl kept TABLE DIR TEST... >TABLE   run the recorded killers, and all tests with mutants that none of them kills
#
# All mutants of a table are in one build: a mutated expression becomes `meg_mutant(ID) ? (new) : (old)`, and the
# environment variable MEG_MUTANT selects the mutant of row ID, counted from 1.  One run without a mutant finds the
# mutants that a test executes; only these are tried.  A run ends at the first check that fails.  tests/mutants.sh does
# all steps.
#
# The columns of TABLE, separated by tabs; lines that begin with # are comments:
#   file, operator, number of earlier lines of the file that are equal to the old line, old line, new line,
#   tests that killed the mutant when it was drawn (fastest first; "-": none), other killers, remark
# A new line with the word MUTANT is compiled as it is, with meg_mutant(ID) instead of this word; mutants of the
# operator "hand" are such lines.  A mutant whose remark begins with "equivalent" changes nothing that a user can
# observe, and is not tried.
#
# $JOBS mutants (default: 2) are tried at a time, each with the tests of its module and then with the fastest of the
# others, until $KILLERS tests (default: 2) kill it; a test of more than $KILLS_S seconds (default: 2) is tried only if no
# other test has killed the mutant, and a test of more than $MAX_S seconds is not tried.  $EXECUTED is a directory for
# the times of tests and the mutants that they execute.
use strict;
use warnings;
use POSIX ();
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
    for my $module (sort keys %modules) {
        my (@drawn, %used);
        my @all = @{$modules{$module}};
        while (@drawn < $n && @all) {
            my ($m) = splice @all, int rand @all, 1;
            push @drawn, $m unless $used{"$m->[0] $m->[2] $m->[3]"}++;
        }
        print join("\t", @$_), "\n" for sort { "@$a[0,3]" cmp "@$b[0,3]" } @drawn;
    }
}

# The rows of a table: {id, file, operator, nth, old, new, before, added, remark}.
my @comments; # of the table that was read last
my @columns = qw(file operator nth old new before added remark);
sub table {
    my ($id, @rows);
    my @lines = lines_of(shift);
    @comments = grep { /^#/ } @lines;
    for (grep { !/^#/ } @lines) {
        my %row = (id => ++$id);
        @row{@columns} = map { $_ // '' } (split /\t/, $_, -1)[0 .. $#columns];
        push @rows, \%row;
    }
    return @rows;
}

sub print_table {
    print "$_\n" for @comments;
    print join("\t", @$_{@columns}) =~ s/\t+$//r, "\n" for @_;
}

# The line of mutant `id`, which selects between the old and the new line.
sub selecting {
    my ($id, $old, $new) = @_;
    return $new =~ s/\bMUTANT\b/meg_mutant($id)/gr if $new =~ /\bMUTANT\b/;
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
    push @{$files{$_->{file}}}, $_ for table($table);
    for my $file (sort keys %files) {
        my @lines = lines_of("$dir/$file");
        my %seen;
        my @nth = map { $seen{$_}++ } @lines;
        for my $m (@{$files{$file}}) {
            my ($at) = grep { $lines[$_] eq $m->{old} && $nth[$_] == $m->{nth} } 0 .. $#lines;
            die "mutant $m->{id}: $file lacks this line, or another mutant changes it: $m->{old}\n" unless defined $at;
            $lines[$at] = selecting(@$m{qw(id old new)});
        }
        open my $out, '>', "$dir/$file" or die "$dir/$file: $!\n";
        print $out "$_\n" for @lines;
        close $out or die "$dir/$file: $!\n";
    }
}

# Run a test with mutant `id`; 0: none.  Return "passes", "fails" if one of its checks fails, which ends the test, or
# "ends" if it has another status than 0 or exceeds its limit.
sub outcome {
    my ($test, $id, $limit_s, $executed) = @_;
    my $pid = open my $out, '-|';
    die "fork: $!\n" unless defined $pid;
    if ($pid == 0) {
        $ENV{MEG_MUTANT} = $id;
        $ENV{MEG_MUTANT_SEEN} = $executed if defined $executed;
        open STDIN, '<', '/dev/null';
        open STDERR, '>', '/dev/null';
        exec 'env', '--default-signal=INT,QUIT', 'timeout', '-k', 5, $limit_s, $test;
    }
    while (my $line = <$out>) {
        next unless $line =~ /^not ok/ && $line !~ /^not ok \d+ # SKIP/;
        kill 'TERM', $pid;
        close $out;
        return 'fails';
    }
    return close $out ? 'passes' : 'ends';
}

# Return whether a test kills a mutant.  A test without a failed check must end so twice, because a busy machine may
# delay it.
sub does_kill {
    my ($test, $id, $seconds) = @_;
    my $outcome = outcome($test, $id, int(20 + 5 * $seconds));
    return $outcome eq 'fails' || $outcome eq 'ends' && outcome($test, $id, int(60 + 15 * $seconds)) ne 'passes';
}

# Call function(item) for each item in $JOBS processes, and return the lines that the calls return, in any order.
sub in_parallel {
    my ($function, @items) = @_;
    my @results;
    my ($next_in, $next_out);
    pipe $next_out, $next_in or die "pipe: $!\n";
    # A worker reads the index of its next item, of 4 bytes, from the pipe.
    syswrite $next_in, pack 'N*', 0 .. $#items;
    close $next_in;
    my @workers = map {
        my $pid = open my $out, '-|';
        die "fork: $!\n" unless defined $pid;
        if ($pid == 0) {
            $| = 1;
            while (sysread $next_out, my $index, 4) {
                print $function->($items[unpack 'N', $index]), "\n";
            }
            POSIX::_exit(0);
        }
        $out;
    } 1 .. ($ENV{JOBS} // 2);
    for my $out (@workers) {
        push @results, $_ while <$out>;
    }
    chomp @results;
    return @results;
}

sub record_of { "$ENV{EXECUTED}/" . shift =~ s{/}{,}gr }

# Record which mutants a test executes, and how long it takes.
sub record_executed {
    my $test = shift;
    my $file = record_of($test);
    return $test if -e $file;
    open my $out, '>', "$file.new" or die "$file.new: $!\n";
    my $start = time;
    my $is_good = outcome($test, 0, 600, "$file.new") eq 'passes';
    my $seconds = sprintf '%.1f', time - $start;
    print STDERR "$test: ", $is_good ? "$seconds s\n" : "not tried: it fails\n";
    open $out, '>>', "$file.new" or die "$file.new: $!\n";
    print $out $is_good ? "time $seconds\n" : "failed\n";
    close $out;
    rename "$file.new", $file;
    return $test;
}

sub name_of { shift =~ s{^.*tests/}{}r }
sub killers_of { my $m = shift; grep { $_ ne '-' } split ' ', "$m->{before} $m->{added}" }

# Try tests with mutants.  Return the names of the tests that kill each mutant: id => "TEST ...".
sub try {
    my ($mutants, @tests) = @_;
    my ($fast_s, $max_s, $enough) = ($ENV{KILLS_S} // 2, $ENV{MAX_S} // 1e9, $ENV{KILLERS} // 2);
    my (%time, %executes);
    in_parallel(\&record_executed, @tests);
    for my $test (@tests) {
        my @list = lines_of(record_of($test));
        next unless pop(@list) =~ /^time (.*)/;
        $time{$test} = $1;
        $executes{$_}{$test} = 1 for @list;
    }
    my $kill = sub {
        my $m = shift;
        my @killers;
        my ($module) = $m->{file} =~ m{^(?:lib/)?(\w+)/};
        my %is_near = map { $_ => (name_of($_) =~ /\b$module\b/ ? 1 : 0) } keys %{$executes{$m->{id}}};
        for my $test (sort { $is_near{$b} <=> $is_near{$a} || $time{$a} <=> $time{$b} } keys %is_near) {
            last if @killers >= $enough;
            next if $time{$test} > $max_s || @killers && $time{$test} > $fast_s;
            push @killers, name_of($test) if does_kill($test, $m->{id}, $time{$test});
        }
        print STDERR "$m->{id}\t@killers\n";
        return "$m->{id}\t@killers";
    };
    my %killers = map { split /\t/, $_, 2 } in_parallel($kill, @$mutants);
    $killers{$_->{id}} ||= $executes{$_->{id}} ? '-' : '- (not executed)' for @$mutants;
    return %killers;
}

sub kills {
    my ($table, $dir, @tests) = @_;
    my @mutants = table($table);
    chdir $dir or die "$dir: $!\n";
    my @tried = grep { $_->{remark} !~ /^equivalent/ } @mutants;
    my %killers = try(\@tried, @tests);
    $_->{before} = $killers{$_->{id}} // '-' for @mutants;
    print_table(@mutants);
}

# Return whether one of the recorded killers of each mutant still kills it: id => 1.
sub try_recorded {
    my ($mutants, @tests) = @_;
    my %path = map { name_of($_) => $_ } @tests;
    my %is_recorded = map { $_ => 1 } map { killers_of($_) } @$mutants;
    in_parallel(\&record_executed, grep { $is_recorded{name_of($_)} } @tests);
    return map { split /\t/ } in_parallel(sub {
        my $m = shift;
        for my $test (grep { defined } map { $path{$_} } killers_of($m)) {
            my ($last) = (lines_of(record_of($test)))[-1] =~ /^time (.*)/ or next;
            return "$m->{id}\t1" if does_kill($test, $m->{id}, $last);
        }
        return "$m->{id}\t0";
    }, @$mutants);
}

sub kept {
    my ($table, $dir, @tests) = @_;
    my @mutants = table($table);
    my @tried = grep { $_->{remark} !~ /^equivalent/ } @mutants;
    chdir $dir or die "$dir: $!\n";
    @tried = grep { my $m = $_; grep { /meg_mutant\($m->{id}\)/ } lines_of($m->{file}) } @tried;
    my %dies = try_recorded([grep { killers_of($_) } @tried], @tests);
    # Mutants that no test killed are tried again only with given tests.
    my @given = split ' ', $ENV{OTHERS} // '';
    my @others = grep { !$dies{$_->{id}} && (@given || killers_of($_)) } @tried;
    my %killers = @others ? try(\@others, @given ? @given : @tests) : ();
    my $nlost = 0;
    for my $m (grep { exists $killers{$_->{id}} } @tried) {
        my $killers = $killers{$m->{id}};
        my $is_lost = $killers =~ /^-/ && killers_of($m);
        $nlost += $is_lost;
        printf STDERR "%s: mutant %d of %s: %s: %s\n", $is_lost ? 'DIED BEFORE AND LIVES NOW' : $killers =~ /^-/ ? 'lives' : 'dies',
            @$m{qw(id file new)}, $killers;
        $m->{added} = join ' ', grep { $_ } $m->{added}, $killers if $killers !~ /^-/;
    }
    print_table(@mutants);
    print STDERR scalar(@tried), " mutants, $nlost died before and live now\n";
    exit($nlost > 0);
}

my ($command, @arguments) = @ARGV;
my %commands = (sample => \&sample, apply => \&apply, kills => \&kills, kept => \&kept);
die "usage: mutants.pl sample SEED N | apply TABLE DIR | kills TABLE DIR TEST... | kept TABLE DIR TEST...\n"
    unless $commands{$command // ''};
mkdir $ENV{EXECUTED} if $ENV{EXECUTED};
$commands{$command}->(@arguments);
