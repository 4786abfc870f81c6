#!/bin/sh
# debian_packages.sh WHAT PACKAGE...: installs the packages of Debian that WHAT needs and lacks.
#
# That takes root and apt-get. Elsewhere one line says what to install. It never fails: a test that
# needs a missing package skips itself, or fails in CI.
#
# - Debian starts a server as soon as it is installed, and enables it: nginx would be on port 80.
#   Under systemd its unit is masked meanwhile; without systemd, runlevel 1 starts nothing. Then it
#   is disabled. An nginx that was there before is left alone.
# - Nothing is removed: luajit2, which nginx needs, conflicts with the package luajit.
set -u

what=$1
shift
missing=
for package; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "sluicegate: some of $what is skipped without Debian packages: apt-get install$missing"
    exit 0
fi

echo "sluicegate: installing$missing"
case "$missing " in *" nginx "*) is_nginx_new=yes ;; *) is_nginx_new=no ;; esac
case $(systemctl is-system-running 2>/dev/null) in "" | offline) is_systemd=no ;; *) is_systemd=yes ;; esac

leave_nginx_off() {
    if [ $is_systemd = yes ]; then
        systemctl --runtime unmask nginx.service
        systemctl disable nginx.service
    else
        update-rc.d nginx disable
    fi >/dev/null 2>&1
}

if [ $is_nginx_new = yes ]; then
    [ $is_systemd = yes ] && systemctl --runtime mask nginx.service >/dev/null 2>&1
    trap leave_nginx_off EXIT
    trap 'exit 1' HUP INT TERM
fi

export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq >/dev/null 2>&1 # one source of several may be away: what counts is below
# $missing is a list: each word is a package.
if ! said=$(apt-get install -y -qq --no-install-recommends --no-remove \
    -o DPkg::Lock::Timeout=120 $missing 2>&1); then
    reason=$(printf '%s\n' "$said" | grep '^E:' | head -n 1)
    echo "sluicegate: could not install$missing: ${reason:-apt-get failed}"
fi
exit 0
