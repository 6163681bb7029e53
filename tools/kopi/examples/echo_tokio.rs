// SPDX-License-Identifier: GPL-2.0

//! An echo server of tokio's, in batches: `cargo run --features tokio --example echo_tokio -- 127.0.0.1:7777`.

use kopi::{tokio::UdpSocket, Message};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7777".into());
    let socket = UdpSocket::bind(address).await?;
    println!("listening on {}", socket.local_addr()?);
    let mut questions: Vec<(Vec<u8>, Message)> = vec![];
    loop {
        // The first one is waited for, and up to 63 that are there with it.
        let received = socket.recv_batch(64, |packet| {
            // Whoever sends from port 0 can't be answered.
            if packet.peer().port() != 0 {
                questions.push((packet.bytes().into_owned(), Message::reply_to(packet)));
            }
        });
        if let Err(error) = received.await {
            // Of an earlier answer, which a filter refused, say: no reason to end.
            eprintln!("{error}");
        }
        let answers: Vec<_> = questions
            .iter()
            .map(|(data, back)| (&data[..], *back))
            .collect();
        let mut left = &answers[..];
        while !left.is_empty() {
            match socket.send_batch(left).await {
                Ok(sent) => left = &left[sent..],
                Err(error) => {
                    // An earlier answer's, or this one's, which is lost as in a network.
                    eprintln!("{error}");
                    left = &left[1..];
                }
            }
        }
        questions.clear();
    }
}
