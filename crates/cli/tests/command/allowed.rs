//! The key `allow` of an export: clients that match it can open the export, and for all others it does not exist.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use sheave_testkit::certificates::Authority;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};
use crate::sheave::{Dir, Said, no_io_uring};

fn own_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc"))
}

/// Sends one option request about an export. Returns the bytes of the reply.
fn answer(dir: &Dir, option: u32, name: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(dir.path("a.sock")).expect("it answers");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("set");
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let data = [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
    let head = [b"IHAVEOPT".as_slice(), &option.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
    stream.write_all(&[[0, 0, 0, 3].as_slice(), &head, &data].concat()).expect("sent");
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("a reply");
    let mut rest = vec![0; u32::from_be_bytes(reply[16..].try_into().expect("four")) as usize];
    stream.read_exact(&mut rest).expect("its data");
    [reply.as_slice(), &rest].concat()
}

/// Returns the names of the exports that `nbdinfo --list` prints, in order.
fn listed(dir: &Dir, address: &str) -> Vec<String> {
    let mut command = Command::new("nbdinfo");
    let said = Said::of(command.args(["--list", address]).current_dir(dir.path("")).output().expect("it runs"));
    let names = said.out.lines().filter_map(|line| line.strip_prefix("export=\"")?.split('"').next());
    names.map(str::to_owned).collect()
}

#[test]
fn an_export_is_there_for_those_alone_whom_a_rule_admits() {
    if no_io_uring() || sheave_testkit::require("nbdinfo").is_none() {
        return;
    }
    let (dir, authority, uid) = (Dir::new(), Authority::new(), own_uid());
    std::fs::create_dir(dir.path("run")).expect("made");
    let (backup, other) = (authority.issue("backup", "backup"), authority.issue("other", "other"));
    let server = authority.server();
    let file = |name: &str| server.join(name).display().to_string();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let mut config = format!(
        "listen = [\"unix:a.sock\", \"unix:b.sock\", \"tcp:127.0.0.1:0\"]\nmetrics = \"127.0.0.1:{free}\"\n\
         [[tls]]\nlisten = [\"tcp:127.0.0.1:0\"]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n",
        file("server-cert.pem"),
        file("server-key.pem"),
        file("ca-cert.pem")
    );
    let mut export = |name: &str, allow: &str| {
        config += &format!("[[export]]\nname = \"{name}\"\nspec = \"ram:size=1M\"\n{allow}\n");
    };
    export("open", "");
    export("mine", &format!("allow = [{{ user = {uid} }}]"));
    export("named", "allow = [{ user = \"nobody\" }, { user = \"root\" }, { group = \"nogroup\" }]");
    export("theirs", &format!("allow = [{{ user = {} }}]", uid + 1));
    export("cert", "allow = [{ certificate = \"backup\" }]");
    export("both", &format!("allow = [{{ user = {} }}, {{ certificate = \"backup\", address = \"::/0\" }}]", uid + 1));
    export("near", "allow = [{ address = \"127.0.0.0/8\" }]");
    export("far", "allow = [{ address = \"192.0.2.0/24\" }]");
    export("b", "allow = [{ listen = \"unix:b.sock\" }]");
    let daemon = Daemon::start(&dir, &config);
    let said = daemon.said();
    let port = said.split("tcp:127.0.0.1:").nth(1).and_then(|at| at.split(' ').next()).expect("it says where");
    let tcp = |who: &Path| format!("nbds://127.0.0.1:{port}/?tls-certificates={}", who.display());
    let named = if uid == 0 { vec!["named"] } else { Vec::new() };
    let local = [vec!["open", "mine"], named].concat();
    assert_eq!(listed(&dir, "nbd+unix:///?socket=a.sock"), local);
    assert_eq!(listed(&dir, "nbd+unix:///?socket=b.sock"), [local, vec!["b"]].concat());
    assert_eq!(listed(&dir, &tcp(&backup)), ["open", "cert", "near"]);
    assert_eq!(listed(&dir, &tcp(&other)), ["open", "near"]);

    // INFO and GO for a forbidden export are answered with the same bytes as for a name that does not exist.
    for option in [6, 7] {
        assert_eq!(answer(&dir, option, "theirs"), answer(&dir, option, "nowher"), "{option}");
    }
    assert!(Nbd::connect(&dir.path("a.sock"), "mine").is_some());
    assert!(Nbd::connect(&dir.path("a.sock"), "b").is_none() && Nbd::connect(&dir.path("b.sock"), "b").is_some());
    let said = daemon.said();
    let refused = said.lines().find(|line| line.contains("event=client_refused") && line.contains("export=theirs"));
    let refused = refused.unwrap_or_else(|| panic!("{said}"));
    for field in [format!("uid={uid}"), format!("pid={}", std::process::id()), "client=".into()] {
        assert!(refused.contains(&field), "{field}: {refused}");
    }
    assert_eq!(said.matches("export=nowher").count(), 0, "who asks for nothing that is there was refused nothing");
    let at = metrics(free);
    assert!(at.contains("sheave_export_refused_clients_total{export=\"theirs\"} 2\n"), "{at}");
    let rules = ask_ok(&dir, "export list --json").json();
    assert_eq!(rules["exports"][5]["allow"][1], "certificate=\"backup\" address=::/0");
    daemon.end();
}

/// Returns the answer of `GET /metrics` at a port.
fn metrics(port: u16) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it answers");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page
}

/// A reload with a new `allow` applies to new connections. A client that has the export open keeps it, and the log
/// names that client.
#[test]
fn a_reload_changes_who_may_open_an_export_from_then_on() {
    let Some(dir) = pools() else { return };
    dir.ok("volume snapshot a.img#v before");
    let mut daemon = Daemon::start(&dir, BOTH);
    let mut has = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is for everybody");
    let only = format!("volume = \"v\"\nallow = [{{ user = {} }}]\n\n[[export]]\nname = \"vb\"", own_uid() + 1);
    std::fs::write(dir.path("c.toml"), BOTH.replacen("volume = \"v\"\n\n[[export]]\nname = \"vb\"", &only, 1))
        .expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    assert_eq!(has.write(0, &[1; 512]), Some(0), "who has it keeps it");
    let said = daemon.said();
    let pid = std::process::id();
    assert!(said.contains(&format!("(process {pid} of user {}) keeps the export 'va'", own_uid())), "{said}");
    assert!(!said.contains("event=export_stays"), "{said}");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "it is for others now");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "").is_none(), "also without its name");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vb").is_some());
    // The rollback ends the export and starts it again. It must come back with the new `allow`.
    drop(has);
    ask_ok(&dir, "volume rollback a.img#v before --yes --force");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "it came back for the same");
    std::fs::write(dir.path("c.toml"), BOTH).expect("written");
    daemon.signal("-HUP");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while Nbd::connect(&dir.path("nbd.sock"), "va").is_none() {
        assert!(std::time::Instant::now() < until, "{}", daemon.said());
    }
    daemon.end();
}

#[test]
fn a_rule_that_means_nothing_is_refused_with_its_line() {
    let dir = Dir::new();
    for (allow, words) in [
        ("[]", "lets nobody in"),
        ("[{}]", "names a user, group, certificate, address or listen"),
        ("[{ user = \"no such user\" }]", "there is no user 'no such user' in /etc/passwd; write its number"),
        ("[{ group = \"no such group\" }]", "there is no group 'no such group'"),
        ("[{ certificate = \"x\" }]", "a [[tls]] with client_ca"),
        ("[{ address = \"192.0.2.1/24\" }]", "behind its prefix"),
        ("[{ listen = \"unix:c\" }]", "unix:c is not among"),
        ("[{ user = 1, address = \"::1\" }]", "no client has both"),
        ("[{ users = 1 }]", "unknown field `users`"),
    ] {
        let config = "listen = [\"unix:a\"]\n[[export]]\nname = \"x\"\nspec = \"ram:size=1M\"\nallow = ";
        std::fs::write(dir.path("c.toml"), format!("{config}{allow}\n")).expect("written");
        let said = dir.run("serve --config c.toml --check");
        assert!(
            said.code == 2 && said.err.contains("c.toml, line 5: ") && said.err.contains(words),
            "{allow}\n{}",
            said.err
        );
    }
}

/// A Unix socket gets the configured mode, owner and group whatever the umask is, with a configuration as well as with
/// options of the command line.
#[test]
fn unix_sockets_are_for_whom_the_configuration_says() {
    use std::os::unix::fs::MetadataExt;
    let Some(dir) = pools() else { return };
    let root = own_uid() == 0;
    let (owner, group) = if root { (65534, 65533) } else { (own_uid(), rustix::process::getegid().as_raw()) };
    let listen = format!(
        "listen = [\"unix:nbd.sock\", {{ address = \"unix:m.sock\", mode = \"0606\" }}, \
         {{ address = \"unix:g.sock\", owner = {owner}, group = {group} }}]"
    );
    let config = BOTH.replace("listen = [\"unix:nbd.sock\", \"unix:other.sock\"]", &listen);
    let daemon = Daemon::start(&dir, &config);
    let look = |name: &str| {
        let found = std::fs::symlink_metadata(dir.path(name)).expect("it is there");
        (found.mode() & 0o777, found.uid(), found.gid())
    };
    assert_eq!(look("m.sock").0, 0o606);
    assert_eq!(look("g.sock"), (0o660, owner, group));
    assert!(Nbd::connect(&dir.path("g.sock"), "va").is_some());
    daemon.end();
    assert!(!dir.path("g.sock").exists(), "it goes with the daemon");

    let serve = |options: &str, run: &str| {
        let mut command = dir.command(&format!("serve ram:size=1M --nbd unix:o.sock {options} --run"));
        Said::of(command.arg(run).output().expect("it runs"))
    };
    let said = serve(&format!("--socket-mode 0600 --socket-group {group}"), "stat -c '%a %g' o.sock");
    assert_eq!((said.code, said.out.trim()), (0, format!("600 {group}").as_str()), "{}", said.err);
    let said = serve("--socket-group no-such-group", "true");
    assert!(said.code == 2 && said.err.contains("there is no group 'no-such-group'"), "{}", said.err);
    let said = serve("--socket-mode 999", "true");
    assert!(said.code == 2 && said.err.contains("three octal digits"), "{}", said.err);
    std::fs::write(dir.path("c.toml"), "listen = [\n{ address = \"tcp:127.0.0.1:0\", mode = \"0660\" }]\n")
        .expect("written");
    let said = dir.run("serve --config c.toml --check");
    assert!(said.code == 2 && said.err.contains("line 2: tcp:127.0.0.1:0 has no mode"), "{}", said.err);
}
