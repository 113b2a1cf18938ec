//! TLS with independent client programs: which clients are let in, the reasons given to the others, and the data
//! transferred.

#[path = "rig/certificates.rs"]
mod certificates;
mod rig;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use sheave_iomap::RawFile;
use sheave_serve::{Address, Listener, Tls};

use sheave_testkit::certificates::Authority;

use certificates::{tls, tls_for};
use rig::{Device, Rig, listener, options, rig_at};

/// Starts a server with TLS at a unix socket and at a TCP port.
fn server(tls: Tls) -> Option<Rig> {
    let (dir, unix) = listener();
    let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).expect("it listens");
    [&unix, &tcp].iter().for_each(|listener| listener.set_tls(Some(tls.clone())));
    let device = sheave_drivers::open_device("ram:size=8M").expect("a device");
    rig_at(dir, vec![unix, tcp], false, Box::new(Device(Arc::new(RawFile::new(device)))), options())
}

/// Returns the unix and the TCP address of the server for clients with the certificates in a directory.
fn addresses(rig: &Rig, certificates: &Path) -> [String; 2] {
    let listeners = rig.server.listeners();
    let with = |at: usize, first: char| {
        format!("{}{first}tls-certificates={}", listeners[at].uri("x"), certificates.display())
    };
    [with(0, '&'), with(1, '?').replace("127.0.0.1", "localhost")]
}

fn run(program: &Path, args: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = Command::new(program).args(args).output().expect("it runs");
    (status.success(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

fn must(program: &Path, args: &[&str]) -> String {
    let (success, text) = run(program, args);
    assert!(success, "{program:?} {args:?}: {text}");
    text
}

/// Makes a file of some MiB in which no two blocks are equal.
fn image(dir: &Path) -> PathBuf {
    let path = dir.join("image");
    let block =
        |number: u64| (0..512u64).flat_map(move |word| (number * 512 + word).wrapping_mul(0x9e37_79b9).to_le_bytes());
    std::fs::write(&path, (0..2048u64).flat_map(block).collect::<Vec<u8>>()).expect("written");
    path
}

#[test]
fn nbdinfo_is_told_of_the_export_over_tls() {
    let Some(nbdinfo) = sheave_testkit::require("nbdinfo") else { return };
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true)) else { return };
    for address in addresses(&rig, &authority.anonymous()) {
        assert!(address.starts_with("nbds"), "{address}");
        let text = must(&nbdinfo, &[&address]);
        assert!(text.contains("with TLS") && text.contains("export-size: 8388608"), "{text}");
        assert!(must(&nbdinfo, &["--list", &address]).contains("export=\"x\""));
        assert!(must(&nbdinfo, &["--map", &address]).contains("8388608"));
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn nbdcopy_copies_both_ways_over_tls() {
    let Some(nbdcopy) = sheave_testkit::require("nbdcopy") else { return };
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true)) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (image, back) = (image(dir.path()), dir.path().join("back"));
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    for address in addresses(&rig, &authority.anonymous()) {
        must(&nbdcopy, &["--flush", &text(&image), &address]);
        must(&nbdcopy, &[&address, &text(&back)]);
        let (image, back) = (std::fs::read(&image).expect("read"), std::fs::read(&back).expect("read"));
        assert!(image == back, "what came back differs");
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn qemu_img_converts_and_compares_over_tls() {
    let Some(qemu) = sheave_testkit::require("qemu-img") else { return };
    let authority = Authority::new();
    let client = authority.issue("qemu", "a virtual machine");
    let Some(rig) = server(tls_for(&authority, &["a virtual machine"])) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let image = image(dir.path());
    let image = format!("driver=raw,file.driver=file,file.filename={}", image.display());
    let creds = format!("tls-creds-x509,id=t,endpoint=client,dir={}", client.display());
    let Address::Tcp(tcp) = rig.server.listeners()[1].address().clone() else { panic!("no TCP") };
    let port = tcp.rsplit(':').next().expect("a port").to_owned();
    let unix = format!("file.server.type=unix,file.server.path={},file.tls-hostname=localhost", rig.socket.display());
    let tcp = format!("file.server.type=inet,file.server.host=localhost,file.server.port={port}");
    for server in [unix, tcp] {
        let served = format!("driver=raw,file.driver=nbd,{server},file.export=x,file.tls-creds=t");
        let convert = ["convert", "--object", &creds, "--image-opts", "--target-image-opts", "-n", &image, &served];
        must(&qemu, &convert);
        let same = must(&qemu, &["compare", "--object", &creds, "--image-opts", &image, &served]);
        assert!(same.contains("Images are identical"), "{same}");
    }
    rig.server.stop().expect("it ends");
}

/// Asserts that a client with these certificates is refused, with the given notice.
fn refused(rig: &Rig, nbdinfo: &Path, certificates: &Path, notice: &str) {
    rig.notices.lock().expect("nobody panics").clear();
    // At a unix socket libnbd does not check the server's certificate.
    let [_, address] = addresses(rig, certificates);
    let (success, text) = run(nbdinfo, &[&address]);
    assert!(!success, "{text}");
    assert!(rig.heard(notice), "{text}, {:?}", rig.notices.lock());
}

#[test]
fn clients_without_the_right_certificate_are_refused_and_the_server_says_why() {
    let Some(nbdinfo) = sheave_testkit::require("nbdinfo") else { return };
    let (authority, foreign) = (Authority::new(), Authority::new());
    let Some(rig) = server(tls_for(&authority, &["backup", "restore"])) else { return };
    let allowed = authority.issue("allowed", "restore");
    let [address, _] = addresses(&rig, &allowed);
    must(&nbdinfo, &[&address]);

    refused(&rig, &nbdinfo, &authority.anonymous(), "TLS: it has no certificate, and must have one");
    let mallory = authority.issue("mallory", "mallory");
    let words = "TLS: its certificate is of \"mallory\", which is not among the names that are allowed";
    refused(&rig, &nbdinfo, &mallory, words);
    // A client that accepts the server's authority, and has a certificate of another one.
    let other = foreign.issue("other", "backup");
    std::fs::copy(allowed.join("ca-cert.pem"), other.join("ca-cert.pem")).expect("copied");
    refused(&rig, &nbdinfo, &other, "TLS: its certificate was issued by none of the authorities for clients");
    must(&nbdinfo, &[&address]);
    rig.server.stop().expect("it ends");

    // A client that does not accept the server's authority ends the connection itself.
    let Some(rig) = server(tls(&authority, true)) else { return };
    refused(&rig, &nbdinfo, &foreign.anonymous(), "TLS: it left before TLS had begun");
    rig.server.stop().expect("it ends");
}

#[test]
fn a_client_without_tls_is_told_that_it_must_and_one_that_may_is_served() {
    let Some(nbdinfo) = sheave_testkit::require("nbdinfo") else { return };
    let authority = Authority::new();
    let clear = |rig: &Rig| format!("nbd+unix:///x?socket={}", rig.socket.display());
    let Some(rig) = server(tls(&authority, true)) else { return };
    let (success, text) = run(&nbdinfo, &[&clear(&rig)]);
    assert!(!success && text.contains("TLS"), "{text}");
    rig.server.stop().expect("it ends");

    let Some(rig) = server(tls(&authority, false)) else { return };
    let text = must(&nbdinfo, &[&clear(&rig)]);
    assert!(text.contains("without TLS"), "{text}");
    let [address, _] = addresses(&rig, &authority.anonymous());
    let text = must(&nbdinfo, &[&address.replace("nbd+unix", "nbds+unix")]);
    assert!(text.contains("with TLS"), "{text}");
    rig.server.stop().expect("it ends");
}
