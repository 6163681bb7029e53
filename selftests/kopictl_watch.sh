#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# kopictl watch tells what happens to flows while it happens, and metrics what happened.

. "$(dirname "$0")/lib.sh"

kopictl() { in_host kopictl "$@"; }
watchers=()
trap 'kill "${watchers[@]}" 2>/dev/null; in_host kopictl rule enforce off; in_host kopictl rule flush' EXIT
# Starts one, and waits until it hears a flow of root's.
watches() {
	local file=$1
	shift
	nsenter --net=/run/netns/host kopictl watch "$@" >"$file" 2>"$file.err" &
	watchers+=($!)
	hears() { in_host kopi-nc -w 0 192.0.2.2 9 </dev/null 2>/dev/null; [ -s "$file" ]; }
	wait_for hears
}
bob() { in_host setpriv --reuid bob --regid bob --clear-groups -- "$@"; }
# What was heard of the flow that was bound to a port.
events() {
	jq -s --argjson port "$1" 'map(select(.event == "flow-bound" and .local_port == $port))[0].id as $id |
		map(select(.id == $id))' /tmp/events
}
event() { events 5000 | jq --arg event "$1" 'map(select(.event == $event))[0]'; }

check "it listens" watches /tmp/events --json
check "and shows lines to people" watches /tmp/lines
check "with a head" grep -qE '^TIME +EVENT +ID +PID' /tmp/lines.err

echo hello | bob kopi-nc -p 5000 -s 192.0.2.1 -w 0 192.0.2.2 9 2>/dev/null
closed() { events 5000 | has '.[-1].event == "flow-closed"'; }
check "a flow's end is heard" wait_for closed
check "so were its beginning and its binding" eval 'events 5000 | has "map(.event)[:2] == [\"flow-opened\", \"flow-bound\"]"'
check "with program, user and address" eval 'event flow-bound | has \
	".program == \"kopi-nc\" and .user == \"bob\" and .local_address == \"192.0.2.1\" and .local_port == 5000"'
check "the last has the counters" eval 'event flow-closed | has ".stats.tx_packets == 1 and .stats.tx_bytes == 6"'
check "and the time" eval 'event flow-closed | has ".time | sub(\"[.][0-9]+Z\"; \"Z\") | fromdateiso8601 > 0"'
line() { grep -qE '^[0-9:.]+ +flow-bound +[0-9]+ +[0-9]+ +kopi-nc +bob +192.0.2.1:5000 -> ' /tmp/lines; }
check "lines have it, too" wait_for line

handle=$(kopictl rule add user bob local-port 5001 deny)
nsenter --net=/run/netns/host kopictl watch --event flow-denied --count 2 >/tmp/denied 2>/tmp/denied.err &
counting=$!
watchers+=("$counting")
ended() { bob kopi-nc -l -p 5001 -w 0 192.0.2.1 5001 </dev/null 2>/dev/null; [ ! -d "/proc/$counting" ]; }
check "--count ends it" wait_for ended
check "with status 0" wait "$counting"
check "--event leaves others out, and the rule is named" eval \
	'[ "$(wc -l </tmp/denied)" = 2 ] && [ "$(grep -c "flow-denied .* by rule $handle" /tmp/denied)" = 2 ]'
denied() { jq -r 'select(.event == "flow-denied") | .rule' /tmp/events | grep -qx "$handle"; }
check "JSON names it, too" wait_for denied

mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf
kopictl rule enforce on >/dev/null
ordinary=$(kopictl rule add user bob local-port 5003 deny)
bob python3 -c 'import socket; socket.create_server(("192.0.2.1", 5003))' 2>/tmp/ordinary.err
check "an ordinary socket is refused" grep -q 'Permission denied' /tmp/ordinary.err
ordinary() { jq -se --arg rule "$ordinary" 'map(select(.event == "socket-denied" and .user == "bob" and
	.rule == ($rule | tonumber) and .operation == "bind" and .local_port == 5003))[0]' /tmp/events; }
check "which is heard of" wait_for ordinary
line() { grep -qE "^[0-9:.]+ +socket-denied +- +[0-9]+ +python3[^ ]* +bob +192.0.2.1:5003 -> - .* by rule $ordinary  in  bind$" /tmp/lines; }
check "in lines, too" wait_for line
kopictl rule enforce off >/dev/null

# A channel with one frame to receive in, which nobody gives back.
nsenter --net=/run/netns/host setpriv --reuid bob --regid bob --clear-groups python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import kopi
channel = kopi.Channel()
channel.sock.bind(("192.0.2.1", 5002))
channel.fill.push(channel.frame(0))
print("bound", flush=True)
sys.stdin.read()' "$here" < <(sleep 600) >/tmp/frameless.out &
frameless=$!
watchers+=("$frameless")
wait_for grep -q bound /tmp/frameless.out
ask 5002 hello 1
ask 5002 hello 1
overrun() { events 5002 | has 'map(.event) | index("overrun")'; }
check "a channel that has no room is heard of" wait_for overrun
kill $frameless

old=$(sysctl -n net.kopi.user_max_flows)
sysctl -qw net.kopi.user_max_flows=0
bob kopi-nc -w 0 192.0.2.2 9 </dev/null 2>/dev/null
sysctl -qw net.kopi.user_max_flows="$old"
limit() { jq -se 'map(select(.event == "limit" and .user == "bob" and .program == "kopi-nc" and
	.limit == "user_max_flows"))[0]' /tmp/events; }
check "and a limit that was hit" wait_for limit

bob kopictl watch >/dev/null 2>/tmp/out
check "others' flows aren't for everybody" [ $? = 4 ]

in_host kopictl metrics --listen 127.0.0.1:9100 2>/tmp/metrics.err &
watchers+=($!)
get() {
	in_host python3 -c 'import sys, urllib.request as r
answer = r.urlopen("http://127.0.0.1:9100" + sys.argv[1])
print(answer.headers["Content-Type"], answer.read().decode(), sep="\n", end="")' "$@" 2>&1
}
check "metrics are served" wait_for get /metrics
check "as OpenMetrics" eval 'get /metrics | head -1 | grep -q "^application/openmetrics-text; version=1.0.0"'
check "to their end" [ "$(get /metrics | tail -1)" = '# EOF' ]
refusals=$(kopictl rule list --json | jq '.rules[0].denied')
check "with the rule's refusals" eval '[ "$refusals" -ge 2 ] && get /metrics |
	grep -qF "kopi_rule_denied_total{handle=\"$handle\",rule=\"user bob local-port 5001 deny\"} $refusals"'
check "nothing is elsewhere" eval 'get / | grep -q "HTTP Error 404"'

# What any user can send to it.
serves() { [ "$(get /metrics | tail -1)" = '# EOF' ]; }
check "a huge Content-Length and a body that never comes are nothing to it" eval 'in_host setpriv --reuid bob --regid bob --clear-groups -- python3 -c "
import socket
kept = []
for length in (1000000, 18446744073709551615):
    one = socket.create_connection((\"127.0.0.1\", 9100), timeout=30)
    one.sendall(b\"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n\" % length)
    assert one.recv(100).startswith(b\"HTTP/1.1 405\"), length
    kept.append(one)
" && serves'

in_host kopi-echo --bind 192.0.2.1:7777 >/tmp/echo.out 2>&1 &
wait_for grep -q listening /tmp/echo.out
check "a process that answers is there" echoes 7777 hello
received() {
	get /metrics | grep -E '^kopi_process_packets_total' >/tmp/process.out
	grep -qE '\{pid="[0-9]+",program="kopi-echo",user="root",direction="in"\} 1$' /tmp/process.out
}
check "a process's packets are there" wait_for received
sed 's/^/# /' /tmp/process.out
(ulimit -n 40; exec nsenter --net=/run/netns/host kopictl metrics --listen 127.0.0.1:9101) 2>/tmp/few.err &
watchers+=($!)
wait_for grep -q listening /tmp/few.err
check "nor are more connections than it has descriptors" in_host setpriv --reuid bob --regid bob --clear-groups -- python3 -c '
import socket
kept = [socket.create_connection(("127.0.0.1", 9101), timeout=30) for _ in range(60)]
last = socket.create_connection(("127.0.0.1", 9101), timeout=30)
last.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
assert last.recv(100).startswith(b"HTTP/1.1 200"), "no answer"'
nsenter --net=/run/netns/host kopictl metrics --listen 2>/tmp/socket.err &
watchers+=($!)
wait_for grep -q listening /tmp/socket.err
by_socket() { timeout 30 "$@" python3 -c '
import socket
one = socket.socket(socket.AF_UNIX)
one.connect("/run/kopi/metrics.sock")
one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
assert one.recv(100).startswith(b"HTTP/1.1 200")' 2>/dev/null; }
check "a Unix socket serves root" by_socket env
check "and nobody else" eval '! by_socket as bob'
in_host kopictl metrics --listen 192.0.2.1:9102 2>/dev/null
check "other machines are not served" [ $? = 2 ]

cp "$(command -v kopi-echo)" "/tmp/$(printf 'a\033[2J\302\233b')"
in_host setpriv --reuid bob --regid bob --clear-groups -- "/tmp/$(printf 'a\033[2J\302\233b')" --bind 192.0.2.1:7778 >/tmp/escape.out 2>&1 &
wait_for grep -q listening /tmp/escape.out
escaper=$(in_host ss -uapnH 'sport = :7778' | sed 's/.*pid=\([0-9]*\).*/\1/')
watchers+=("$escaper")
seen() { in_host kopictl "$@" >/tmp/seen && grep -qF 'u{9b}b' /tmp/seen && ! grep -qP '\x1b|\xc2\x9b' /tmp/seen; }
check "a program's name moves no terminal: ps" seen ps
check "metrics" seen metrics
check "and JSON" eval 'in_host kopictl ps --json >/tmp/seen && grep -qF "u009b" /tmp/seen && ! grep -qP "\x1b|\xc2\x9b" /tmp/seen'
kill "$escaper"
for what in ps stats "rule list" metrics info "rule save"; do
	# shellcheck disable=SC2086 # Words.
	in_host kopictl $what >/dev/full 2>/tmp/full.err
	code=$?
	check "$what: a full device is an error" eval '[ $code = 1 ] && grep -q "No space left" /tmp/full.err'
done
in_host kopictl show flow 99999999 2>/dev/full
check "and no panic, where that can't be said" [ $? = 1 ]
wait_for eval '[ "$(kopictl info | sed -n "s/^flows *//p")" = 1 ]'
check "printed at once, too" eval 'kopictl metrics | grep -q "^kopi_flows 1$"'
watchers+=("$(in_host ss -uapnH 'sport = :7777' | sed 's/.*pid=\([0-9]*\).*/\1/')")
finish
