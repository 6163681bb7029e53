# SPDX-License-Identifier: GPL-2.0
# Sourced by the scripts here: where things are.
# shellcheck shell=bash

set -euo pipefail

# Where root's programs are, which not every root has in its path.
PATH=$PATH:/usr/sbin:/sbin

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kopi

# The kernel series that KOPI is tested on, newest last.
tested_series=(7.2 7.3)

die() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# Keyed by what makes it: a change there makes a new one.
sysroot=$cache/sysroot-$(cat "$top/qemu/packages" "$top/qemu/sysroot" | sha256sum | cut -c1-12)
kernels=$sysroot-kernels
disk=$kernels/sysroot.ext4

# Runs the rest of this script by one process at a time: lock NAME.
lock() {
	mkdir -p "$cache"
	exec 9>"$cache/$1.lock"
	flock 9
}

# Installs a Debian package that has a program, if that isn't here: need PROGRAM PACKAGE
need() {
	command -v "$1" >/dev/null && return
	apt-get update -q >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$2" >&2
}
