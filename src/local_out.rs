// SPDX-License-Identifier: GPL-2.0

//! The rules' verdict on a packet at the LOCAL_OUT hook, which sees all packets that a socket sends.

use crate::flow::{Flow, OutPacket};
use crate::ordinary;
use crate::rules::Outcome;
use crate::sys::{
    errno::{edquot, enobufs},
    family,
    local_out::{self, Leaving, LocalOut},
    sock::Sock, //
};
use kernel::{prelude::*, sync::rcu};

local_out::serve!(Flow);

impl LocalOut for Flow {
    fn judge_leaving(&self, sk: &Sock, packet: &mut Leaving, rcu: &rcu::Guard) -> Result {
        let (to, via) = (packet.to, packet.via);
        // UDP hides ENOBUFS from its caller. The family's sendmsg turns EDQUOT into ENOBUFS.
        judge(packet, edquot, |sent| {
            // The first hop of a source route must not be denied. The packet counts for its final
            // peer.
            if via != to && self.is_hop_denied(sk, via, sent) {
                return Outcome::Denied;
            }
            sent.counted_before =
                sent.counted_before || family::was_judged::<Self>(sk, &to, sent.packets(), rcu);
            self.judge_sent(sk, sent)
        })
    }

    fn judge_leaving_ordinary(sk: &Sock, packet: &mut Leaving) -> Result {
        let via = packet.via;
        // As a full queue.
        judge(packet, enobufs, |sent| ordinary::judge_sent(sk, sent, &via))
    }
}

/// Judges a packet, and gives it the rule's mark and priority. `too_fast` is the error over a rate.
fn judge(
    packet: &mut Leaving,
    too_fast: fn() -> Error,
    judge: impl FnOnce(&mut OutPacket) -> Outcome,
) -> Result {
    if packet.is_reset {
        // A RST has no payload, and tells the peer that the connection which the rules deny has ended.
        return Ok(());
    }
    let mut sent = OutPacket {
        peer: packet.to,
        from_port: packet.from_port,
        gso_size: packet.gso_size,
        bytes: packet.bytes,
        mark: packet.mark,
        priority: packet.priority,
        counted_before: packet.counted_before,
    };
    judge(&mut sent).result(too_fast)?;
    (packet.mark, packet.priority) = (sent.mark, sent.priority);
    Ok(())
}
