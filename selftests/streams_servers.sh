#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# nginx and redis-server, of an unprivileged user, do by `kopi run --tcp` what they do with plain sockets, for
# wrk, redis-benchmark and clients that compare bytes; their sockets are flows, which a rule keeps for them.

# shellcheck disable=SC2086 # Names without spaces.
# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/lib.sh"

work=/tmp/servers
mkdir -p $work/www
head -c 4000000 /dev/urandom >$work/www/file
head -c 100000 /dev/urandom >$work/www/page
echo hello >$work/www/small
sum=$(sha256sum <$work/www/file)
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=host -days 10 \
	-keyout $work/key -out $work/certificate 2>/dev/null
cat >$work/nginx.conf <<-END
	daemon off;
	worker_processes 2;
	pid $work/nginx.pid;
	events { worker_connections 256; }
	http {
		access_log off;
		sendfile on;
		$(for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $work/$kind;"; done)
		server {
			listen 8080 reuseport;
			listen [::]:8080;
			listen 192.0.2.1:8443 ssl;
			ssl_certificate $work/certificate;
			ssl_certificate_key $work/key;
			ssl_conf_command Options KTLS;
			root $work/www;
		}
	}
END
chown -R bob $work

# Starts a server of bob's in the background, without a shell around it: start NAME [WORDS...]
start() {
	local name=$1
	shift
	case $name in
	nginx) set -- "$@" "${nginx:-nginx}" -e stderr -c $work/nginx.conf ;;
	redis) set -- "$@" redis-server --bind 192.0.2.1 2001:db8::1 --save '' --protected-mode no --dir $work \
		--enable-debug-command yes ;;
	esac
	nsenter --net=/run/netns/host setpriv --reuid bob --regid bob --clear-groups -- "$@" >"$work/$name.log" 2>&1 &
	server=$!
}
stop() { kill $server && wait $server; }
trap 'kill $(jobs -p) 2>/dev/null; in_host kopictl rule flush' EXIT

# Whether the peer gets the whole file.
gets() { [ "$(in_peer timeout 300 busybox wget -q --no-check-certificate -O - "$1" 2>$work/get.err | sha256sum)" = "$sum" ]; }
up() { in_peer timeout 3 bash -c ': >"/dev/tcp/192.0.2.1/$1"' up "$1" 2>/dev/null; }

# Flows of bob's program on a local port, in a state: flows PROGRAM STATE
flows() { in_host kopictl ps --user bob --json | jq "[.[] | select(.command == \"$1\" and .tcp_state == \"$2\")] | length"; }
# How many listeners there are, whatever they are.
listeners() { in_host ss -Htln | wc -l; }

# How many flows there have been.
opened() { in_host kopictl stats --json | jq .flows_opened; }

# Requests for some seconds, of which none fails: wrk_goes FILE CONNECTIONS [DURATION]
wrk_goes() {
	in_peer timeout 300 wrk -t 1 -c "$2" -d "${3:-2s}" --timeout 30s "http://192.0.2.1:8080/$1" >$work/wrk.out 2>&1
	sed -n 's/^ *\([0-9]* requests in\)/# \1/p' $work/wrk.out
	grep -q '^ *[1-9][0-9]* requests in' $work/wrk.out && ! grep -E 'Socket errors|Non-2xx|unable' $work/wrk.out
}
# Some kinds of requests, of which none fails: benchmark_goes ADDRESS PIPELINED
benchmark_goes() {
	in_peer timeout 300 redis-benchmark -h "$1" -n 500 -c 20 -P "$2" -q -t set,get,incr,lpush,lrange_100 \
		>$work/benchmark.out 2>&1 && [ "$(grep -o 'requests per second, p50' $work/benchmark.out | wc -l)" = 6 ] &&
		! grep -i error $work/benchmark.out
}

for how in plain flows; do
	by=()
	[ $how = plain ] || by=(kopi run --tcp)
	before=$(opened)

	start nginx "${by[@]}"
	check "$how: nginx is up" wait_for up 8080
	[ $how = plain ] && none=0 || none=$(listeners)
	check "$how: $none of its $(listeners) listeners are flows" [ "$(flows nginx listen)" = "$none" ]
	for url in http://192.0.2.1:8080 'http://[2001:db8::1]:8080' https://192.0.2.1:8443; do
		check "$how: a file of 4 MB from $url" gets "$url/file"
	done
	# Long enough to be seen.
	wrk_goes small 16 "$([ $how = plain ] || echo 20s)" &
	asks=$!
	[ $how = plain ] || check "$how: kopictl ps has its connections" wait_for eval '[ "$(flows nginx established)" -ge 16 ]'
	check "$how: wrk" wait $asks
	check "$how: wrk, larger answers" wrk_goes page 4
	check "$how: nginx ends well" stop
	echo "# nginx has had $(($(opened) - before)) flows ($SECONDS s)"

	start redis "${by[@]}"
	check "$how: redis is up" wait_for up 6379
	[ $how = plain ] || check "$how: both listeners are flows" [ "$(flows redis-server listen)" = 2 ]
	check "$how: redis-benchmark" benchmark_goes 192.0.2.1 1
	check "$how: redis-benchmark, pipelines and IPv6" benchmark_goes 2001:db8::1 16
	in_peer redis-cli -h 192.0.2.1 debug digest >$work/$how.digest
	check "$how: redis ends well" stop
	echo "# both have had $(($(opened) - before)) flows ($SECONDS s)"
done
check "the same data: $(cat $work/plain.digest)" cmp -s $work/plain.digest $work/flows.digest
check "which are some" grep -qE '^[0-9a-f]*[1-9a-f][0-9a-f]*$' $work/flows.digest

cp "$(readlink -f /usr/sbin/nginx)" $work/impostor
nginx=$work/impostor start nginx kopi run --tcp
check "a copy of nginx has the port" wait_for gets http://192.0.2.1:8080/file
in_host kopictl rule add user bob exe /usr/sbin/nginx local-port 8080 allow >/dev/null
in_host kopictl rule add local-port 8080 deny >/dev/null
check "and no answers any more, with a rule for nginx" eval '! up 8080'
check "nor may it have it" eval 'stop; nginx=$work/impostor start nginx kopi run --tcp; ! wait $server'
check "as its log says" grep -q 'bind() to 0.0.0.0:8080 failed (13: Permission denied)' $work/nginx.log
start nginx kopi run --tcp
check "nginx itself answers" wait_for gets http://192.0.2.1:8080/file
stop
check "nothing holds the module" wait_for unused
finish
