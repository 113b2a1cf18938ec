//! TLS of `sheave serve`, by arguments and by the configuration, with clients of other projects.

use std::path::Path;
use std::process::Command;

use sheave_testkit::certificates::Authority;

use crate::daemon::Daemon;
use crate::sheave::{Dir, Said, no_io_uring, sheave};

fn dir() -> Option<Dir> {
    if no_io_uring() || sheave_testkit::require("nbdinfo").is_none() {
        return None;
    }
    let dir = Dir::new();
    std::fs::create_dir(dir.path("run")).expect("made");
    Some(dir)
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().expect("text").to_owned()
}

/// Returns the arguments that name the certificate and key in a directory.
fn certificate(dir: &Path) -> String {
    format!("--tls-cert {} --tls-key {}", text(dir.join("server-cert.pem")), text(dir.join("server-key.pem")))
}

/// Serves while nbdinfo runs with certificates from a directory.
fn nbdinfo(dir: &Dir, arguments: &str, certificates: &Path) -> Said {
    let command = format!("nbdinfo \"$uri&tls-certificates={}\"", text(certificates));
    let mut server = sheave(&format!("serve ram:size=8M {arguments} --run"));
    Said::of(server.arg(command).current_dir(dir.path("")).output().expect("it runs"))
}

#[test]
fn the_arguments_say_who_must_use_tls_and_who_is_let_in() {
    let Some(dir) = dir() else { return };
    let authority = Authority::new();
    let own = certificate(&authority.server());
    let ca = text(authority.server().join("ca-cert.pem"));
    let (anonymous, backup) = (authority.anonymous(), authority.issue("backup", "backup"));

    let said = nbdinfo(&dir, &own, &anonymous);
    assert!(said.code == 0 && said.out.contains("with TLS"), "{}{}", said.out, said.err);
    let said = nbdinfo(&dir, &format!("{own} --tls allow"), &anonymous);
    assert!(said.code == 0 && said.out.contains("without TLS"), "{}{}", said.out, said.err);
    let said = nbdinfo(&dir, &format!("{own} --tls off"), &anonymous);
    assert!(said.code == 0 && said.out.contains("without TLS"), "{}{}", said.out, said.err);
    let only = format!("{own} --tls-ca {ca} --tls-allow restore --tls-allow backup");
    let said = nbdinfo(&dir, &only, &backup);
    assert!(said.code == 0 && said.out.contains("with TLS"), "{}{}", said.out, said.err);
    let said = nbdinfo(&dir, &only, &anonymous);
    assert!(said.code != 0 && said.err.contains("a client was dropped: TLS: it has no certificate"), "{}", said.err);
    let said = nbdinfo(&dir, &format!("{own} --tls-ca {ca} --tls-allow restore"), &backup);
    assert!(
        said.code != 0 && said.err.contains("its certificate is of \"backup\", which is not among"),
        "{}",
        said.err
    );
}

#[test]
fn a_certificate_that_cannot_be_used_is_told_before_anything_is_served() {
    let Some(dir) = dir() else { return };
    let own = certificate(&Authority::new().server());
    let said = nbdinfo(&dir, &own, Path::new("."));
    assert_eq!(said.code, 1);
    assert!(said.err.contains("server-cert.pem: No such file or directory"), "{}", said.err);
    assert!(said.err.contains("Give a PEM file with the server's certificate"), "{}", said.err);
}

#[test]
fn an_address_of_a_daemon_has_tls_and_a_reload_brings_a_new_certificate() {
    let Some(dir) = dir() else { return };
    let (old, new) = (Authority::new(), Authority::new());
    let copy = |from: &Authority| {
        for (name, to) in [("server-cert.pem", "cert.pem"), ("server-key.pem", "key.pem")] {
            std::fs::copy(from.server().join(name), dir.path(to)).expect("copied");
        }
    };
    copy(&old);
    let config = r#"
listen = ["unix:clear.sock", "tcp:localhost:0"]
[[tls]]
listen = ["tcp:localhost:0"]
certificate = "cert.pem"
key = "key.pem"
[[export]]
name = "scratch"
spec = "ram:size=8M"
"#;
    let mut daemon = Daemon::start(&dir, config);
    let ask = |address: &str| {
        Said::of(Command::new("nbdinfo").arg(address).current_dir(dir.path("")).output().expect("it runs"))
    };
    assert!(ask("nbd+unix:///scratch?socket=clear.sock").out.contains("without TLS"));
    let said = daemon.said();
    let port = said.split("serving 1 exports at ").nth(1).and_then(|at| at.split(" event=").next()?.rsplit(':').next());
    let port = port.expect("it says where").to_owned();
    let with = |authority: &Authority| {
        ask(&format!("nbds://localhost:{port}/scratch?tls-certificates={}", text(authority.anonymous())))
    };
    assert!(with(&old).out.contains("with TLS") && with(&new).code != 0);
    let clear = ask(&format!("nbd://localhost:{port}/scratch"));
    assert!(clear.code != 0, "{}", clear.out);

    // A reload with a key that cannot be read changes nothing.
    std::fs::write(dir.path("key.pem"), "").expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("TLS stays as it was: key.pem: there is no key in it");
    assert_eq!(with(&old).code, 0);
    copy(&new);
    daemon.signal("-HUP");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while with(&new).code != 0 {
        assert!(std::time::Instant::now() < until, "{}", daemon.said());
    }
    assert_ne!(with(&old).code, 0);
    daemon.end();
}
