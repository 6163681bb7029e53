#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The Python package does what a UDP socket does, in batches, too, and for asyncio; its wheel can be installed;
# a full send buffer loses nothing; its example answers dig; without the module it says so.

. "$(dirname "$0")/lib.sh"

package=$here/../tools/python
export PYTHONDONTWRITEBYTECODE=1 KOPI_LIBRARY=$here/../build/libkopi/lib/libkopi.so.1

mkdir /tmp/wheel /tmp/installed
check "the wheel is built, twice the same" eval \
	'python3 $package/wheel.py /tmp/wheel >/dev/null && sum=$(sha256sum </tmp/wheel/*.whl) &&
	python3 $package/wheel.py /tmp/wheel >/dev/null && [ "$sum" = "$(sha256sum </tmp/wheel/*.whl)" ]'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../tools/Cargo.toml")
check "it has the version of all else: $version" [ -e "/tmp/wheel/kopi-$version-py3-none-any.whl" ]
check "it can be unpacked" python3 -m zipfile -e /tmp/wheel/kopi-*.whl /tmp/installed
export PYTHONPATH=/tmp/installed

# Runs the tests as a user: tests USER
tests() {
	cp "$package/tests/"test_*.py /tmp/
	(cd /tmp && setpriv --reuid "$1" --regid "$1" --clear-groups python3 -W ignore -m unittest test_kopi test_endpoint test_goes_on) >/tmp/tests.out 2>&1
	ended=$?
	[ $ended = 0 ] || sed 's/^/# /' /tmp/tests.out
	check "the tests pass, as $1" [ $ended = 0 ]
	check "there are tests, and none is left out" eval \
		'grep -q "^Ran [5-7][0-9] tests" /tmp/tests.out && grep -qx OK /tmp/tests.out'
}
# The fields of a struct of a header: fields HEADER STRUCT
fields() {
	sed -n "/^struct $2 {/,/^}/p" "$1" | sed 's|/\*.*||' |
		sed -nE 's/^\t[^;*]*[ \t*]([a-z_]+)(\[[0-9]+\])?;.*/\1/p' | paste -sd ' '
}
for struct in kopi_meta:Meta:uapi/kopi.h kopi_stats:Stats:uapi/kopi.h \
	kopi_frame:Frame:tools/libkopi/include/kopi.h kopi_options:Options:tools/libkopi/include/kopi.h; do
	IFS=: read -r name class header <<<"$struct"
	check "$class has the fields of struct $name" [ "$(fields "$here/../$header" "$name")" = \
		"$(python3 -P -c "from kopi import _library; print(*(name for name, _ in _library.$class._fields_))")" ]
done
tests root
tests bob

# A loopback device that sends a datagram of the tests in 40 ms.
slowly() {
	unshare --net bash -ec 'ip link set lo up
		tc qdisc add dev lo root tbf rate 200kbit burst 2000 limit 1m
		cd /tmp && exec python3 -W ignore -m unittest test_full_buffer' >/tmp/slow.out 2>&1 ||
		{ sed 's/^/# /' /tmp/slow.out && false; }
}
check "what a full send buffer has no room for isn't lost" slowly

printf '192.0.2.77 printer.example printer\n2001:db8::7 six.example\n' >/tmp/hosts
nsenter --net=/run/netns/host "$package/examples/dns.py" 192.0.2.1 5353 /tmp/hosts >/tmp/dns.out 2>&1 &
server=$!
asks() { in_peer dig +short +tries=3 +time=10 -p 5353 @192.0.2.1 "$@"; }
check "the DNS server starts" wait_for grep -q "listening on 192.0.2.1 port 5353, 2 names" /tmp/dns.out
check "dig gets an address" [ "$(asks printer.example)" = 192.0.2.77 ]
check "in capitals, too" [ "$(asks PRINTER.Example)" = 192.0.2.77 ]
check "no other type" [ -z "$(asks -t AAAA printer.example)" ]
check "other names don't exist" eval \
	'in_peer dig +tries=3 +time=10 -p 5353 @192.0.2.1 nobody.example | grep -q "status: NXDOMAIN"'
# Three questions that it finds together, when it goes on: one of them is from nobody.
received() { in_host kopictl stats --json | jq .stats.rx_packets; }
at_least() { [ "$(received)" -ge "$1" ]; }
kill -STOP $server
before=$(received)
in_peer dig +short +tries=1 +time=60 -p 5353 @192.0.2.1 printer >/tmp/first.out &
first=$!
check "a question comes" wait_for at_least $((before + 1))
# printer, A, IN
printf '\0\1\1\0\0\1\0\0\0\0\0\0\7printer\0\0\1\0\1' | from_port_0 5353
check "and one from port 0" wait_for at_least $((before + 2))
in_peer dig +short +tries=1 +time=60 -p 5353 @192.0.2.1 printer.example >/tmp/last.out &
last=$!
check "and another one" wait_for at_least $((before + 3))
kill -CONT $server
wait $first $last
check "port 0 ends no server, and takes no answer away" [ "$(cat /tmp/first.out /tmp/last.out | xargs)" = "192.0.2.77 192.0.2.77" ]
handle=$(in_host kopictl rule add local-port 5353 deny)
check "a rule that stops it is said" wait_for grep -q 'Permission denied' /tmp/dns.out
in_host kopictl rule del "$handle"
check "without the rule it answers again" [ "$(asks printer.example)" = 192.0.2.77 ]
check "its answers went by rings" [ "$(in_host kopictl stats --json | jq .stats.tx_packets)" -ge 4 ]
kill $server
wait $server

check "nothing holds the module" wait_for unused
rmmod kopi
check "without the module: EAFNOSUPPORT" [ "$(python3 -P -c 'import kopi, errno
try:
	kopi.Socket()
except OSError as error:
	print(errno.errorcode[error.errno])')" = EAFNOSUPPORT ]
check "without the library: ImportError, which says what to do" eval \
	'KOPI_LIBRARY=/nowhere.so python3 -P -c "import kopi" 2>&1 | grep -q "ImportError: libkopi is missing.*set KOPI_LIBRARY"'
check "without the interpreter's lock: ImportError, which says what to do" eval \
	'python3 -P -c "import sys; sys._is_gil_enabled = lambda: False; import kopi" 2>&1 |
		grep -q "ImportError: .*PYTHON_GIL=1"'
insmod "$here/../build/$(uname -r)/kopi.ko"
finish
