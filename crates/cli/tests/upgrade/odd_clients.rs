//! Clients that an upgrade meets in the middle of something, and clients that use TLS.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use sheave_testkit::certificates::Authority;

use crate::load::Load;
use crate::rig::{Nbd, ONE, PATIENCE, Rig, until};

#[test]
fn half_a_request_and_half_a_handshake_are_finished_after_the_upgrade() {
    let Some(rig) = Rig::start(ONE) else { return };
    let connect = || {
        let stream = UnixStream::connect(rig.dir.path("nbd.sock")).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7 % 251) as u8).collect();
    let write = [Nbd::request(1, 77, 1 << 20, data.len() as u32), data.clone()].concat();
    // Clients whose write breaks off in its header, at its begin, in the middle and one byte before the end.
    let mut parts = [5, 28, 28 + 4096, 28 + (1 << 19) + 1, write.len() - 1].map(|sent| (rig.connect("va"), sent));
    for (client, sent) in &mut parts {
        client.0.write_all(&write[..*sent]).expect("sent");
    }
    // Clients that have not read the greeting, have read it, and have sent a part of their option.
    let asks = Nbd::asks_for("va");
    let mut new = [(false, 0), (true, 0), (true, 4), (true, 10), (true, asks.len() - 1)].map(|(reads, sent)| {
        let mut stream = connect();
        if reads {
            stream.read_exact(&mut [0; 18]).expect("a greeting");
        }
        stream.write_all(&asks[..sent]).expect("sent");
        (stream, reads, sent)
    });
    for _ in 0..3 {
        rig.upgrade();
    }
    for (client, sent) in &mut parts {
        client.0.write_all(&write[*sent..]).expect("sent");
        assert_eq!(client.reply().expect("a reply"), (77, 0), "the write that broke off at {sent}");
        assert!(client.read(1 << 20, data.len() as u32).expect("read") == data);
        assert_eq!(client.write(1 << 20, &vec![0; data.len()]).expect("a reply"), 0);
    }
    for (stream, reads, sent) in &mut new {
        if !*reads {
            stream.read_exact(&mut [0; 18]).expect("a greeting");
        }
        stream.write_all(&asks[*sent..]).expect("sent");
        let mut size = [0; 10];
        stream.read_exact(&mut size).unwrap_or_else(|error| panic!("after {sent} bytes: {error}"));
        assert_eq!(size[..8], (16u64 << 20).to_be_bytes());
    }
    rig.end();
}

#[test]
fn replies_that_a_client_has_not_read_yet_arrive_after_the_upgrade() {
    let Some(rig) = Rig::start(ONE) else { return };
    let mut client = rig.connect("va");
    let data: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 3 % 253) as u8).collect();
    for (at, part) in data.chunks(1 << 20).enumerate() {
        assert_eq!(client.write((at as u64) << 20, part).expect("a reply"), 0);
    }
    // More than the socket takes: most of the replies wait in the server.
    for at in 0..8 {
        client.0.write_all(&Nbd::request(0, at, at << 20, 1 << 20)).expect("sent");
    }
    rig.upgrade();
    for _ in 0..8 {
        let (at, error) = client.reply().expect("a reply");
        assert_eq!(error, 0);
        let mut part = vec![0; 1 << 20];
        client.0.read_exact(&mut part).expect("the data");
        assert!(part == data[(at as usize) << 20..][..1 << 20], "the read at {at} MiB");
    }
    assert_eq!(client.flush().expect("a reply"), 0);
    rig.end();
}

#[test]
fn clients_with_tls_are_announced_and_disconnected_and_the_others_go_on() {
    if sheave_testkit::require("nbdcopy").is_none() {
        return;
    }
    let authority = Authority::new();
    let file = |name: &str| authority.server().join(name).display().to_string();
    let config = format!(
        "{}\n[[tls]]\nlisten = [\"unix:tls.sock\"]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        ONE.replace("\"unix:nbd.sock\"", "\"unix:nbd.sock\", \"unix:tls.sock\""),
        file("server-cert.pem"),
        file("server-key.pem"),
    );
    let Some(rig) = Rig::start(&config) else { return };
    let load = Load::start(&rig, 0);
    let anonymous = authority.anonymous();
    let address =
        |host: &str| format!("nbds+unix://{host}/va?socket=tls.sock&tls-certificates={}", anonymous.display());
    let (address, info) = (address("localhost"), address("localhost"));
    let with_tls = || rig.ok("upgrade --dry-run --json").json()["clients_with_tls"].as_u64();
    assert_eq!(with_tls(), Some(0));
    // The client reads its stdin, which stays open, once the client is connected.
    let mut copy = Command::new("nbdcopy");
    copy.args(["-", &address]).current_dir(rig.dir.path("")).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut copy = copy.spawn().expect("it runs");
    until("it is connected", || with_tls() == Some(1));
    let text = rig.ok("upgrade --dry-run").out;
    assert!(text.contains("clients     2; 1 use TLS and will have to connect again\n"), "{text}");
    let told = rig.upgrade();
    assert_eq!(told["clients"], 1, "{told}");
    load.goes_on();
    assert_eq!(with_tls(), Some(0));
    // Its connection has ended, so the copy fails.
    let mut stdin = copy.stdin.take().expect("piped");
    // Fails if it has ended already.
    let _ = stdin.write_all(&vec![1; 1 << 20]);
    drop(stdin);
    assert!(!copy.wait().expect("it ends").success());
    let mut again = Command::new("nbdinfo");
    let again = again.arg(&info).current_dir(rig.dir.path("")).output().expect("it runs");
    let out = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(out.contains("with TLS"), "{out}{}", String::from_utf8_lossy(&again.stderr));
    load.goes_on();
    load.end_well(&rig);
    rig.end();
}
