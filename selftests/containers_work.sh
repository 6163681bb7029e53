#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs in containers of podman's, of Docker's and of systemd-nspawn's have KOPI sockets with what these give
# by default, and under the policies of the machine: an unprivileged user's server in each answers from outside.

. "$(dirname "$0")/lib.sh"

work=/tmp/containers
image=$work/image
server=(kopi-echo --bind 0.0.0.0:7777)

cleanup() {
	podman rm --all --force --time 0 >/dev/null 2>&1
	bobs_podman rm --all --force --time 0 >/dev/null 2>&1
	# It keeps his user namespace.
	pkill -KILL -x -u bob podman
	end_docker
	in_host nft delete table inet netavark 2>/dev/null
	in_host ip link del podman0 2>/dev/null
	in_host sysctl -qw net.ipv4.ip_forward="$forwards" net.ipv4.conf.default.arp_notify=0
	rm -rf "$work"
}
forwards=$(in_host sysctl -n net.ipv4.ip_forward)
trap cleanup EXIT
mkdir -p "$image"/{proc,sys,dev,tmp,run,etc,usr,root,kopi,libkopi}
ln -s usr/{bin,sbin,lib,lib64} "$image"/
cp /etc/{passwd,group} "$image/etc/"
# In memory, since the machine's own files are on an overlay already; and by no systemd.
podman() {
	in_host env XDG_RUNTIME_DIR=/run podman --root "$work/root" --runroot "$work/run" --cgroup-manager cgroupfs \
		--events-backend none "$@"
}
# Bob's own, without root's help.
bobs_podman() {
	(cd / && in_host setpriv --reuid bob --regid bob --init-groups env HOME="$work/bob" XDG_RUNTIME_DIR="$work/bob/run" \
		podman --root "$work/bob/root" --runroot "$work/bob/run" --cgroup-manager cgroupfs --events-backend none "$@")
}
docker() { in_host docker --host "unix://$work/docker/socket" "$@"; }
start_docker() {
	in_host dockerd --data-root "$work/docker/data" --exec-root "$work/docker/run" --pidfile "$work/docker/pid" \
		--host "unix://$work/docker/socket" --storage-driver overlay2 >"$work/docker/log" 2>&1 &
	wait_for docker info && tar -C "$image" -c . | docker import --change 'CMD ["true"]' - kopi >/dev/null ||
		{ tail -n 20 "$work/docker/log" | sed 's/^/# /'; return 1; }
}
end_docker() {
	[ -e "$work/docker/pid" ] || return
	docker rm --force own >/dev/null 2>&1
	kill "$(<"$work/docker/pid")" && wait_for eval '! pgrep -x "dockerd|containerd" >/dev/null'
	in_host nft delete table ip nat
	in_host nft delete table ip filter
	in_host ip link del docker0
	# With it, bridges of all network namespaces ask iptables.
	modprobe -r br_netfilter
	rmdir /sys/fs/cgroup/docker
}
# Which of these runs containers, and of which file system.
engine=(podman) root=(--rootfs "$image")
# Runs a command in a container with KOPI's programs: run [OPTION...] -- COMMAND...
run() {
	local options=()
	while [ "$1" != -- ]; do options+=("$1") && shift; done
	shift
	"${engine[@]}" run "${options[@]}" -v /usr:/usr:ro -v /kopi/build/cargo/release:/kopi:ro -v /kopi/build/libkopi:/libkopi:ro \
		-e PATH=/kopi:/libkopi/bin:/usr/sbin:/usr/bin "${root[@]}" "$@"
}
# Starts one with a user's server and waits until it answers: serve NAME [OPTION...] [-- COMMAND...]
serve() {
	local name=$1 options=()
	shift
	while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
	shift
	[ $# -gt 0 ] || set -- "${server[@]}"
	run --name "$name" --detach --user 1002 "${options[@]}" -- "$@" >"$work/said" 2>&1 &&
		TENTHS=300 wait_for echoes 7777 hello 2 ||
		{ sed 's/^/# /' "$work/said"; "${engine[@]}" logs "$name" 2>&1 | sed 's/^/# /'; return 1; }
}
end() { "${engine[@]}" rm --force "$1" >/dev/null; }
# Whether what a command says has a text: says TEXT COMMAND...
says() {
	"${@:2}" >"$work/said" 2>&1
	grep -qF -- "$1" "$work/said" || { sed 's/^/# /' "$work/said" && return 1; }
}
refused() { ! "$@"; }
process() { "${engine[@]}" inspect --format '{{.State.Pid}}' "$1"; }
# Runs in the network namespace of a container, as the machine's administrator.
beside() { nsenter --net="/proc/$(process "$1")/ns/net" "${@:2}"; }

check "a container with a network of its own, its port published: a user's server answers" \
	serve own --publish 7777:7777/udp
check "it is under podman's seccomp profile" grep -q "Seccomp:.2" "/proc/$(process own)/status"
check "and has a ring" says '"channel"' beside own kopictl ps --json
check "its administrator sees whose it is, and in which container" \
	says "libpod-$(podman inspect --format '{{.Id}}' own)" beside own kopictl ps
check "inside, too, it is seen" says kopi-echo podman exec own kopictl ps
check "inside, rules can't be changed" says CAP_NET_ADMIN refused podman exec --user 0 own kopictl rule add user bob deny
check "a container in the same pod reaches it" \
	says hello run --rm --network container:own -- bash -c 'exec 3<>/dev/udp/127.0.0.1/7777; echo hello >&3; head -n 1 <&3'
beside own kopictl rule add exe /usr/bin/nobody deny >/dev/null 2>&1
check "the machine's administrator stops it by a rule there" eval \
	"beside own kopictl rule add user bob deny >/dev/null && refused echoes 7777 hello 1"
beside own kopictl rule flush >/dev/null
check "and by nft outside" eval "in_host nft 'add table inet stop { chain f {
	type filter hook forward priority 0; udp dport 7777 drop; }; }' && refused echoes 7777 hello 1"
in_host nft delete table inet stop
check "then it goes on" wait_for echoes 7777 hello 2
end own

check "a container with the machine's network" serve host --network host
end host
# For its first process, which is not the machine's root.
chown 100000:100000 "$image" "$image"/{etc,run,dev}
check "a container in a user namespace" serve mapped --publish 7777:7777/udp --uidmap 0:100000:65536
check "whose user is the one that the machine knows" says 101002 beside mapped kopictl ps --json
end mapped
check "an ordinary program by kopi run" \
	serve program --publish 7777:7777/udp -- kopi run socat UDP-RECVFROM:7777,fork EXEC:cat
check "which has a KOPI socket" says socat beside program kopictl ps
end program

check "where locked memory is short, that is said" says "RLIMIT_MEMLOCK (ulimit -l)" \
	refused run --rm --timeout 20 --ulimit memlock=65536:65536 --user 1002 -- "${server[@]}"
# As some have it for other families.
jq '.syscalls |= map(.names -= ["socket"]) + [{names: ["socket"], action: "SCMP_ACT_ALLOW",
	args: [{index: 0, value: 19, op: "SCMP_CMP_NE"}]}]' \
	/usr/share/containers/seccomp.json >"$work/profile"
check "a seccomp profile can keep KOPI sockets out" says "may not open KOPI sockets" \
	refused run --rm --timeout 20 --user 1002 --security-opt "seccomp=$work/profile" -- "${server[@]}"
sed 's/^/# /' "$work/said"

# Its users are bob, who is root in there, and those that /etc/subuid gives him.
mkdir -p "$work/bob/run" && cp -a "$image" "$work/bob/image" && chown -R bob:bob "$work/bob"
modprobe tun && chmod 666 /dev/net/tun
engine=(bobs_podman) root=(--rootfs "$work/bob/image")
check "a container of an unprivileged user's, whose network is pasta's" serve bobs --user 0 --publish 7777:7777/udp
check "its administrator sees whose it is" says '"user":"bob"' beside bobs kopictl ps --json
check "he has no capability in the machine" says "needs CAP_NET_ADMIN" refused as bob kopictl rule add user bob deny
end bobs
check "one with the machine's network" serve bobs --user 0 --network host
check "is ruled there as bob's" eval 'in_host kopictl rule add user bob deny >/dev/null && refused echoes 7777 hello 1 &&
	in_host kopictl rule flush && wait_for echoes 7777 hello 2'
end bobs

mkdir -p "$work/docker"
engine=(docker) root=(kopi)
check "Docker runs" start_docker
check "a container of Docker's, its port published" serve own --publish 7777:7777/udp
check "it is under Docker's seccomp profile" grep -q "Seccomp:.2" "/proc/$(process own)/status"
check "and has a ring" says '"channel"' beside own kopictl ps --json
check "and is ruled in its network namespace" eval 'beside own kopictl rule add user bob deny >/dev/null && refused echoes 7777 hello 1'
end_docker

systemd-machine-id-setup >/dev/null 2>&1
in_host systemd-nspawn --quiet --register=no --keep-unit --directory="$image" --bind-ro=/usr --bind-ro=/kopi --user bob \
	/kopi/build/cargo/release/kopi-echo --bind 0.0.0.0:7777 >"$work/nspawn" 2>&1 </dev/null &
check "systemd-nspawn: a user's server answers" wait_for echoes 7777 hello 2
check "under its seccomp filter" grep -q "Seccomp:.2" "/proc/$(pgrep -u bob kopi-echo | head -1)/status"
sed 's/^/# /' "$work/nspawn"
pkill -u bob kopi-echo
wait
finish
