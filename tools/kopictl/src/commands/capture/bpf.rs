// SPDX-License-Identifier: GPL-2.0

//! Filters of classic BPF: what libpcap makes of an expression about packets, moved behind the header
//! that a monitor device shows in front of each, and put after checks of that header.

use anyhow::{bail, ensure, Context};
use kopi::pure::abi::{MonHdr, MON_PASSED, MON_VERSION};
use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP,
    BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MSH, BPF_RET,
    BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W,
};
use pcap::{Capture, Linktype};
use std::mem::offset_of;

/// DLT_RAW: packets begin with their IP header.
const RAW: Linktype = Linktype(12);
/// The kernel takes no more instructions.
const INSTRUCTIONS_MAX: usize = 4096;
/// Slots of scratch memory.
const SLOTS: u32 = 16;
/// Where the kernel has a packet's type, which `inbound` and `outbound` ask for.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// PACKET_OUTGOING is this many bits to the left of MON_OUT.
const OUTGOING: u32 = 2;
/// Offsets from here on are negative: no packet's.
const NEGATIVE: u32 = 1 << 31;
/// The header in front of a packet, in bytes.
const HEADER: u32 = MonHdr::LEN as u32;

/// As `struct sock_filter` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Instruction {
    /// What is done.
    pub(super) code: u16,
    /// How far to jump if it is true.
    pub(super) jt: u8,
    /// How far to jump if it isn't.
    pub(super) jf: u8,
    /// A number.
    pub(super) k: u32,
}

/// An instruction of this code, which is a sum of BPF_*.
const fn new(code: u32, k: u32) -> Instruction {
    jump(code, k, 0, 0)
}

#[expect(clippy::cast_possible_truncation, reason = "codes have eight bits")]
const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> Instruction {
    let code = code as u16;
    Instruction { code, jt, jf, k }
}

/// What a packet's header must say.
#[derive(Debug, Default)]
pub(super) struct Criteria {
    /// The process.
    pub(super) pid: Option<u32>,
    /// Its user.
    pub(super) uid: Option<u32>,
    /// Device and inode of its program.
    pub(super) exe: Option<(u32, u64)>,
    /// The flow.
    pub(super) flow: Option<u32>,
    /// The device.
    pub(super) ifindex: Option<u32>,
    /// That the packet did not pass.
    pub(super) dropped: bool,
}

impl Criteria {
    /// Instructions that let pass what the header says so of, and leave the accumulator as it was. Of
    /// headers of other versions they understand nothing: these pass at once.
    fn checks(&self, accepted: u32) -> Vec<Instruction> {
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

/// Loads what is in the header.
#[expect(clippy::cast_possible_truncation, reason = "the header is short")]
fn load(size: u32, offset: usize) -> Instruction {
    new(BPF_LD | size | BPF_ABS, offset as u32)
}

/// Lets pass what has these bytes there. Loads are big-endian, whatever the header is.
fn equals(offset: usize, bytes: [u8; 4]) -> [Instruction; 3] {
    [
        load(BPF_W, offset),
        jump(BPF_JMP | BPF_JEQ | BPF_K, u32::from_be_bytes(bytes), 1, 0),
        new(BPF_RET | BPF_K, 0),
    ]
}

/// The filter for packets that meet `criteria` and the expression; it keeps `snaplen` bytes of each.
pub(super) fn filter(
    criteria: &Criteria,
    expression: &str,
    snaplen: u32,
) -> anyhow::Result<Vec<Instruction>> {
    let accepted = snaplen.saturating_add(HEADER);
    let mut program = criteria.checks(accepted);
    program.extend(behind_header(&compile(expression)?, accepted)?);
    ensure!(
        program.len() <= INSTRUCTIONS_MAX,
        "the filter is too long: {} instructions, and {INSTRUCTIONS_MAX} are possible",
        program.len()
    );
    Ok(program)
}

/// What libpcap makes of an expression.
pub(super) fn compile(expression: &str) -> anyhow::Result<Vec<Instruction>> {
    let compiled = Capture::dead(RAW)?.compile(expression, true)?;
    let instructions = compiled.get_instructions().iter();
    instructions
        .map(|instruction| parse(&instruction.to_string()))
        .collect::<Option<_>>()
        .context("the filter can't be read")
}

/// Reads an instruction as `tcpdump -ddd` prints it.
fn parse(text: &str) -> Option<Instruction> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Instruction {
        code: next()?.try_into().ok()?,
        jt: next()?.try_into().ok()?,
        jf: next()?.try_into().ok()?,
        k: next()?,
    })
}

/// How an instruction leaves its block.
enum Exit {
    /// To the next one, or nowhere.
    Next,
    /// To the block of that number.
    Always(usize),
    /// To one of two blocks.
    Either(Instruction, usize, usize),
}

/// What comes in an instruction's place: instructions that jump nowhere else, and then its jump.
struct Block {
    body: Vec<Instruction>,
    exit: Exit,
    /// The jump doesn't reach, and goes by way of two that reach any distance.
    far: bool,
}

impl Block {
    fn len(&self) -> usize {
        let exit = match self.exit {
            Exit::Next => 0,
            Exit::Always(_) => 1,
            Exit::Either(..) if self.far => 3,
            Exit::Either(..) => 1,
        };
        self.body.len() + exit
    }
}

/// The same program for packets that have the header in front of them; returns `accepted` for those that
/// it keeps.
fn behind_header(program: &[Instruction], accepted: u32) -> anyhow::Result<Vec<Instruction>> {
    let spare = spare_slot(program);
    let block = |(number, instruction): (usize, &Instruction)| {
        Ok(Block {
            body: body(*instruction, accepted, spare)?,
            exit: exit(*instruction, number + 1),
            far: false,
        })
    };
    let mut blocks = program
        .iter()
        .enumerate()
        .map(block)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let starts = lay_out(&mut blocks);
    let end = *starts.last().unwrap_or(&0);
    let mut moved = Vec::with_capacity(end);
    for block in &blocks {
        moved.extend(&block.body);
        let here = moved.len();
        moved.extend(jumps(block, here, &starts)?);
    }
    Ok(moved)
}

/// Where each block begins, and the last ends. Jumps that don't reach become far ones, until all reach.
fn lay_out(blocks: &mut [Block]) -> Vec<usize> {
    loop {
        let mut starts = vec![0];
        for block in blocks.iter() {
            starts.push(starts.last().unwrap_or(&0) + block.len());
        }
        let mut grown = false;
        for (block, end) in blocks.iter_mut().zip(&starts[1..]) {
            if let Exit::Either(_, yes, no) = block.exit {
                let furthest = starts.get(yes.max(no)).map_or(0, |start| start - end);
                if !block.far && furthest > u8::MAX.into() {
                    (block.far, grown) = (true, true);
                }
            }
        }
        if !grown {
            return starts;
        }
    }
}

/// The jumps at the end of a block, which are at `here`.
fn jumps(block: &Block, here: usize, starts: &[usize]) -> anyhow::Result<Vec<Instruction>> {
    let distance = |from: usize, to: usize| {
        let start = starts.get(to).and_then(|start| start.checked_sub(from + 1));
        start.context("the filter jumps out of itself")
    };
    let always = |from, to| {
        let k = u32::try_from(distance(from, to)?)?;
        anyhow::Ok(new(BPF_JMP | BPF_JA, k))
    };
    Ok(match block.exit {
        Exit::Next => vec![],
        Exit::Always(to) => vec![always(here, to)?],
        Exit::Either(condition, yes, no) if block.far => vec![
            Instruction {
                jt: 0,
                jf: 1,
                ..condition
            },
            always(here + 1, yes)?,
            always(here + 2, no)?,
        ],
        Exit::Either(condition, yes, no) => vec![Instruction {
            jt: distance(here, yes)?.try_into()?,
            jf: distance(here, no)?.try_into()?,
            ..condition
        }],
    })
}

/// Scratch memory that the program doesn't use.
fn spare_slot(program: &[Instruction]) -> Option<u32> {
    let used = |slot: u32| {
        program.iter().any(|instruction| {
            let code = u32::from(instruction.code);
            let memory = match code & 7 {
                BPF_LD | BPF_LDX => code & 0xe0 == BPF_MEM,
                class => class == BPF_ST || class == BPF_STX,
            };
            memory && instruction.k == slot
        })
    };
    (0..SLOTS).rev().find(|&slot| !used(slot))
}

/// Where an instruction jumps, if it does; `next` follows it.
fn exit(instruction: Instruction, next: usize) -> Exit {
    let code = u32::from(instruction.code);
    let far = |distance: u32| next.saturating_add(usize::try_from(distance).unwrap_or(usize::MAX));
    match (code & 7, code & 0xf0) {
        (BPF_JMP, BPF_JA) => Exit::Always(far(instruction.k)),
        (BPF_JMP, _) => Exit::Either(
            instruction,
            next + usize::from(instruction.jt),
            next + usize::from(instruction.jf),
        ),
        _ => Exit::Next,
    }
}

/// What comes in an instruction's place, but for jumps.
fn body(
    instruction: Instruction,
    accepted: u32,
    spare: Option<u32>,
) -> anyhow::Result<Vec<Instruction>> {
    let Instruction { code, k, .. } = instruction;
    let code = u32::from(code);
    Ok(match (code & 7, code & 0xe0) {
        (BPF_LD, BPF_ABS) if k == PACKET_TYPE => vec![
            load(BPF_B, offset_of!(MonHdr, direction)),
            new(BPF_ALU | BPF_LSH | BPF_K, OUTGOING),
        ],
        (BPF_LD, BPF_ABS) | (BPF_LDX, BPF_MSH) => {
            if k >= NEGATIVE - HEADER {
                bail!("the filter asks for what a capture of flows doesn't have");
            }
            vec![new(code, k + HEADER)]
        }
        (BPF_LD, BPF_IND) => indirect(instruction),
        (BPF_LD, BPF_LEN) => vec![instruction, new(BPF_ALU | BPF_SUB | BPF_K, HEADER)],
        (BPF_LDX, BPF_LEN) => {
            let spare = spare.context("the filter uses all scratch memory")?;
            vec![
                new(BPF_ST, spare),
                new(BPF_LD | BPF_W | BPF_LEN, 0),
                new(BPF_ALU | BPF_SUB | BPF_K, HEADER),
                new(BPF_MISC | BPF_TAX, 0),
                new(BPF_LD | BPF_MEM, spare),
            ]
        }
        (BPF_RET, _) if code & 0x18 == BPF_A => vec![
            jump(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
            new(BPF_RET | BPF_K, 0),
            new(BPF_RET | BPF_K, accepted),
        ],
        (BPF_RET, _) if k != 0 => vec![new(BPF_RET | BPF_K, accepted)],
        (BPF_JMP, _) => vec![],
        _ => vec![instruction],
    })
}

/// A load relative to the index register. What would be before the packet isn't in the header: there,
/// the program ends as behind the packet.
fn indirect(load: Instruction) -> Vec<Instruction> {
    vec![
        new(BPF_MISC | BPF_TXA, 0),
        new(BPF_ALU | BPF_ADD | BPF_K, load.k),
        jump(BPF_JMP | BPF_JSET | BPF_K, NEGATIVE, 0, 1),
        new(BPF_RET | BPF_K, 0),
        Instruction {
            k: load.k.wrapping_add(HEADER),
            ..load
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::packet, *};
    use kopi::pure::abi::{MON_DROPPED, MON_IN};
    use libc::{BPF_AND, BPF_DIV, BPF_JGE, BPF_JGT, BPF_OR, BPF_RSH, BPF_X};
    use proptest::{collection::vec, prelude::*, sample::select};

    const SNAPLEN: u32 = 100;
    const ACCEPTED: u32 = SNAPLEN + HEADER;

    /// What runs a program as the kernel does.
    struct Machine<'a> {
        packet: &'a [u8],
        accumulator: u32,
        index: u32,
        memory: [u32; SLOTS as usize],
    }

    impl Machine<'_> {
        fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
            let packet = self.packet.get(offset as usize..)?;
            packet.first_chunk().copied()
        }

        fn load(&self, code: u32, offset: u32) -> Option<u32> {
            Some(match code & 0x18 {
                BPF_B => u32::from(self.bytes::<1>(offset)?[0]),
                BPF_H => u16::from_be_bytes(self.bytes(offset)?).into(),
                _ => u32::from_be_bytes(self.bytes(offset)?),
            })
        }

        fn fetch(&self, code: u32, k: u32) -> Option<u32> {
            match code & 0xe0 {
                BPF_ABS => self.load(code, k),
                BPF_IND => self.load(code, self.index.wrapping_add(k)),
                BPF_LEN => u32::try_from(self.packet.len()).ok(),
                BPF_MEM => Some(self.memory[k as usize]),
                BPF_MSH => Some(u32::from(self.bytes::<1>(k)?[0] & 0xf) << 2),
                _ => Some(k),
            }
        }

        fn compute(&mut self, code: u32, operand: u32) -> Option<()> {
            let a = self.accumulator;
            self.accumulator = match code & 0xf0 {
                BPF_ADD => a.wrapping_add(operand),
                BPF_SUB => a.wrapping_sub(operand),
                BPF_AND => a & operand,
                BPF_OR => a | operand,
                BPF_LSH => a.wrapping_shl(operand),
                BPF_RSH => a.wrapping_shr(operand),
                BPF_DIV => a.checked_div(operand)?,
                other => panic!("ALU {other:#x}"),
            };
            Some(())
        }

        fn holds(&self, code: u32, operand: u32) -> bool {
            let a = self.accumulator;
            match code & 0xf0 {
                BPF_JEQ => a == operand,
                BPF_JGT => a > operand,
                BPF_JGE => a >= operand,
                BPF_JSET => a & operand != 0,
                other => panic!("JMP {other:#x}"),
            }
        }

        /// Nothing is what is behind the packet, or a division by zero.
        fn run(&mut self, program: &[Instruction]) -> Option<u32> {
            let mut place = 0;
            loop {
                let Instruction { code, jt, jf, k } = program[place];
                let code = u32::from(code);
                let operand = if code & BPF_X == 0 { k } else { self.index };
                place += 1;
                match code & 7 {
                    BPF_LD => self.accumulator = self.fetch(code, k)?,
                    BPF_LDX => self.index = self.fetch(code, k)?,
                    BPF_ST => self.memory[k as usize] = self.accumulator,
                    BPF_STX => self.memory[k as usize] = self.index,
                    BPF_ALU => self.compute(code, operand)?,
                    BPF_JMP if code & 0xf0 == BPF_JA => place += k as usize,
                    BPF_JMP => {
                        let distance = if self.holds(code, operand) { jt } else { jf };
                        place += usize::from(distance);
                    }
                    BPF_RET if code & 0x18 == BPF_A => return Some(self.accumulator),
                    BPF_RET => return Some(k),
                    _ if code & 0xf8 == BPF_TAX => self.index = self.accumulator,
                    _ => self.accumulator = self.index,
                }
            }
        }
    }

    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let mut machine = Machine {
            packet,
            accumulator: 0,
            index: 0,
            memory: [0; SLOTS as usize],
        };
        machine.run(program).unwrap_or(0)
    }

    fn header() -> MonHdr {
        MonHdr {
            pid: 0x0102_0304,
            exe_inode: 0x1122_3344_5566_7788,
            exe_device: 0x0080_0001,
            ..packet::tests::header()
        }
    }

    fn framed(header: MonHdr, packet: &[u8]) -> Vec<u8> {
        [&header.to_bytes(), packet].concat()
    }

    fn udp(source: u16, destination: u16, payload: usize) -> Vec<u8> {
        let mut packet = vec![];
        let builder = etherparse::PacketBuilder::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64);
        let builder = builder.udp(source, destination);
        builder.write(&mut packet, &vec![7; payload]).unwrap();
        packet
    }

    #[test]
    fn expressions_are_about_the_packet() {
        let packet = udp(5000, 53, 20);
        for (expression, holds) in [
            ("", true),
            ("udp", true),
            ("tcp", false),
            ("ip6", false),
            ("udp port 53", true),
            ("src port 53", false),
            ("dst host 192.0.2.2 and src port 5000", true),
            ("net 198.51.100.0/24", false),
            ("len == 48", true),
            ("greater 49", false),
            ("udp[8] = 7", true),
            ("udp[28] = 7", false),
            ("ip[udp[8] - 8] = 0", false),
            ("udp[8:4] = 0x07070707 and portrange 50-60", true),
            ("outbound", true),
            ("inbound", false),
        ] {
            let program = filter(&Criteria::default(), expression, SNAPLEN).unwrap();
            let kept = run(&program, &framed(header(), &packet));
            assert_eq!(kept, if holds { ACCEPTED } else { 0 }, "{expression}");
        }
        let inbound = MonHdr {
            direction: MON_IN,
            ..header()
        };
        let program = filter(&Criteria::default(), "inbound", SNAPLEN).unwrap();
        assert_eq!(run(&program, &framed(inbound, &packet)), ACCEPTED);
    }

    #[test]
    fn errors_are_libpcaps() {
        let error = filter(&Criteria::default(), "udp prot 53", SNAPLEN).unwrap_err();
        assert!(error.to_string().contains("syntax error"), "{error}");
        assert!(filter(&Criteria::default(), "vlan 5", SNAPLEN).is_err());
        assert!(filter(&Criteria::default(), "ip[0 - 1] = 0", SNAPLEN).is_err());
    }

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

    /// Jumps are cut to what is there by [`program`].
    fn instruction() -> impl Strategy<Value = Instruction> {
        let size = || select(vec![BPF_B, BPF_H, BPF_W]);
        let offset = || prop_oneof![0..150_u32, 0..NEGATIVE - HEADER];
        let condition = select(vec![BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET]);
        let operation = select(vec![
            BPF_ADD, BPF_SUB, BPF_AND, BPF_OR, BPF_LSH, BPF_RSH, BPF_DIV,
        ]);
        let operand = || select(vec![BPF_K, BPF_X]);
        let memory = select(vec![BPF_LD | BPF_MEM, BPF_LDX | BPF_MEM, BPF_ST, BPF_STX]);
        let number = || prop_oneof![0..200_u32, any::<u32>()];
        prop_oneof![
            (size(), offset()).prop_map(|(size, k)| new(BPF_LD | BPF_ABS | size, k)),
            (size(), number()).prop_map(|(size, k)| new(BPF_LD | BPF_IND | size, k)),
            offset().prop_map(|k| new(BPF_LDX | BPF_MSH | BPF_B, k)),
            number().prop_map(|k| new(BPF_LD | BPF_IMM, k)),
            number().prop_map(|k| new(BPF_LDX | BPF_IMM, k)),
            Just(new(BPF_LD | BPF_LEN, 0)),
            Just(new(BPF_LDX | BPF_LEN, 0)),
            (memory, 0..SLOTS - 1).prop_map(|(code, slot)| new(code, slot)),
            (operation, operand(), 0..32_u32)
                .prop_map(|(operation, operand, k)| new(BPF_ALU | operation | operand, k)),
            any::<u32>().prop_map(|k| new(BPF_JMP | BPF_JA, k)),
            (condition, operand(), number(), any::<[u8; 2]>()).prop_map(
                |(condition, operand, k, [jt, jf])| jump(BPF_JMP | condition | operand, k, jt, jf)
            ),
            select(vec![BPF_TAX, BPF_TXA]).prop_map(|code| new(BPF_MISC | code, 0)),
            Just(new(BPF_RET | BPF_A, 0)),
            (0..3_u32).prop_map(|k| new(BPF_RET | BPF_K, k)),
        ]
    }

    /// Programs that the kernel would take.
    fn program() -> impl Strategy<Value = Vec<Instruction>> {
        vec(instruction(), 0..600).prop_map(|mut program| {
            program.push(new(BPF_RET | BPF_A, 0));
            let length = program.len();
            for (place, instruction) in program.iter_mut().enumerate() {
                let code = u32::from(instruction.code);
                let room = length.saturating_sub(place + 2);
                if code & 7 == BPF_JMP {
                    let near = u8::try_from(room).unwrap_or(u8::MAX);
                    instruction.jt = instruction.jt.min(near);
                    instruction.jf = instruction.jf.min(near);
                }
                if code == BPF_JMP | BPF_JA {
                    instruction.k %= u32::try_from(room + 1).unwrap();
                }
            }
            program
        })
    }

    proptest! {
        #[test]
        fn moved_programs_say_the_same(program in program(), packet in vec(any::<u8>(), 0..120)) {
            let moved = behind_header(&program, ACCEPTED).unwrap();
            let kept = run(&moved, &framed(header(), &packet));
            prop_assert_eq!(kept, if run(&program, &packet) == 0 { 0 } else { ACCEPTED });

            // The checks don't change it, either.
            let checked = [Criteria { pid: Some(0x0102_0304), ..Criteria::default() }.checks(ACCEPTED), moved].concat();
            prop_assert_eq!(run(&checked, &framed(header(), &packet)), kept);
        }

        #[test]
        fn texts_are_instructions_or_not(text: String) {
            let _ = parse(&text);
        }
    }
}
