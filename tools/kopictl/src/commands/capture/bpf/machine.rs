// SPDX-License-Identifier: GPL-2.0

//! What runs a program as the kernel does, for tests, and packets to run it on.

use super::{super::packet, behind_header::SLOTS, Instruction, HEADER};
use kopi::pure::abi::MonHdr;
use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_DIV, BPF_H, BPF_IND, BPF_JA, BPF_JEQ,
    BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MSH,
    BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_X,
};

pub(super) const SNAPLEN: u32 = 100;
pub(super) const ACCEPTED: u32 = SNAPLEN + HEADER;

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

pub(super) fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    let mut machine = Machine {
        packet,
        accumulator: 0,
        index: 0,
        memory: [0; SLOTS as usize],
    };
    machine.run(program).unwrap_or(0)
}

pub(super) fn header() -> MonHdr {
    MonHdr {
        pid: 0x0102_0304,
        exe_inode: 0x1122_3344_5566_7788,
        exe_device: 0x0080_0001,
        ..packet::tests::header()
    }
}

pub(super) fn framed(header: MonHdr, packet: &[u8]) -> Vec<u8> {
    [&header.to_bytes(), packet].concat()
}

pub(super) fn udp(source: u16, destination: u16, payload: usize) -> Vec<u8> {
    let mut packet = vec![];
    let builder = etherparse::PacketBuilder::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64);
    let builder = builder.udp(source, destination);
    builder.write(&mut packet, &vec![7; payload]).unwrap();
    packet
}
