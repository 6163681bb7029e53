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

# A path of the checkout, as it is in the sysroot: entered PATH
entered() { realpath -m "$1" | sed "s|^$top|/kopi|"; }

# QEMU's options, one a line, for a machine with Secure Boot: firmware FOLDER (see packaging/secure-boot). Its disk
# comes after those before it.
firmware() {
	local folder
	folder=$(entered "$1")
	# So that only the firmware can write its variables, where the system has but their interface.
	printf '%s\n' -M q35,smm=on -global driver=cfi.pflash01,property=secure,value=on \
		-drive "if=pflash,unit=0,format=raw,readonly=on,file=$folder/firmware.fd" \
		-drive "if=pflash,unit=1,format=raw,file=$folder/variables.fd" \
		-drive "if=none,id=esp,format=vvfat,read-only=on,dir=$folder/esp" \
		-device virtio-blk-pci,drive=esp,bootindex=0
}
