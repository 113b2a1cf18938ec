//! `sheave serve --check`: prints what a configuration would serve, and its errors. It takes no pool and no socket.

use serde_json::Value;
use sheave_testkit::certificates::Authority;

use crate::daemon::{BOTH, Daemon, pools};
use crate::sheave::{Dir, Said};

const CHECK: &str = "serve --config c.toml --check";

fn check(dir: &Dir, config: &str) -> Said {
    std::fs::write(dir.path("c.toml"), config).expect("written");
    dir.run(CHECK)
}

/// Makes a directory with the pool `a.img` and its volume `v`.
fn dir() -> Dir {
    let dir = Dir::new();
    dir.ok("pool create a.img --size 64M");
    dir.ok("volume create a.img#v --size 16M");
    dir
}

const GOOD: &str = "listen = [\"unix:nbd.sock\"]\n\
    [[pool]]\nname = \"a\"\npath = \"a.img\"\n\
    [[export]]\npool = \"a\"\nvolume = \"v\"\nlimit = \"iops=100\"\n";

#[test]
fn a_right_configuration_is_told_and_nothing_of_it_is_taken() {
    let dir = dir();
    let said = check(&dir, GOOD);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for words in ["listens on unix:nbd.sock", "pool a\n", "export v: a#v, iops=100", "all of it would be served\n"] {
        assert!(said.out.contains(words), "{words}\n{}", said.out);
    }
    assert!(!dir.path("nbd.sock").exists(), "no socket is made");
    let json = dir.ok("serve --config c.toml --check --json").json();
    assert_eq!((&json["exports"][0]["of"], &json["findings"]), (&Value::from("a#v"), &Value::Array(Vec::new())));
    // The check works while a daemon has the pool and the socket, and does not disturb that daemon.
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let said = dir.run(CHECK);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    daemon.end();
}

/// Each finding has its line and its grade. The exit code says whether a daemon would start.
#[test]
fn what_is_wrong_is_told_with_its_line_and_how_bad_it_is() {
    let dir = dir();
    std::fs::write(dir.path("plain"), "").expect("written");
    std::fs::write(dir.path("b.img"), [0; 4096]).expect("written");
    let pool = "[[pool]]\nname = \"a\"\npath = \"a.img\"\n";
    let device = |name: &str, spec: &str| format!("[[export]]\nname = \"{name}\"\nspec = \"{spec}\"\n");
    let cases = [
        // A daemon refuses to start with these configurations.
        (2, "listen = [\"unix:none/nbd.sock\"]\n".to_owned() + pool, "line 1: error: none/nbd.sock: there is no dir"),
        (2, "listen = [\"unix:plain\"]\n".to_owned(), "line 1: error: plain is there and is no socket"),
        (2, "listen = [\n\"unix:s\",\n\"unix:s\"]\n".to_owned(), "line 3: error: unix:s is named twice"),
        (2, format!("listen = [\"unix:{}\"]\n", "x".repeat(120)), "at most 107 bytes"),
        (2, "listen = [\"tcp:192.0.2.1:10809\"]\n".to_owned(), "line 1: error: cannot listen on 192.0.2.1:10809"),
        (2, "\nmetrics = \"192.0.2.1:9100\"\n".to_owned(), "line 2: error: cannot listen on 192.0.2.1:9100"),
        (2, "[control]\npath = \"none/c.sock\"\n".to_owned(), "line 2: error: none/c.sock: there is no directory"),
        (
            2,
            "listen = [\"unix:s\"]\n[[tls]]\ncertificate = \"none.pem\"\nkey = \"k.pem\"\n".to_owned(),
            "line 3: error: none.pem: No such file",
        ),
        // With these configurations a daemon serves all but the faulty part.
        (1, format!("{GOOD}[[pool]]\nname = \"m\"\npath = \"m.img\"\n"), "line 11: not served: pool 'm': m.img: there"),
        (
            1,
            format!("{GOOD}[[pool]]\nname = \"m\"\npath = \"./a.img\"\n"),
            "line 11: not served: pool 'm': ./a.img is in use by pool 'a'",
        ),
        (1, GOOD.to_owned() + &device("d", "file:none.img"), "line 10: not served: export 'd': none.img is not there"),
        (1, GOOD.to_owned() + &device("d", "raam:size=1M"), "line 10: not served: export 'd': "),
        (1, GOOD.to_owned() + &device("d", "b.img"), "names neither a volume nor a device"),
        (
            1,
            GOOD.to_owned() + &device("d", "file:b.img") + &device("e", "file:b.img"),
            "line 13: not served: export 'e': b.img is in use by export 'd'",
        ),
        (
            1,
            GOOD.to_owned() + &device("d", "ram:size=1M") + "vhost_user = \"none/vm.sock\"\n",
            "line 10: not served: export 'd': vhost_user: none/vm.sock: there is no directory none",
        ),
        (
            1,
            GOOD.to_owned() + &device("d", "ram:size=1M") + "vhost_user = \"plain\"\n",
            "line 10: not served: export 'd': vhost_user: plain is there and is no socket",
        ),
        // These configurations are served completely, with a warning.
        (0, GOOD.replace("unix:nbd.sock", "tcp:0.0.0.0:0"), "warning: whoever reaches tcp:0.0.0.0:0 can change"),
        (0, "listen = [\"unix:s\"]\n".to_owned(), "warning: nothing is served yet"),
        (0, format!("reach = [\"none\"]\n{GOOD}"), "warning: reach: none is not there"),
    ];
    for (code, config, words) in cases {
        let said = check(&dir, &config);
        assert_eq!(said.code, code, "{config}\n{}{}", said.out, said.err);
        assert!(said.out.contains(words), "{words}\n{config}\n{}{}", said.out, said.err);
    }
    // A file that is no valid configuration gives the same error as at a start.
    let said = check(&dir, "listen = []\nlisen = []");
    assert!(said.code == 2 && said.err.contains("c.toml, line 2: unknown field `lisen`"), "{}", said.err);
    // The vhost-user devices that no daemon can have.
    for (keys, line, words) in [
        ("vhost_user = \"nbd.sock\"\n", 12, "nbd.sock is used already, by listen of NBD"),
        ("vhost_user = \"vm.sock\"\nvhost_queues = 65\n", 13, "vhost_queues are 1 to 64"),
    ] {
        let said = check(&dir, &(GOOD.to_owned() + &device("d", "ram:size=1M") + keys));
        assert!(said.code == 2 && said.err.contains(&format!("c.toml, line {line}: ")), "{}", said.err);
        assert!(said.err.contains(words), "{words}\n{}", said.err);
    }
    let said = check(&dir, &(GOOD.to_owned() + "vhost_user = \"vm.sock\"\n"));
    assert!(
        said.code == 0 && said.out.contains("export v: a#v, iops=100,burst=100ms, vhost-user at vm.sock\n"),
        "{}",
        said.out
    );
    // Several exports may share a file if all of them are read-only.
    let twice = device("d", "file:b.img") + "read_only = true\n" + &device("e", "file:b.img") + "read_only = true\n";
    let said = check(&dir, &(GOOD.to_owned() + &twice));
    assert_eq!(said.code, 0, "{}", said.out);
}

#[test]
fn certificates_are_looked_at() {
    let dir = dir();
    let authority = Authority::new();
    let of = |from: i64, until: i64| authority.issue_for_days(&format!("{from}-{until}"), "server", (from, until));
    let config = |at: &std::path::Path| {
        let (certificate, key) = (at.join("server-cert.pem"), at.join("server-key.pem"));
        let (certificate, key) = (certificate.display(), key.display());
        format!("listen = [\"unix:s\"]\n[[tls]]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n{}", &GOOD[27..])
    };
    for (from, until, code, words) in [
        (-30, -2, 1, "line 3: not served: "),
        (2, 30, 1, "is not valid yet"),
        (-30, 5, 0, "expires in "),
        (-30, 60, 0, "all of it would be served"),
    ] {
        let at = of(from, until);
        let said = check(&dir, &config(&at));
        assert!(said.code == code && said.out.contains(words), "{from} {until} {}\n{}", said.code, said.out);
        assert!(said.out.contains("every user of this machine can read the key"), "{}", said.out);
        std::fs::set_permissions(at.join("server-key.pem"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .expect("set");
        let said = check(&dir, &config(&at));
        assert!(!said.out.contains("can read the key"), "{}", said.out);
    }
    // The key belongs to another certificate.
    let (one, other) = (of(-30, 61), of(-30, 62));
    std::fs::copy(other.join("server-key.pem"), one.join("server-key.pem")).expect("copied");
    let said = check(&dir, &config(&one));
    assert!(said.code == 2 && said.out.contains("certificate or key: keys may not be consistent"), "{}", said.out);
}
