// SPDX-License-Identifier: GPL-2.0

//! Moves a program behind the header: it sees of a packet what it would see without one.

use super::{jump, load, new, Instruction, HEADER};
use anyhow::{bail, Context};
use kopi::pure::abi::MonHdr;
use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_B, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K,
    BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MSH, BPF_RET, BPF_ST, BPF_STX,
    BPF_SUB, BPF_TAX, BPF_TXA, BPF_W,
};
use std::mem::offset_of;

/// Slots of scratch memory.
pub(super) const SLOTS: u32 = 16;
/// Where the kernel has a packet's type, which `inbound` and `outbound` ask for.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// PACKET_OUTGOING is this many bits to the left of MON_OUT.
const OUTGOING: u32 = 2;
/// Offsets from here on are negative: no packet's.
const NEGATIVE: u32 = 1 << 31;

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
pub(super) fn behind_header(
    program: &[Instruction],
    accepted: u32,
) -> anyhow::Result<Vec<Instruction>> {
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
    use super::{
        super::{
            machine::{framed, header, run, ACCEPTED},
            Criteria,
        },
        *,
    };
    use libc::{BPF_AND, BPF_DIV, BPF_H, BPF_IMM, BPF_JGE, BPF_JGT, BPF_OR, BPF_RSH, BPF_X};
    use proptest::{collection::vec, prelude::*, sample::select};

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
    }
}
