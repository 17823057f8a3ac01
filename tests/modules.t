#!/bin/sh
# Each module includes only headers of itself and of earlier modules in MODULES of the Makefile.
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
done_testing
