#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Unmodified programs work by `kopi run --tcp`: iperf3 both ways with many connections, socat, Python's web
# server and asyncio; rules see which program has which port.

. "$(dirname "$0")/lib.sh"

by_kopi() { in_host kopi run --tcp "$@"; }
# Starts it in the background, without a shell around it.
start() { nsenter --net=/run/netns/host kopi run --tcp "$@" & }
# Whether a flow listens on a port.
listens() { in_host kopictl ps --json | jq -e ".[] | select(.tcp_state == \"listen\" and .local_port == $1)"; }
trap 'kill $(jobs -p) 2>/dev/null; kopictl_flush' EXIT
kopictl_flush() { in_host kopictl rule flush; }

start iperf3 -s -p 5201 >/tmp/iperf3.server 2>&1
check "iperf3's listener is a flow" wait_for listens 5201
bulk() { in_peer timeout 300 iperf3 -c "$1" -p 5201 -n 3M -P 2 "${@:2}" >/tmp/iperf3.out 2>&1 || { tail -5 /tmp/iperf3.out; false; }; }
for address in 192.0.2.1 2001:db8::1; do
	check "to iperf3, two connections, $address" bulk "$address"
	check "from iperf3, $address" bulk "$address" -R
	check "both ways, $address" bulk "$address" --bidir
done
client() { by_kopi timeout 300 iperf3 -c 127.0.0.1 -p 5201 -n 3M -P 2 --zerocopy >/tmp/iperf3.out 2>&1; }
check "a client by KOPI, too" client
kill %1

mkdir -p /tmp/web
head -c 3000000 /dev/urandom >/tmp/web/file
sum=$(sha256sum </tmp/web/file)
start socat -u TCP6-LISTEN:7801,fork,reuseaddr,ipv6only=0 OPEN:/tmp/web/copy,creat,trunc 2>/tmp/socat.err
check "socat's listener is a flow" wait_for listens 7801
in_peer socat -u OPEN:/tmp/web/file TCP:192.0.2.1:7801
same() { [ "$(sha256sum <"$1")" = "$sum" ]; }
check "socat got the same" wait_for same /tmp/web/copy

start python3 -m http.server -b :: -d /tmp/web 8000 >/tmp/http.log 2>&1
server=$!
check "the web server's listener is a flow" wait_for listens 8000
fetch() { in_peer python3 -c "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=int(sys.argv[2])).read())" \
	"http://$1:8000/file" "${2:-20}" >/tmp/web/fetched 2>/tmp/fetch.err && same /tmp/web/fetched; }
check "a file, IPv4" fetch 192.0.2.1
check "a file, IPv6" fetch '[2001:db8::1]'
in_host kopictl rule add exe "$(readlink -f /usr/bin/python3)" local-port 8000 remote 192.0.2.2 deny >/dev/null
check "not for a denied peer" eval '! fetch 192.0.2.1 2 && grep -q "timed out" /tmp/fetch.err'
check "but for others" fetch '[2001:db8::1]'
in_host kopictl rule flush
check "and again without the rule" fetch 192.0.2.1
kill $server
check "clients by asyncio" by_kopi timeout 300 python3 -c '
import asyncio
async def answer(reader, writer):
    writer.write(await reader.readexactly(1000))
    await writer.drain()
    writer.close()
async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes([number]) * 1000)
    assert await reader.read(-1) == bytes([number]) * 1000
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for _ in range(3):
        await asyncio.gather(*(ask(port, number) for number in range(100)))
asyncio.run(main())'
# shellcheck disable=SC2046 # Many.
kill $(jobs -p) 2>/dev/null
check "nothing holds the module" wait_for unused
finish
