#!/bin/sh
# chroot.sh [GOAL...] - run 'make GOAL' for each GOAL (default: check demo) on a minimal system: a chroot of Debian 12
# with only git, make, gcc and ca-certificates, and a clone of HEAD.  Each GOAL runs in a fresh copy.  Requires root,
# debootstrap, and a mirror that apt is configured for.  The minimal system, the downloaded packages and the copies
# remain in $CHROOT (default: /tmp/meg-chroot).
set -eu
top=$(cd "${0%/*}/.." && pwd)
root=${CHROOT:-/tmp/meg-chroot}
release=bookworm

[ "$(id -u)" -eq 0 ] || { echo "$0: debootstrap and chroot need root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "$0: no debootstrap: apt-get install debootstrap" >&2; exit 1; }
# A mount namespace removes the mounts below when this process ends.
[ -n "${IN_MOUNTS:-}" ] || IN_MOUNTS=1 exec unshare --mount "$0" "$@"

mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
    awk -v r=$release '$1 == r { print $2; exit }')
[ -n "$mirror" ] || { echo "$0: apt has no mirror of $release" >&2; exit 1; }

mkdir -p "$root/archives/partial"
if [ ! -e "$root/bare/.complete" ]; then
    rm -rf "$root/bare"
    debootstrap --variant=minbase --include=git,make,gcc,ca-certificates $release "$root/bare" "$mirror" >"$root/debootstrap.log"
    touch "$root/bare/.complete"
fi

failed=0
[ $# -gt 0 ] || set -- check demo
for goal; do
    new=$root/$goal
    rm -rf "$new"
    cp -a "$root/bare" "$new"
    cp /etc/resolv.conf /etc/hosts "$new/etc/"
    git clone -q "$top" "$new/meg"
    mount -t proc proc "$new/proc"
    mount -t sysfs sysfs "$new/sys" # hwloc reads it
    mount --rbind /dev "$new/dev"
    mount --bind "$root/archives" "$new/var/cache/apt/archives"
    start=$(date +%s)
    status=0
    chroot "$new" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        make -C /meg "$goal" || status=$?
    echo "chroot: make $goal: status $status after $(($(date +%s) - start)) s"
    [ $status -eq 0 ] || failed=1
    umount -l "$new/var/cache/apt/archives" "$new/proc" "$new/sys" "$new/dev"
done
exit $failed
