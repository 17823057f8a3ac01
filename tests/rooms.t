#!/bin/sh
# A room includes itself and the rooms before it in ROOMS of the Makefile, and no other.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1

rooms=$(sed -n 's/^ROOMS *:= *//p' Makefile)
isnt 'the Makefile lists the rooms' "$rooms" ''
before=
for room in $rooms; do
    before="$before $room"
    [ -d "lib/$room" ] || continue
    forward=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "lib/$room" |
        while IFS=: read -r file line text; do
            path=${text#*\"}
            case " $before " in
            *" ${path%%/*} "*) ;;
            *) echo "$file:$line: $text" ;;
            esac
        done)
    is "lib/$room looks only back" "$forward" ''
done

for dir in lib/*/; do
    [ -d "$dir" ] || continue
    room=$(basename "$dir")
    case " $rooms " in
    *" $room "*) ;;
    *) is "lib/$room is in ROOMS" missing listed ;;
    esac
done
done_testing
