#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# kopictl's rules: those who are named may, others may not; files are put in force as a whole.

. "$(dirname "$0")/lib.sh"

kopictl() { in_host kopictl "$@"; }
rule() { in_host kopictl rule "$@"; }
says() { grep -qF -- "$1" /tmp/out || { sed 's/^/# /' /tmp/out; false; }; }
clean() { rule enforce off; rule flush; rule default allow; }
trap clean EXIT
# Whether it does where nobody reads what it prints: ends_with_closed STATUS COMMAND...
ends_with_closed() { "${@:2}" >&9 2>/tmp/out; [ $? = "$1" ] || { sed 's/^/# /' /tmp/out; false; }; }
# Whether a user's program can have a port, or why not.
can() { in_host setpriv --reuid "$1" --regid "$1" --clear-groups -- "$2" -l -w 0 192.0.2.1 "$3" </dev/null 2>/tmp/can.err; }
cannot() { ! can "$@" && grep -q 'Permission denied' /tmp/can.err; }
generation() { rule list --json | jq .generation; }

nc=$(command -v kopi-nc)
cp "$nc" /tmp/postgres
first=$(rule add user bob exe /tmp/postgres local-port 5432 allow)
last=$(rule add local-port 5432 deny comment 'nobody else')
check "adding gives handles, which rise" [ "$last" -gt "$first" ]
between=$(rule add before "$last" group bob local-port 5432 remote 192.0.2.0/24 mark 7 --json | jq .handle)
check "list has them in their order" eval 'rule list --json | has --argjson order "[$first,$between,$last]" \
	"[.rules[].handle] == \$order and .default == \"allow\""'
check "and as they were written" eval \
	'rule list | grep -qE "^ *$first +0 +0 +0 +user bob exe /tmp/postgres local-port 5432 allow$"'
check "with names, or without" eval 'rule list -n | grep -q "user 1002 exe" && rule list -n | grep -q "group 1002 "'
check "one can be taken away" eval 'rule del "$between" && [ "$(rule list --json | jq ".rules | length")" = 2 ]'
check "but once" ends_with 1 rule del "$between"
check "which is said" says "rule $between: no rule has that handle"

check "bob's program may have the port" can bob /tmp/postgres 5432
check "bob's other program may not" cannot bob "$nc" 5432
check "nor may another's same program" cannot alice /tmp/postgres 5432
check "other ports are free" can alice "$nc" 5433
check "refusals are counted" eval 'rule list --json | has ".rules[1].denied == 2"'

cp "$nc" /tmp/new && mv /tmp/new /tmp/postgres
check "a file in its place may not" cannot bob /tmp/postgres 5432
check "and list says so" eval 'rule list | grep -q "(the program.s file was replaced)"'
check "the default is changed beside such a rule" eval 'rule default deny && rule default allow'
check "whose file doesn't get it by that" eval 'cannot bob /tmp/postgres 5432 && rule list | grep -q "file was replaced"'
check "doctor finds it" eval 'kopictl doctor --json 2>/dev/null | has --arg rule "rule $first" \
	"map(select(.what == \$rule)) | length == 1 and .[0].text == \"exe /tmp/postgres: the program\u0027s file was replaced\""'

printf '#!/bin/sh -e\nexit\n' >/tmp/script
remarks() { says "exe /tmp/script is a script: the program of who runs it is the interpreter (#!/bin/sh -e)"; }
check "a rule by a script is added" ends_with 0 rule add exe /tmp/script remote-port 9 deny
check "with a remark" remarks
check "doctor has it, too" eval 'kopictl doctor >/tmp/out 2>&1; remarks'
rule del "$(rule list --json | jq '.rules[-1].handle')"
echo 'exe /tmp/script remote-port 9 deny' >/tmp/only
check "so has who restores" eval 'ends_with 0 kopictl restore --check /tmp/only && remarks'
sed -i 's/^/rule /' /tmp/only
check "and who checks a configuration" eval 'ends_with 0 kopictl config check /tmp/only && remarks && says /tmp/only:1:'

cat >/tmp/rules <<'EOF'
# As before.
default allow
user bob exe /tmp/postgres local-port 5432 allow
local-port 5432 deny comment 'nobody else'
EOF
check "restoring means the new file" eval 'kopictl restore /tmp/rules && can bob /tmp/postgres 5432'
check "what didn't change kept handle and counters" eval 'rule list --json | has --argjson last "$last" \
	".rules[1].handle == \$last and .rules[1].denied == 4"'
now=$(generation)
check "restoring again changes nothing" eval 'kopictl restore --json - </tmp/rules | has ".changed == false and .rules == 2"'
check "not even the generation" eval '[ "$(generation)" = "$now" ]'

printf 'user root allow\n\nexe /tmp/nowhere deny\n' >/tmp/bad
check "a file with a rule that the kernel refuses is refused" ends_with 1 kopictl restore /tmp/bad
check "by line" says "/tmp/bad:3: exe can't be looked up (ENOENT)"
printf 'user root allow\nuser root alow\n' >/tmp/bad
check "one that makes no sense, too" ends_with 1 kopictl restore /tmp/bad
check "by line" says '/tmp/bad:2: alow is not a keyword of rules'
printf 'default deny\n' >/tmp/other
check "--check refuses the same" ends_with 1 rule restore --check /tmp/bad
check "in JSON, too" eval 'kopictl restore --check --json /tmp/bad 2>/dev/null | has \
	".rules == 0 and .changed == false and (.errors[0] | .line == 2 and (.text | startswith(\"/tmp/bad:2: alow is no\")))"'
check "and changes nothing" eval 'kopictl restore --check /tmp/other && [ "$(generation)" = "$now" ]'
check "but says whether it would" eval 'kopictl restore --check --json /tmp/other | has .changed &&
	kopictl restore --check --json /tmp/rules | has ".changed | not" && [ "$(generation)" = "$now" ]'
(cat /tmp/rules; echo 'enforce on') >/tmp/rules_on
check "also of enforcing" eval 'kopictl restore --check --json /tmp/rules_on | has .changed && [ "$(generation)" = "$now" ]'

check "rules are saved" eval 'rule save /tmp/saved && grep -qxF "local-port 5432 comment '"'nobody else'"' deny" /tmp/saved'
check "flush takes all away, but the default" eval 'rule default deny && rule flush && rule list --json | has \
	".rules == [] and .default == \"deny\""'
check "which stops all" cannot root "$nc" 5433
check "what was saved comes back" eval 'kopictl restore /tmp/saved && rule save | cmp - /tmp/saved'

# A rule that other lines come before, or that lines are taken from before, is the same.
kept=$(rule list --json | jq -c '.rules[-1] | [.handle, .packets]')
(echo 'user 4000 allow'; cat /tmp/saved; echo 'user 4001 allow') >/tmp/more
check "rules keep their handles and counters in a longer set" eval 'kopictl restore /tmp/more && rule list --json |
	has --argjson kept "$kept" ".rules[-2] | [.handle, .packets] == \$kept"'
(echo 'user 4001 allow'; tail -n 1 /tmp/saved) >/tmp/fewer
check "and in a shorter one of another order" eval 'kopictl restore /tmp/fewer && rule list --json |
	has --argjson kept "$kept" ".rules[-1] | [.handle, .packets] == \$kept"'
check "new ones are others" eval 'kopictl restore /tmp/saved && kopictl restore /tmp/more && rule list --json | has \
	"[.rules[].handle] | (unique | length) == length and .[0] > .[-2]"'

kopictl restore /tmp/saved && rule default deny
: >/tmp/empty
check "an empty file is refused" ends_with 1 kopictl restore /tmp/empty
check "and nothing is changed" eval 'rule list --json | has ".default == \"deny\" and (.rules | length) == 2"'
echo 'user root allow' >/tmp/silent
check "a file without a default leaves it" eval 'kopictl restore /tmp/silent && rule list --json | has \
	".default == \"deny\" and (.rules | length) == 1"'
rm -rf /tmp/saves && mkdir /tmp/saves && ln -s real /tmp/saves/link && echo old >/tmp/saves/real && ln -s victim /tmp/saves/real.new
rule save >/tmp/right
check "save follows a link, and no planted name" eval 'rule save /tmp/saves/link && [ -L /tmp/saves/link ] &&
	cmp /tmp/saves/real /tmp/right && [ ! -e /tmp/saves/victim ] && [ "$(find /tmp/saves -mindepth 1 | wc -l)" = 3 ]'
check "- is standard output" eval '(cd /tmp/saves && rule save - | cmp - /tmp/right && [ ! -e ./- ])'

kopictl restore /tmp/saved
echo 'default deny' >/tmp/only
check "a configuration with only a default is right" kopictl config check /tmp/only
check "in JSON, too" eval 'kopictl config check --json /tmp/only | has ". == {by_kernel: true, errors: []}"'
printf 'rule user root allow\n\nrule exe /tmp/nowhere deny\n' >/tmp/bad
bad='/tmp/bad:3: exe can.t be looked up .ENOENT.'
check "one that the kernel refuses isn't" ends_with 1 kopictl config check --json /tmp/bad
check "which JSON says, with the line" eval 'kopictl config check --json /tmp/bad 2>/dev/null | has --arg bad "$bad" \
	".by_kernel and (.errors | length) == 1 and .errors[0].line == 3 and (.errors[0].text | test(\$bad))"'
check "as it does when it is put in force" eval 'kopictl config apply --json /tmp/bad 2>/dev/null | has --arg bad "$bad" \
	".failed == 1 and .rules == 0 and .errors[0].line == 3 and (.errors[0].text | test(\$bad))"'
check "and of a file that isn't there" eval 'kopictl config check --json /tmp/nowhere 2>/dev/null | has \
	".by_kernel == false and .errors[0].line == null and (.errors[0].text | test(\"/tmp/nowhere: No such file\"))"'
printf 'rule user 2000 allow\nrule exe /tmp/nowhere deny\ndefault deny\nenforce off\nlimit nothing 1\n' >/tmp/refused
set_before=$(rule list --json)
check "where one rule is refused, none is in force, nor the default" eval 'kopictl config apply --json /tmp/refused 2>/tmp/out |
	has ".failed == 2 and .rules == 0 and .rules_refused" && [ "$(rule list --json)" = "$set_before" ]'
check "which is said" says "/tmp/refused: none of its rules is in force, nor its default and enforce; those from before stay; \
besides, a line is not in force"
check "and leaves the rules" eval 'kopictl config apply /tmp/only && rule list --json | has \
	".default == \"deny\" and (.rules | length) == 2"'
now=$(generation)
check "again, it changes nothing" eval 'kopictl config apply /tmp/only && [ "$(generation)" = "$now" ]'
echo 'enforce off' >/tmp/only
check "nor does one with only enforce" eval 'kopictl config apply /tmp/only && [ "$(generation)" = "$now" ]'
echo 'rule user root allow' >/tmp/only
check "one with rules replaces them" eval 'kopictl config apply /tmp/only && rule list --json | has \
	".default == \"deny\" and (.rules | length) == 1"'

printf 'limit nothing 1\nattach nowhere0\nengines cpus 999\nrule user 2000 deny\nrule user root allow\n' >/tmp/only
check "its rules alone are put in force" eval 'kopictl config apply --rules --json /tmp/only 2>/tmp/out | has \
	".failed == 0 and .rules == 2 and .absent == [] and .rules_taken_away == 0" && rule list --json | has "(.rules | length) == 2"'
rule add user bob deny >/dev/null
rule add user alice deny >/dev/null
check "those that it doesn't have are taken away" eval 'kopictl config apply --rules --json /tmp/only 2>/tmp/out | has \
	".rules == 2 and .rules_taken_away == 2"'
check "which is said" says "2 rules that /tmp/only doesn't have were taken away"
check "once" eval 'kopictl config apply --rules /tmp/only 2>/tmp/out && [ ! -s /tmp/out ]'
check "of a device, it has no rules" ends_with 2 kopictl config apply --rules --device eth0 /tmp/only

echo 'rule user root allow' >/tmp/only
kopictl config apply /tmp/only 2>/dev/null
rule default allow
mount -t tmpfs none /sys/fs/bpf
printf 'rule user root allow\nenforce on\nrule user bob deny\ndefault deny\n' >/tmp/cant_be_had
check "that enforcing can't be had is found by a check" ends_with 1 kopictl config check /tmp/cant_be_had
check "by line" says "/tmp/cant_be_had:2: /sys/fs/bpf has to be bpffs"
printf 'enforce on\n' >/tmp/only
check "also where there is nothing else" ends_with 1 kopictl config check /tmp/only
check "which changes nothing" eval 'rule list --json | has ".default == \"allow\" and (.rules | length) == 1"'
check "it is said, too, when the file is put in force" eval 'kopictl config apply --json /tmp/cant_be_had 2>/tmp/out | has \
	".failed == 1 and .rules == 2 and (.rules_refused | not) and (.errors | length) == 1 and .errors[0].line == 2"'
check "by line" says "/tmp/cant_be_had:2: /sys/fs/bpf has to be bpffs"
check "and the other lines are in force" eval 'rule list --json | has \
	".default == \"deny\" and (.rules | length) == 2 and .enforce == false"'
printf 'enforce on\ndefault allow\n' >/tmp/only
check "as is a default by itself" eval 'kopictl config apply --json /tmp/only 2>/dev/null | has \
	".failed == 1 and .errors[0].line == 1" && rule list --json | has ".default == \"allow\" and (.rules | length) == 2"'
printf 'default deny\nenforce on\n' >/tmp/only
check "a file to be restored is in force as a whole, or not at all" ends_with 1 kopictl restore /tmp/only
check "which names the line" says "/tmp/only:2: /sys/fs/bpf has to be bpffs"
check "and changes nothing" eval 'rule list --json | has ".default == \"allow\" and (.rules | length) == 2"'
umount /sys/fs/bpf
printf 'attach nowhere0\nrule user bob deny\n' >/tmp/only
check "of one device, JSON says what came of it" eval 'kopictl --json config apply --device nowhere0 /tmp/only 2>/dev/null | has \
	".failed == 0 and .absent == [\"nowhere0\"] and .rules == 0"'
check "also of one that the file doesn't have" eval 'kopictl --json config apply --device eth0 /tmp/only | has ".attached == []"'
# A pipe that nobody reads any more.
mkfifo /tmp/closed
exec 8<>/tmp/closed
exec 9>/tmp/closed 8>&-
check "a reader that is gone makes nothing right" ends_with_closed 1 kopictl restore --check --json /tmp/bad
check "nor a configuration" ends_with_closed 1 kopictl config apply --json /tmp/bad
check "nor what a check finds" ends_with_closed 1 kopictl config check --json /tmp/bad
check "and what was done is done" ends_with_closed 0 kopictl restore --json /tmp/silent
exec 9>&-
rule flush

# Every kind of word, as the kernel has it.
mkdir -p /sys/fs/cgroup/ruled
cat >/tmp/all <<'EOF'
# For kopictl restore.
default allow
enforce off
user 2000-2999 cgroup /ruled protocol udp allow
group charlie local-port 1-1023 device eth0 direction in deny
remote 2001:db8::/32 remote-port 53 mark 0x10 priority 1:10
remote 198.51.100.7 direction out rate 1Mbit shared
rate 500pps burst 7 comment 'slow, # not "fast"'
EOF
check "rules are saved for kopi.conf, too" eval 'kopictl restore /tmp/all && rule save --config /tmp/conf &&
	grep -qxF "rule remote 198.51.100.7 direction out rate 1Mbit shared" /tmp/conf && kopictl config check /tmp/conf'
check "which are the same" eval 'now=$(generation) && kopictl config apply --json /tmp/conf | has ".rules == 5 and .failed == 0" &&
	[ "$(generation)" = "$now" ]'
check "all words come back" eval 'kopictl restore /tmp/all && rule save | diff /tmp/all - | sed "s/^/# /" && rule save | cmp /tmp/all -'

check "a cgroup that is there isn't stale" eval 'rule list --json | has "[.rules[] | .cgroup_stale] | any | not"'
rmdir /sys/fs/cgroup/ruled
stale=$(rule list --json | jq '.rules[0].handle')
check "one that was removed is, which list says" eval 'rule list | grep -q "cgroup /ruled protocol udp allow  (the cgroup was removed)$" &&
	rule list --json | has "[.rules[] | .cgroup_stale == true] == [true, false, false, false, false]"'
check "and doctor" eval 'kopictl doctor --json 2>/dev/null | has --arg rule "rule $stale" \
	"map(select(.what == \$rule)) | length == 1 and .[0].text == \"cgroup /ruled: the cgroup was removed\""'
mkdir /sys/fs/cgroup/ruled
check "one of the same path is another" eval 'rule list | grep -q "(the cgroup was removed)$"'
check "which doesn't get the rule by another change" eval 'rule default deny && rule default allow && rule list --json | has \
	--argjson stale "$stale" ".rules[0] | .handle == \$stale and .cgroup_stale"'
check "but when the rules are restored" eval 'kopictl restore /tmp/all && ! rule list | grep -q removed &&
	rule default deny && rule default allow'
rmdir /sys/fs/cgroup/ruled

in_parallel() {
	local pids=() number
	for number in $(seq 8); do
		rule add local-port "$((8000 + number))" deny >/dev/null &
		pids+=($!)
	done
	for number in "${pids[@]}"; do wait "$number" || return; done
	[ "$(rule save | grep -c 'local-port 800')" = 8 ]
}
check "eight who add a rule at once all do" in_parallel
rule flush

for number in $(seq 5000); do echo "user $number remote 192.0.2.0/24 remote-port $number comment 'rule number $number' deny"; done >/tmp/many
check "five thousand rules are one change" eval 'now=$(generation) && kopictl restore /tmp/many &&
	[ "$(generation)" = $((now + 1)) ]'
check "and come back" eval 'rule save -n | tail -n +4 >/tmp/back &&
	cmp /tmp/back /tmp/many'
rule flush

in_host setpriv --reuid bob --regid bob --clear-groups -- kopi-echo --bind 192.0.2.1:7777 >/tmp/echo.out 2>&1 &
echo_pid=$!
trap 'kill $echo_pid 2>/dev/null; clean' EXIT
wait_for grep -q listening /tmp/echo.out
check "a live flow answers" echoes 7777 before
handle=$(rule add user bob deny)
check "a rule stops it at once" eval '! echoes 7777 stopped 1'
check "its program learns why" wait_for grep -q 'Permission denied' /tmp/echo.out
check "ps says which" eval 'kopictl ps --json | has --argjson handle "$handle" \
	".[0] | .denied == [\"out\", \"in\"] and .rule_in == \$handle and .rule_out == \$handle"'
check "and its drops" wait_for eval 'kopictl ps --json | has ".[0].stats.rx_drop_rule >= 1"'
rule del "$handle"
check "without the rule it goes on" echoes 7777 again

# The mount namespace of ip netns exec ends with the command, and bpffs in it.
mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf
hooks=/sys/fs/bpf/kopi-enforce
enforce_is() { kopictl doctor --json 2>/dev/null | has --arg state "$1" 'map(select(.what == "enforce")) | length == 1 and .[0].state == $state'; }
elsewhere() { ip netns exec host bash -c "$1"; }
check "where hooks would not stay, rules aren't enforced" ends_with 1 elsewhere 'kopictl rule enforce on'
check "and it is said where they do" eval 'says "nsenter --net=/run/netns/NAME kopictl" && ! grep -q "mount -t" /tmp/out'
check "nor where bpffs is mounted for that" ends_with 1 elsewhere 'mount -t bpf none /sys/fs/bpf && kopictl rule enforce on'
check "as is said" says "nsenter --net=/run/netns/NAME kopictl"
check "they stay as they were" eval 'rule list --json | has ".enforce == false"'
check "with nsenter they are enforced" rule enforce on
check "which doctor sees, also from there" eval 'enforce_is ok && elsewhere "kopictl doctor" 2>&1 | grep -q "^enforce  *rules judge"'
check "hooks that can't be taken away are told" ends_with 1 elsewhere 'kopictl rule enforce off'
check "with the way" says "the hooks stay loaded: \`nsenter"
check "once more" rule enforce on
rm -r "$hooks"
check "doctor finds that hooks are gone" wait_for enforce_is wrong
check "and fails" ends_with 1 kopictl doctor
check "they come back" eval 'rule enforce on && [ -e "$hooks/kopi_bind" ] && enforce_is ok'
# A pin that leads to nothing.
rm "$hooks/kopi_found" && mkdir "$hooks/kopi_found"
printf 'enforce on\n' >/tmp/only
check "rules are enforced where open sockets can't be looked up" eval 'kopictl config apply --json /tmp/only 2>/tmp/out | has \
	".failed == 0" && rule list --json | has .enforce'
check "which is said" says "the sockets that are open now can't be looked up"
rmdir "$hooks/kopi_found"
check "they are again" rule enforce on
cp "$nc" /tmp/removed
rule add exe /tmp/removed local-port 5434 allow >/dev/null
rm /tmp/removed
check "rules are no longer enforced, also where a rule's program is gone" eval 'rule enforce off && [ ! -e "$hooks" ] &&
	rule list --json | has ".enforce == false and .rules[-1].exe_stale"'
rule flush

# A namespace that ends by itself leaves them.
ip netns add brief
check "the last namespace that enforces ends" eval 'nsenter --net=/run/netns/brief kopictl rule enforce on && ip netns del brief'
check "doctor finds that its hooks are left" wait_for enforce_is note
check "which go as it says" eval 'kopictl doctor 2>/dev/null | grep -qx " *kopictl rule enforce off" &&
	rule enforce off && [ ! -e "$hooks" ] && ! enforce_is note'

# Engines are the machine's. A line means the same whatever was before.
engines() { echo "engines $1" >/tmp/engines.conf && kopictl config apply /tmp/engines.conf && kopictl engine --json | has "$2"; }
check "a CPU that is named twice is one" engines "cpus 0,0" '[.[].cpu] == [0]'
check "engines are as a line says" engines "cpus 0 idle 500 budget 2048" '.[0] | .idle == 500 and .budget == 2048'
check "what it doesn't say is as after a boot" engines "cpus 0" '.[0] | .idle == 1000 and .budget == 65536'
check "none" engines off '. == []'

# In the initial network namespace, for which kopi.conf is.
mkdir -p /etc/kopi && mount -t tmpfs none /etc/kopi
told() { "$@" kopictl doctor --json 2>/dev/null | jq -r '.[] | select(.what == "kopi.conf") | .state + ": " + .text'; }
check "without a kopi.conf, doctor has no word of it" [ -z "$(told command)" ]
echo 'rule user root allow' >/etc/kopi/kopi.conf
check "where none of its rules is in force, it has" [ "$(told command)" = 'wrong: none of its rules is in force' ]
check "but not elsewhere" [ -z "$(told in_host)" ]
check "nor for somebody else" [ -z "$(told as bob)" ]
command kopictl config apply
check "nor once they are" [ -z "$(told command)" ]
handle=$(command kopictl rule add user bob deny)
check "where other rules are, it has, too" [ "$(told command)" = 'wrong: other rules than its are in force' ]
command kopictl rule del "$handle"
echo 'default deny' >>/etc/kopi/kopi.conf
check "and where the default is another" [ "$(told command)" = "wrong: its default isn't in force" ]
sed -i 's/^default deny/default allow/' /etc/kopi/kopi.conf
check "nothing where all is" [ -z "$(told command)" ]
sed -i '/^default/d' /etc/kopi/kopi.conf
echo 'rule exe /tmp/nowhere deny' >>/etc/kopi/kopi.conf
check "one that is wrong is found before a boot" eval '[[ $(told command) == \
	"wrong: can'"'"'t be put in force as it is: /etc/kopi/kopi.conf:2: exe can'"'"'t be looked up"* ]]'
command kopictl rule flush
echo 'attach nowhere0' >/etc/kopi/kopi.conf
check "a device that isn't there is told" [ "$(told command)" = \
	'note: /etc/kopi/kopi.conf:1: there is no device nowhere0: it is attached when it comes' ]
echo 'limit user_max_flows 5000000000' >/tmp/only
check "a limit of more than 32 bits is found by a check" ends_with 1 kopictl config check /tmp/only
check "with what it can be" says "/tmp/only:1: limit user_max_flows: 5000000000 is no number from 0 to 4294967295"
umount /etc/kopi

as_bob() { in_host setpriv --reuid bob --regid bob --clear-groups -- kopictl "$@"; }
check "changes take a privilege" ends_with 4 as_bob rule add allow
printf 'default deny\nattach eth0\nrule user bob allow\n' >/tmp/only
check "a configuration, too" ends_with 4 as_bob config apply /tmp/only
finish
