#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# docs/kopi-rules.service: systemd, booted in a container of its own, loads the module and the rules.

. "$(dirname "$0")/lib.sh"

# A root that is written to, and the machine's own network namespace.
root=/tmp/boot/root release=$(uname -r) init=
clean() {
	[ -z "$init" ] || { kill -9 "$init"; wait "$init"; } 2>/dev/null
	umount -R /tmp/boot && rmdir /tmp/boot
	wait_for eval '! grep -q "populated 1" /sys/fs/cgroup/boot/cgroup.events'
	find /sys/fs/cgroup/boot -depth -type d -exec rmdir {} +
	kopictl rule flush
	kopictl rule default allow
}
trap clean EXIT
mkdir -p /tmp/boot
mount -t tmpfs tmpfs /tmp/boot
mkdir /tmp/boot/{root,upper,work} /sys/fs/cgroup/boot
mount -t overlay -o "lowerdir=/,upperdir=/tmp/boot/upper,workdir=/tmp/boot/work" boot $root
for dir in dev sys; do mount --rbind /$dir $root/$dir && mount --make-rslave $root/$dir; done
for dir in run tmp; do mount -t tmpfs tmpfs $root/$dir; done
# As an administrator does; what the module depends on is loaded.
install -D "../build/$release/kopi.ko" "$root/lib/modules/$release/updates/kopi.ko"
depmod -b $root "$release" 2>/dev/null
install -D -t $root/usr/sbin "$(command -v kopictl)"
install -D -m 644 -t $root/etc/systemd/system ../docs/kopi-rules.service
mkdir -p $root/etc/kopi
echo 'user bob local-port 5432 deny comment "at boot"' >$root/etc/kopi/rules
check "the unit is right" chroot $root systemd-analyze verify --man=no kopi-rules.service
check "and can be enabled" chroot $root systemctl enable kopi-rules

wait_for rmmod kopi
# shellcheck disable=SC2016 # For the inner shell.
unshare --fork --kill-child --pid --mount --uts --ipc --propagation slave bash -c '
	root=$1
	echo 0 >/sys/fs/cgroup/boot/cgroup.procs
	exec unshare --cgroup bash -c "
		mount -t proc proc $root/proc && mount -t cgroup2 cgroup2 $root/sys/fs/cgroup &&
			exec chroot $root env -i container=kopi PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd --log-target=console"
' boot $root >/tmp/boot.log 2>&1 &
init=$!
booted() {
	local pid
	pid=$(pgrep -x systemd) || return
	nsenter -t "$pid" --mount --pid --cgroup --root --wd=/ -- "$@"
}
is_up() { booted systemctl is-system-running | grep -qE 'running|degraded'; }
boots() { for _ in $(seq 12); do wait_for is_up && return; done; sed 's/^/# /' /tmp/boot.log; false; }
check "it boots" boots
check "with the unit" booted systemctl is-active kopi-rules
check "which has loaded the module" [ -d /sys/module/kopi ]
check "and the rules" eval 'kopictl rule list | grep "user bob local-port 5432 comment .at boot. deny"'
check "before there is a network" eval 'booted systemctl show -P Before kopi-rules | grep -q network-pre.target'
echo 'user bob local-port 5432 allow' >$root/etc/kopi/rules
check "a changed file is loaded" eval 'booted systemctl reload kopi-rules && kopictl rule list | grep "5432 allow"'
echo 'user bob port 5432 deny' >$root/etc/kopi/rules
check "a wrong one isn't" eval '! booted systemctl reload kopi-rules && kopictl rule list | grep "5432 allow"'
check "and the journal says why" eval \
	'booted journalctl --no-pager -u kopi-rules | grep "/etc/kopi/rules:1: port is no word of a rule"'
finish
