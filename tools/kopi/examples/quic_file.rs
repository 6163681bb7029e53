// SPDX-License-Identifier: GPL-2.0

//! A file by QUIC, of quinn's: by a KOPI socket, or with `--plain` by a UDP socket.
//!
//! ```text
//! quic_file serve ADDRESS FILE [--plain]     with key.pem and cert.pem of the current directory
//! quic_file fetch ADDRESS FILE [--plain]     with cert.pem, of a server that is called example.test
//! ```

use kopi::quinn::Socket;
use quinn::{
    rustls::{
        pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer},
        RootCertStore,
    },
    AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime,
};
use std::{env, error::Error, fs, net::SocketAddr, sync::Arc};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// An endpoint of QUIC at an address.
fn endpoint(address: SocketAddr, server: Option<ServerConfig>, plain: bool) -> Outcome<Endpoint> {
    let runtime = Arc::new(TokioRuntime);
    let socket: Arc<dyn AsyncUdpSocket> = match plain {
        true => runtime.wrap_udp_socket(std::net::UdpSocket::bind(address)?)?,
        false => Arc::new(Socket::bind(address)?),
    };
    let config = EndpointConfig::default();
    Ok(Endpoint::new_with_abstract_socket(
        config, server, socket, runtime,
    )?)
}

/// Sends the file to whoever connects.
async fn serve(address: SocketAddr, file: &str, plain: bool) -> Outcome {
    let certificates = CertificateDer::pem_file_iter("cert.pem")?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file("key.pem")?;
    let config = ServerConfig::with_single_cert(certificates, key)?;
    let (endpoint, data) = (
        endpoint(address, Some(config), plain)?,
        Arc::new(fs::read(file)?),
    );
    println!("listening on {}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        let data = data.clone();
        tokio::spawn(async move {
            let connection = incoming.await?;
            let mut stream = connection.open_uni().await?;
            stream.write_all(&data).await?;
            stream.finish()?;
            connection.closed().await;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    Ok(())
}

/// Writes what a server sends.
async fn fetch(address: SocketAddr, file: &str, plain: bool) -> Outcome {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file("cert.pem")?)?;
    let any: SocketAddr = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    }
    .parse()?;
    let mut endpoint = endpoint(any, None, plain)?;
    endpoint.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
    let connection = endpoint.connect(address, "example.test")?.await?;
    let mut stream = connection.accept_uni().await?;
    let data = stream.read_to_end(usize::MAX).await?;
    fs::write(file, &data)?;
    let path = connection.stats().path;
    println!(
        "{} bytes, {} packets lost, MTU {}",
        data.len(),
        path.lost_packets,
        path.current_mtu
    );
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let words: Vec<String> = env::args().skip(1).collect();
    let plain = words.get(3).is_some_and(|word| word == "--plain");
    match words.get(..3) {
        Some([what, address, file]) if what == "serve" => {
            serve(address.parse()?, file, plain).await
        }
        Some([what, address, file]) if what == "fetch" => {
            fetch(address.parse()?, file, plain).await
        }
        _ => Err("say: quic_file serve|fetch ADDRESS FILE [--plain]".into()),
    }
}
