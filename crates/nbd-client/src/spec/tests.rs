//! Specs that are accepted, and the errors for others. For an accepted spec no server is found.

use sheave::drivers::Registry;

fn said(spec: &str) -> String {
    let mut registry = Registry::standard();
    crate::register(&mut registry).expect("a free name");
    registry.open(spec).expect_err("there is no server").to_string()
}

#[test]
fn an_accepted_spec_fails_for_want_of_a_server_and_names_it() {
    for (spec, names) in [
        ("nbd:unix:/nowhere/disk.sock", "NBD server /nowhere/disk.sock, export ''"),
        ("nbd:unix:/nowhere/disk.sock,export=a/b,timeout=2s,connections=2", "export 'a/b'"),
        ("nbd:\"unix:/nowhere/a,b=c.sock\",readonly=on,multi_conn=assume", "/nowhere/a,b=c.sock"),
        ("nbd:127.0.0.1:1/x", "NBD server 127.0.0.1:1, export 'x'"),
        ("nbd:127.0.0.1:1", "export ''"),
        ("nbd:[::1]:1/x/y", "NBD server [::1]:1, export 'x/y'"),
        ("nbd:localhost:1/,connect=1s", ":1, export ''"),
    ] {
        let said = said(spec);
        assert!(said.contains(names) && said.contains("Is the server there"), "{spec}: {said}");
    }
}

#[test]
fn a_wrong_spec_gets_an_error_with_cause_and_fix() {
    let long = format!("nbd:unix:/{}", "x".repeat(120));
    for (spec, says) in [
        ("nbd:", "nbd:unix:/run/disk.sock or nbd:HOST:PORT/EXPORT"),
        ("nbd:unix:", "no path of a socket"),
        (long.as_str(), "no path of a socket"),
        ("nbd:host:port/x", "'port' is no port"),
        ("nbd:host:99999/x", "'99999' is no port"),
        ("nbd::10809/x", "no host"),
        ("nbd:127.0.0.1:1/x,export=y", "named twice"),
        ("nbd:unix:/x,connections=17", "from 1 to 16"),
        ("nbd:unix:/x,timeout=0s", "times above 0"),
        ("nbd:unix:/x,cache=on", "key 'cache' is unknown"),
        ("nbd:unix:/x,tls=maybe", "give one of require, allow, off"),
        ("nbd:127.0.0.1:1,tls=require", "ca=PATH"),
        ("nbd:127.0.0.1:1,tls=off,ca=/x", "of no use with tls=off"),
        ("nbd:127.0.0.1:1,ca=/nowhere/ca.pem", "ca=/nowhere/ca.pem: No such file"),
        ("nbd:127.0.0.1:1,ca=/x,cert=/y", "cert= and key= belong together"),
        ("nbd:unix:/x,tls=require,ca=/x", "tls-hostname=NAME"),
    ] {
        let said = said(spec);
        assert!(said.contains(says), "{spec}: {said}");
    }
}
