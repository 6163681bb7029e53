// SPDX-License-Identifier: GPL-2.0

//! Checks of the header in front of a packet.

use super::{jump, load, new, Instruction};
use kopi::pure::abi::{MonHdr, MON_PASSED, MON_VERSION};
use libc::{BPF_ABS, BPF_B, BPF_H, BPF_IMM, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use std::mem::offset_of;

/// What a packet's header must say.
#[derive(Debug, Default)]
pub(in super::super) struct Criteria {
    /// The process.
    pub(in super::super) pid: Option<u32>,
    /// Its user.
    pub(in super::super) uid: Option<u32>,
    /// Device and inode of its program.
    pub(in super::super) exe: Option<(u32, u64)>,
    /// The flow.
    pub(in super::super) flow: Option<u32>,
    /// The device.
    pub(in super::super) ifindex: Option<u32>,
    /// That the packet did not pass.
    pub(in super::super) dropped: bool,
}

impl Criteria {
    /// Instructions that let pass what the header says so of, and leave the accumulator as it was. Of
    /// headers of other versions they understand nothing: these pass at once.
    pub(super) fn checks(&self, accepted: u32) -> Vec<Instruction> {
        let known = u32::from_be_bytes([0, 0, MON_VERSION, MonHdr::LEN as u8]);
        let mut checks = vec![
            new(BPF_LD | BPF_H | BPF_ABS, 0),
            jump(BPF_JMP | BPF_JEQ | BPF_K, known, 1, 0),
            new(BPF_RET | BPF_K, accepted),
        ];
        let words = [
            (offset_of!(MonHdr, pid), self.pid),
            (offset_of!(MonHdr, uid), self.uid),
            (offset_of!(MonHdr, flow), self.flow),
            (offset_of!(MonHdr, ifindex), self.ifindex),
            (offset_of!(MonHdr, exe_device), self.exe.map(|exe| exe.0)),
        ];
        for (offset, word) in words {
            if let Some(word) = word {
                checks.extend(equals(offset, word.to_ne_bytes()));
            }
        }
        if let Some((_, inode)) = self.exe {
            let (first, last) = halves(inode);
            let offset = offset_of!(MonHdr, exe_inode);
            checks.extend(equals(offset, first));
            checks.extend(equals(offset + 4, last));
        }
        if self.dropped {
            checks.extend([
                load(BPF_B, offset_of!(MonHdr, verdict)),
                jump(BPF_JMP | BPF_JEQ | BPF_K, MON_PASSED.into(), 0, 1),
                new(BPF_RET | BPF_K, 0),
            ]);
        }
        checks.push(new(BPF_LD | BPF_IMM, 0));
        checks
    }
}

/// The two words of a number, as they lie in memory.
fn halves(number: u64) -> ([u8; 4], [u8; 4]) {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    ([a, b, c, d], [e, f, g, h])
}

/// Lets pass what has these bytes there. Loads are big-endian, whatever the header is.
fn equals(offset: usize, bytes: [u8; 4]) -> [Instruction; 3] {
    [
        load(BPF_W, offset),
        jump(BPF_JMP | BPF_JEQ | BPF_K, u32::from_be_bytes(bytes), 1, 0),
        new(BPF_RET | BPF_K, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            filter,
            machine::{framed, header, run, udp, SNAPLEN},
        },
        *,
    };
    use kopi::pure::abi::MON_DROPPED;

    #[test]
    fn headers_are_checked() {
        let passes = |criteria: Criteria, header: MonHdr| {
            let program = filter(&criteria, "udp", SNAPLEN).unwrap();
            run(&program, &framed(header, &udp(1, 2, 3))) != 0
        };
        let all = || Criteria {
            pid: Some(0x0102_0304),
            uid: Some(1001),
            exe: Some((0x0080_0001, 0x1122_3344_5566_7788)),
            flow: Some(5),
            ifindex: Some(2),
            dropped: true,
        };
        let dropped = MonHdr {
            verdict: MON_DROPPED,
            ..header()
        };
        assert!(passes(all(), dropped));
        assert!(!passes(all(), header()));
        for other in [
            MonHdr { pid: 1, ..dropped },
            MonHdr { uid: 1, ..dropped },
            MonHdr { flow: 1, ..dropped },
            MonHdr {
                ifindex: 1,
                ..dropped
            },
            MonHdr {
                exe_device: 1,
                ..dropped
            },
            MonHdr {
                exe_inode: 0x1122_3344_5566_7789,
                ..dropped
            },
            MonHdr {
                exe_inode: 0x0122_3344_5566_7788,
                ..dropped
            },
        ] {
            assert!(!passes(all(), other), "{other:?}");
            assert!(passes(Criteria::default(), other));
        }
        // They are shown, and found to be of another version.
        let newer = MonHdr {
            version: MON_VERSION + 1,
            ..header()
        };
        assert!(passes(all(), newer));
    }
}
