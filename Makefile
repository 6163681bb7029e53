# SPDX-License-Identifier: GPL-2.0
#
# What can be done here; `make help` says it, too.

# Which stock kernel: a series (7.2), all, or newest.
KERNEL ?= newest
# For `make module`: an exact stock kernel, as of uname -r.
KVER ?=

step := qemu/step

.DEFAULT_GOAL := build
.PHONY: build run test test-all programs suites test-direct test-sendmsg test-peers test-nics test-secure-boot test-debug smoke-debug test-kcsan fuzz fuzz-stock coverage soak build-debug shell module policy bench bench-wall bench-programs bench-check tools python bpf ynl netlink rigs deb sysroot kernel clean help

help:
	@echo 'make             build module and tools (KERNEL=7.2, KERNEL=all: for other kernels)'
	@echo 'make run         from nothing to a demonstration in a virtual machine'
	@echo 'make test        all checks and tests; KERNEL=all on each supported kernel'
	@echo 'make test-all    that and all of the following that tests, in many hours, with the time of each part'
	@echo 'make programs    23 programs of Debian by `kopi run`, and with UDP sockets; make test has eight of them'
	@echo "make suites      CPython's and socat's tests of sockets by kopi run; LTP=DIRECTORY: of a checkout of LTP, too"
	@echo 'make test-direct   those that send by NICs, with these attached'
	@echo 'make test-sendmsg   the policies, for flows that send by sendmsg()'
	@echo 'make test-peers  the policies, with sixteen peers in turn'
	@echo 'make test-nics   what goes by NICs, on other models of them: igb, vmxnet3, e1000e, virtio with four queues'
	@echo 'make test-secure-boot   the module, signed and unsigned, on a machine with Secure Boot'
	@echo 'make test-debug  the selftests on a kernel built with KASAN, lockdep, CFI and so on; FILES=NAMES for some'
	@echo 'make smoke-debug   six of them on it, in minutes'
	@echo 'make test-kcsan  those with many threads, on a kernel that looks for data races (KCSAN)'
	@echo 'make fuzz SECONDS=N   the fuzzers on that kernel'
	@echo 'make fuzz-stock SECONDS=N   the same on the stock kernel; FUZZERS="rings.sh frames.py": those only'
	@echo 'make coverage SECONDS=N   which lines of the module the fuzzers run, and which the selftests (FILES) besides'
	@echo 'make soak SECONDS=N   mixed traffic, churn and changes of rules for ten minutes, or so long'
	@echo 'make policy      docs/policy.md: its table, written anew by the policy tests'
	@echo 'make bench       what packets cost by rings and by their rivals: build/bench.json, and tables'
	@echo 'make bench-wall  how many packets there are in a second, of one sender and of two'
	@echo 'make bench-programs   what questions cost servers of Debian, with sockets and by `kopi run`'
	@echo 'make bench-check fails if a few of those rows got 5 % worse than bench/table.json has them'
	@echo "make rigs        the kernel's own selftests, by kopi run"
	@echo 'make python      build/python/kopi-*.whl: the Python package, which needs libkopi.so.1'
	@echo 'make deb         build/deb/*.deb: Debian packages of the tools, the libraries and the module (KERNEL=all)'
	@echo 'make netlink     src/netlink/family.[ch] and uapi/kopi_netlink.h anew, from uapi/kopi.yaml'
	@echo 'make shell       a login in the machine'
	@echo 'make module KVER=NAME   build/NAME/kopi.ko for an installed stock kernel'
	@echo 'make clean       remove what was built (the cache in ~/.cache/kopi stays)'
	@echo 'qemu/vm --help   run a command in the machine'

sysroot:
	@qemu/kernel --check $(or $(KVER),$(KERNEL))
	@$(step) sysroot qemu/sysroot

kernel: sysroot
	@$(step) kernel qemu/kernel $(KERNEL)

tools: sysroot
	@$(step) tools qemu/build tools

build: kernel tools
	@for name in $$(qemu/kernel $(KERNEL)); do $(step) module-$$name qemu/build module $$name || exit 1; done

run: build
	@for name in $$(qemu/kernel $(KERNEL)); do \
		echo "demonstration on $$name:"; qemu/vm --kernel $$name --timeout 900 -- qemu/demo || exit 1; done

python: sysroot
	@mkdir -p build/python && qemu/enter python3 /kopi/tools/python/wheel.py /kopi/build/python

deb: build
	@$(step) deb packaging/deb $$(qemu/kernel $(KERNEL))
	@ls build/deb/*.deb

bpf: sysroot
	@$(step) bpf qemu/build bpf

ynl: kernel
	@$(step) ynl qemu/build ynl $$(qemu/kernel $(KERNEL) | tail -1)

netlink: kernel
	@qemu/netlink

rigs: build
	@$(step) rigs-build qemu/build rigs $$(qemu/kernel $(KERNEL) | tail -1)
	@qemu/vm --timeout 3600 -- selftests/rigs/run.sh

programs: build
	@qemu/vm --timeout 3600 -- env ALL=1 selftests/preload_programs.sh

# LTP=DIRECTORY: a checkout of the Linux Test Project.
suites: build
	@$(step) suites qemu/suites $(LTP)
	@qemu/vm --mem 1536 --timeout 10800 -- selftests/suites.py

# What of the selftests sends by the machine's NICs, with these attached.
DIRECT := $(addsuffix .py,policy_nftables policy_tc policy_routing policy_options policy_ports policy_bpf policy_devices policy_iptables \
	policy_seeing live_changes direct_sends direct_receives direct_receives_hooked \
	direct_receives_datagrams direct_receives_routed direct_receives_rewritten direct_receives_changing \
	direct_reasons direct_datagrams)
test-direct: build bpf ynl
	@qemu/vm --timeout 3600 -- env DIRECT=1 selftests/run $(DIRECT)

# The same on other models of NIC; e1000e takes no frames from KOPI.
NICS := nic_offloads.py integrity_traffic.sh held_frames.py
test-nics: build bpf ynl
	@for model in igb vmxnet3; do echo "$$model:"; qemu/vm --model $$model --timeout 3600 -- selftests/run $(NICS) \
		direct_receives_datagrams.py direct_receives_routed.py fuzz_frames.py nic_changes.py queues_spread.py && \
		qemu/vm --model $$model --timeout 1800 -- selftests/lifetimes_matrix.py 'unplug/*' || exit 1; done
	@echo e1000e:; qemu/vm --model e1000e --timeout 1200 -- selftests/run $(NICS)
	@echo virtio:; qemu/vm --timeout 1200 -- env ALL=1 selftests/run uppers_hooked.py
	@echo virtio with four queues:; qemu/vm --model virtio-taps --timeout 1200 -- selftests/run queues_spread.py nic_changes.py

# The policies, for flows that send by sendmsg() and the routes that a channel remembers. Those of privileges are
# about doorbells.
POLICIES := $(filter-out policy_privilege.py,$(notdir $(wildcard selftests/policy_*.py)))
test-sendmsg: build bpf
	@qemu/vm --timeout 3600 -- env SENDMSG=1 selftests/run $(POLICIES)

# The policies, with single datagrams to and from sixteen peers in turn: by the stack, and by NICs that are attached.
test-peers: build bpf
	@for attached in '' 1; do \
		qemu/vm --timeout 3600 -- env PEERS=16 DIRECT=$$attached selftests/run $(POLICIES) || exit 1; done

# By the newest kernel; the way of docs/admin.md.
test-secure-boot: build
	@packaging/secure-boot

test: build bpf ynl
	@$(step) rigs-build qemu/build rigs $$(qemu/kernel $(KERNEL) | tail -1)
	@qemu/test $(KERNEL) $(if $(DEBUG_UNTIL),$(DEBUG_UNTIL) $(SMOKE))

test-all:
	@qemu/test-all

build-debug: tools bpf ynl
	@$(step) kernel-debug qemu/kernel debug
	@$(step) module-debug qemu/build module $$(qemu/kernel debug)

# Many times slower there: hours. FILES='rings_work.py …': those only.
test-debug: build-debug
	@qemu/recorded --kernel debug --mem 4096 --timeout infinity -- env FUZZ_SECONDS=60 COUNT=250 KILL_CYCLES=200 \
		selftests/run $(FILES)

# Of them, a few that meet most of the code, in eight minutes.
SMOKE := rings_work.py engine_lifetimes.py closed_while_receiving.py exec_fork_passing.py fuzz_calls.sh fuzz_rings.sh
smoke-debug: build-debug
	@qemu/vm --kernel debug --mem 4096 --timeout 3600 -- env FUZZ_SECONDS=10 selftests/run $(SMOKE)

# Data races in which KOPI has a part: what has many threads and CPUs at once.
RACES := rings_work.py fuzz_rings.sh fuzz_calls.sh closed_while_receiving.py killed_processes.py integrity_traffic.sh \
	live_changes.py rules_by_process.py monitor_devices.py \
	direct_datagrams.py direct_receives_datagrams.py direct_receives_routed.py sendmsg_by_routes.py
test-kcsan: tools bpf ynl
	@$(step) kernel-kcsan qemu/kernel kcsan
	@$(step) module-kcsan qemu/build module $$(qemu/kernel kcsan)
	@qemu/vm --kernel kcsan --mem 2048 --timeout 3600 -- env KILL_CYCLES=40 selftests/run $(RACES)

# How long: each fuzzer, or all that goes on at once.
SECONDS ?= 600
FUZZERS ?= rings.sh calls.sh netlink.py frames.py
fuzz_them = env FUZZ_SECONDS=$(SECONDS) bash -c 'for each in $(FUZZERS); do selftests/fuzz_$$each || exit; done'
fuzz: build-debug
	@qemu/recorded --kernel debug --mem 4096 --timeout infinity -- $(fuzz_them)

fuzz-stock: build bpf ynl
	@qemu/recorded --kernel $(firstword $(KERNEL)) --timeout infinity -- $(fuzz_them)

# Which lines of the module the fuzzers run, and which the selftests run besides.
coverage: build bpf ynl
	@mkdir -p build/coverage
	@qemu/vm --reached build/coverage/fuzzers --timeout infinity -- $(fuzz_them)
	@qemu/vm --reached build/coverage/tests --timeout infinity -- selftests/run $(FILES)
	@qemu/enter /kopi/qemu/coverage /kopi/build/$$(qemu/kernel newest)/kopi.ko /kopi/build/coverage/fuzzers \
		/kopi/build/coverage/tests

soak: build bpf
	@qemu/recorded --timeout infinity -- env SOAK_SECONDS=$(SECONDS) selftests/soak.py

policy: build bpf
	@qemu/policy $(firstword $(KERNEL))

bench: build bpf
	@bench/run $(KERNEL)

bench-wall: build
	@bench/run --wall $(KERNEL)

bench-programs: build
	@bench/run --programs $(KERNEL)

bench-check: build
	@bench/check $(firstword $(KERNEL))

shell: build
	@qemu/vm --kernel $(KERNEL) --shell

module: sysroot
	@test -n "$(KVER)" || { echo 'say for which kernel: make module KVER=$$(uname -r)'; exit 2; }
	@$(step) kernel-$(KVER) qemu/kernel $(KVER)
	@$(step) module-$(KVER) qemu/build module $(KVER)
	@echo build/$(KVER)/kopi.ko

clean:
	rm -rf build
