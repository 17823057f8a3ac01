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

crowded=$(find lib -type d | while read -r dir; do
    n=$(find "$dir" -maxdepth 1 -type f | wc -l)
    [ "$n" -le 31 ] || echo "$dir: $n files"
done)
is 'no directory has more than 31 files' "$crowded" ''
done_testing
