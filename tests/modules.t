#!/bin/sh
# Each module includes only its own headers and headers of earlier modules in MODULES of the Makefile.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

modules=$(sed -n ':a; /\\$/ { N; s/\\\n *//; ta; }; s/^MODULES *:= *//p' Makefile)
isnt 'the Makefile lists the modules' "$modules" ''
before=
for module in $modules; do
    before="$before $module"
    [ -d "lib/$module" ] || continue
    forward=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "lib/$module" |
        while IFS=: read -r file line text; do
            path=${text#*\"}
            case " $before " in
            *" ${path%%/*} "*) ;;
            *) echo "$file:$line: $text" ;;
            esac
        done)
    is "lib/$module has no forward dependency" "$forward" ''
done

for dir in lib/*/; do
    [ -d "$dir" ] || continue
    module=$(basename "$dir")
    case " $modules " in
    *" $module "*) ;;
    *) is "lib/$module is in MODULES" missing listed ;;
    esac
done
includes=$(find lib -name '*.[ch]' -exec grep -HoE '^#include "[^"]+"' {} + |
    sed 's!^lib/\([^:]*\):#include "\(.*\)"!\1 \2!')
is 'includes have no cycle' "$(printf '%s\n' "$includes" | tsort 2>&1 >/dev/null)" ''

# List tags and enumerators of headers that are declared more than once.  Two .c files may declare the same name.
twice=$(find lib -name '*.[ch]' | sort | perl -e '
    my (%where, %is_public);
    while (my $file = <STDIN>) {
        chomp $file;
        open my $in, "<", $file or die "$file: $!";
        my $text = do { local $/; <$in> };
        $text =~ s!/\*.*?\*/!!gs;
        my @names;
        push @names, "$1" while $text =~ /\b(?:struct|enum|union)\s+(\w+)\s*\{/g;
        while ($text =~ /\benum\s*\w*\s*\{([^}]*)\}/g) {
            for (split /,/, $1) { push @names, $1 if /^\s*(\w+)/ }
        }
        for (@names) {
            push @{$where{$_}}, $file;
            $is_public{$_} = 1 if $file =~ /h$/;
        }
    }
    for (sort keys %is_public) { print "$_: @{$where{$_}}\n" if @{$where{$_}} > 1 }')
is 'a tag or enumerator of a header is declared once' "$twice" ''

# The first comment of a file of lib is "NAME - what it is".  It may follow the comment that selects instruction sets.
nameless=$(find lib -name '*.[ch]' | sort | perl -ne '
    chomp;
    my ($name) = m!([^/]+)$!;
    open my $in, "<", $_ or die "$_: $!";
    my $text = do { local $/; <$in> };
    $text =~ s!\A/\* isa: [^\n]*\n!!;
    print "$_\n" if $text !~ m!\A/\*\s(?:\s\*\s)?\Q$name\E - !')
is 'each file of lib begins with its name and what it is' "$nameless" ''

# The first includes of a file are its own header, then headers of the system, then headers of the project, without
# blank lines; the last two are in alphabetical order.
unordered=$(find lib cmd -name '*.[ch]' | sort | perl -ne '
    chomp;
    open my $in, "<", $_ or die "$_: $!";
    my $text = do { local $/; <$in> };
    my ($block) = $text =~ /^((?:#include [^\n]*\n(?:\n(?=#include))?)+)/m or next;
    my $own = s!^lib/!!r =~ s!c$!h!r;
    my (@own, @system, @project);
    for (grep { $_ } split /\n/, $block) {
        if ($_ eq "#include \"$own\"") { push @own, $_ }
        elsif (/</) { push @system, $_ }
        else { push @project, $_ }
    }
    print "$_\n" if $block ne join "", map { "$_\n" } @own, sort(@system), sort(@project)')
is 'includes have one order' "$unordered" ''

# A source and its headers, NAME.h and NAME_internal.h, are one file to a reader.
# lib/ckpt/hf_types has one table for each model type of transformers.
crowded=$(find lib -type d ! -name hf_types | while read -r dir; do
    n=$(find "$dir" -maxdepth 1 -type f | sed -E 's!.*/!!; s/(_internal)?\.[^.]*$//' | sort -u | wc -l)
    [ "$n" -le 30 ] || echo "$dir: $n files"
done)
is 'no directory has more than 30 files, counting a source and its headers once' "$crowded" ''
done_testing
