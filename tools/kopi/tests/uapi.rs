// SPDX-License-Identifier: GPL-2.0

//! `uapi/kopi.h` against its Rust counterpart, and the C compiler's view of both.
#![cfg(not(loom))]

use kopi::pure::{
    abi::{self, *},
    counters::COUNTERS,
};
use std::{
    env, fs,
    mem::{offset_of, size_of, size_of_val},
    path::{Path, PathBuf},
    process::Command,
};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a compiler; what it says is the test's failure.
fn compile(compiler: &str, arguments: &[&str]) {
    let output = Command::new(compiler)
        .args(arguments)
        .arg("-I")
        .arg(tree().join("uapi"))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}: these tests need a C compiler"));
    assert!(
        output.status.success(),
        "{compiler} {arguments:?}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn cc() -> String {
    env::var("CC").unwrap_or("cc".into())
}

fn scratch(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    path.to_str().expect("a path in UTF-8").into()
}

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

/// C expressions and what Rust has for them.
#[derive(Default)]
struct Pairs(Vec<(String, u64)>);

impl Pairs {
    fn add(&mut self, expression: impl Into<String>, value: u64) {
        self.0.push((expression.into(), value));
    }
}

/// Size, and offset and size of each field; that the fields fill the struct shows none is missing.
macro_rules! compare {
    ($pairs:ident, $type:ident = $name:literal, $($field:ident),*) => {
        $pairs.add(concat!("sizeof(struct ", $name, ")"), size_of::<$type>() as u64);
        let value = $type::default();
        let mut filled = 0;
        $(
            let field = stringify!($field);
            let size = size_of_val(&value.$field);
            $pairs.add(
                format!("offsetof(struct {}, {field})", $name),
                offset_of!($type, $field) as u64,
            );
            $pairs.add(format!("sizeof(((struct {} *)0)->{field})", $name), size as u64);
            filled += size;
        )*
        assert_eq!(filled, size_of::<$type>(), "fields of {}", $name);
    };
}

macro_rules! constants {
    ($pairs:ident, $($name:literal = $value:expr),* $(,)?) => {
        $($pairs.add($name, u64::try_from($value).unwrap());)*
    };
}

fn pairs() -> Pairs {
    let mut pairs = Pairs::default();
    add_options(&mut pairs);
    add_stats(&mut pairs);
    add_rings(&mut pairs);
    add_watching(&mut pairs);
    add_constants_of_sockets(&mut pairs);
    add_constants_of_packets(&mut pairs);
    pairs
}

/// What getsockopt() and setsockopt() take and give.
fn add_options(pairs: &mut Pairs) {
    compare!(
        pairs,
        Info = "kopi_info",
        abi_version,
        family,
        flow,
        has_channel,
        frame_headroom,
        frame_size_min,
        frame_size_max,
        frames_max,
        ring_entries_max,
        region_size_max,
        chain_max,
        copybreak,
        reserved
    );
    compare!(
        pairs,
        ChannelReq = "kopi_channel_req",
        flags,
        frame_size,
        frame_count,
        tx_entries,
        completion_entries,
        fill_entries,
        rx_entries,
        reserved
    );
    compare!(pairs, Join = "kopi_join", fd, reserved);
    compare!(
        pairs,
        RingLayout = "kopi_ring_layout",
        producer,
        consumer,
        flags,
        entries,
        size,
        entry_size,
        reserved
    );
    compare!(
        pairs,
        Layout = "kopi_layout",
        region_size,
        flags,
        frames,
        frame_size,
        frame_count,
        reserved,
        tx,
        completion,
        fill,
        rx
    );
}

fn add_stats(pairs: &mut Pairs) {
    pairs.add("sizeof(struct kopi_stats)", size_of::<Stats>() as u64);
    // The words behind the last counter are reserved: none of the header's is missing in the table.
    let names = COUNTERS.iter().map(|counter| counter.name);
    for (place, name) in (0_u64..).zip(names.chain(["reserved"])) {
        pairs.add(format!("offsetof(struct kopi_stats, {name})"), 8 * place);
    }
}

/// What is in the rings, and in frames.
fn add_rings(pairs: &mut Pairs) {
    compare!(pairs, Desc = "kopi_desc", offset, len, flow, flags, error);
    compare!(
        pairs,
        Meta = "kopi_meta",
        peer,
        local,
        peer_port,
        local_port,
        family,
        gso_size,
        ifindex,
        flags,
        tos,
        ttl,
        len,
        mark,
        timestamp
    );
}

/// What those are given who look at others' packets and ports.
fn add_watching(pairs: &mut Pairs) {
    compare!(pairs, PortMap = "kopi_port_map", ports, ifindex, reserved);
    compare!(
        pairs,
        MonHdr = "kopi_mon_hdr",
        version,
        len,
        direction,
        verdict,
        reason,
        rule,
        ifindex,
        flow,
        pid,
        uid,
        gid,
        cgroup,
        exe_inode,
        exe_device,
        gso_size,
        command,
        reserved
    );
}

fn add_constants_of_sockets(pairs: &mut Pairs) {
    constants!(
        pairs,
        "KOPI_ABI_VERSION" = ABI_VERSION,
        "AF_KOPI" = AF_KOPI,
        "PF_KOPI" = AF_KOPI,
        "KOPI_PROTO_UDP" = PROTO_UDP,
        "KOPI_PROTO_UDP6" = PROTO_UDP6,
        "KOPI_PROTO_TCP" = PROTO_TCP,
        "KOPI_PROTO_TCP6" = PROTO_TCP6,
        "SOL_KOPI" = SOL_KOPI,
        "KOPI_OPT_INFO" = OPT_INFO,
        "KOPI_OPT_CHANNEL" = OPT_CHANNEL,
        "KOPI_OPT_JOIN" = OPT_JOIN,
        "KOPI_OPT_STATS" = OPT_STATS,
        "KOPI_FRAME_HEADROOM" = FRAME_HEADROOM,
        "KOPI_FRAME_SIZE_MIN" = FRAME_SIZE_MIN,
        "KOPI_FRAME_SIZE_MAX" = FRAME_SIZE_MAX,
        "KOPI_FRAMES_MAX" = FRAMES_MAX,
        "KOPI_RING_ENTRIES_MAX" = RING_ENTRIES_MAX,
        "KOPI_REGION_SIZE_MAX" = REGION_SIZE_MAX,
        "KOPI_CHAIN_MAX" = CHAIN_MAX,
        "KOPI_CHANNEL_GSO" = CHANNEL_GSO,
        "KOPI_CHANNEL_GRO" = CHANNEL_GRO,
        "KOPI_CHANNEL_GRO_MERGED" = CHANNEL_GRO_MERGED,
        "KOPI_CHANNEL_ENGINE" = CHANNEL_ENGINE,
        "KOPI_CHANNEL_TX_ONLY" = CHANNEL_TX_ONLY,
        "KOPI_IOC_DOORBELL" = IOC_DOORBELL,
        "KOPI_BELL_TX" = BELL_TX,
        "KOPI_BELL_WAIT_RX" = BELL_WAIT_RX,
        "KOPI_BELL_WAIT_COMPLETION" = BELL_WAIT_COMPLETION,
        "KOPI_BELL_SEND" = BELL_SEND,
        "KOPI_POLL_COMPLETION" = libc::POLLWRBAND.unsigned_abs(),
    );
}

fn add_constants_of_packets(pairs: &mut Pairs) {
    constants!(
        pairs,
        "KOPI_RING_NEED_WAKEUP" = RING_NEED_WAKEUP,
        "KOPI_DESC_MORE" = DESC_MORE,
        "KOPI_DESC_META" = DESC_META,
        "KOPI_META_LOCAL" = META_LOCAL,
        "KOPI_META_TOS" = META_TOS,
        "KOPI_META_TTL" = META_TTL,
        "KOPI_META_MARK" = META_MARK,
        "KOPI_META_TIMESTAMP" = META_TIMESTAMP,
        "KOPI_META_TXTIME" = META_TXTIME,
        "KOPI_MON_VERSION" = MON_VERSION,
        "KOPI_MON_OUT" = MON_OUT,
        "KOPI_MON_IN" = MON_IN,
        "KOPI_MON_PASSED" = MON_PASSED,
        "KOPI_MON_DROPPED" = MON_DROPPED,
        "KOPI_MON_REFUSED" = MON_REFUSED,
        "KOPI_MON_REASON_RING_FULL" = MON_REASON_RING_FULL,
        "KOPI_MON_REASON_NO_FRAME" = MON_REASON_NO_FRAME,
        "KOPI_MON_REASON_TOO_LONG" = MON_REASON_TOO_LONG,
        "KOPI_MON_REASON_RULE" = MON_REASON_RULE,
        "KOPI_MON_REASON_RATE" = MON_REASON_RATE,
        "AF_INET" = abi::AF_INET,
        "AF_INET6" = abi::AF_INET6,
    );
}

#[test]
fn rust_says_what_the_header_says() {
    let pairs = pairs().0;
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <sys/socket.h>\n#include <kopi.h>\n\
         int main(void)\n{\n",
    );
    for (expression, _) in &pairs {
        program += &format!("\tprintf(\"%llu\\n\", (unsigned long long)({expression}));\n");
    }
    program += "\treturn 0;\n}\n";
    let (source, binary) = (scratch("compare.c"), scratch("compare"));
    fs::write(&source, program).unwrap();
    compile(&cc(), &["-o", &binary, &source]);
    let output = Command::new(&binary).output().unwrap();
    let values: Vec<u64> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(values.len(), pairs.len());
    for ((expression, rust), c) in pairs.iter().zip(values) {
        assert_eq!(*rust, c, "{expression}: Rust has the left, C the right");
    }
}

/// Whatever the header defines is compared above.
#[test]
fn no_constant_is_forgotten() {
    let header = fs::read_to_string(tree().join("uapi/kopi.h")).unwrap();
    let pairs = pairs().0;
    let mut structs = 0;
    for line in header.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["#define", "_UAPI_KOPI_H"] => {}
            ["#define", name, _, ..] => {
                let known = pairs.iter().any(|(expression, _)| expression == name);
                assert!(known, "{name}");
            }
            ["struct", name, "{"] => {
                let size = format!("sizeof(struct {name})");
                let known = pairs.iter().any(|(expression, _)| *expression == size);
                assert!(known, "{name}");
                structs += 1;
            }
            _ => {}
        }
    }
    assert_eq!(structs, 10);
}

#[test]
fn header_is_c11_by_itself() {
    let source = scratch("alone.c");
    fs::write(&source, "#include <kopi.h>\nint kopi_alone;\n").unwrap();
    compile(
        &cc(),
        &[&STRICT[..], &["-std=c11", "-fsyntax-only", &source]].concat(),
    );
}

#[test]
fn header_is_cxx17_by_itself() {
    let source = scratch("alone.cc");
    fs::write(&source, "#include <kopi.h>\nint kopi_alone;\n").unwrap();
    let cxx = env::var("CXX").unwrap_or("c++".into());
    compile(
        &cxx,
        &[&STRICT[..], &["-std=c++17", "-fsyntax-only", &source]].concat(),
    );
}

#[test]
fn c_example_compiles() {
    let source = tree().join("tools/c/kopi-echo.c");
    let source = source.to_str().unwrap();
    let binary = scratch("kopi-echo");
    compile(
        &cc(),
        &[
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            &binary,
            source,
        ],
    );
    let lines = fs::read_to_string(source).unwrap().lines().count();
    assert!(lines <= 60, "{lines} lines are no short example");
}
