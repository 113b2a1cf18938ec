//! What is refused before anything stops, each with its reason.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::load::Load;
use crate::rig::{ONE, Rig, until};

/// Asserts that an upgrade is refused with this reason, and `--dry-run` says the same, as text and as JSON.
#[track_caller]
fn is_refused(rig: &Rig, arguments: &str, code: i32, words: &str) {
    let log = rig.said().matches("event=upgrade_failed").count();
    let err = rig.refused(&format!("upgrade {arguments}"), code);
    assert!(err.contains(words), "'{words}' is not in:\n{err}");
    assert_eq!(rig.said().matches("event=upgrade_failed").count(), log, "it had begun\n{}", rig.said());
    let text = rig.ask(&format!("upgrade --dry-run {arguments}"));
    assert_eq!(text.code, code, "{}{}", text.out, text.err);
    assert!(text.out.contains("in the way  ") && text.out.contains(words), "{}{}", text.out, text.err);
    assert!(text.out.ends_with("the server would go on as it is\n"), "{}", text.out);
    let told = rig.ask(&format!("upgrade --dry-run --json {arguments}"));
    assert_eq!(told.code, code, "{}{}", told.out, told.err);
    let told = told.json();
    let causes: Vec<&Value> = told["refused"].as_array().expect("a list").iter().map(|one| &one["cause"]).collect();
    assert!(causes.iter().any(|cause| cause.as_str().is_some_and(|cause| cause.contains(words))), "{told}");
}

#[test]
fn a_configuration_that_lacks_what_is_in_use_is_refused() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let pid = rig.pid();
    let (head, export) = ONE.split_once("[[export]]").expect("there is one");
    let (address, _) = head.split_once("[[pool]]").expect("there is one");
    let other = rig.config("none.toml", &format!("{address}\n[[export]]\nname = \"n\"\nspec = \"null:size=1M\"\n"));
    is_refused(&rig, &other, 2, "none.toml no longer has the pool 'a', which the daemon has open");
    let without = rig.config("e.toml", &format!("{head}[[export]]{}", export.replace("\"va\"", "\"vb\"")));
    is_refused(&rig, &without, 2, "e.toml no longer has the export 'va', which has 1 clients");
    rig.ok("volume create a.img#w --size 16M");
    rig.ok("pool create b.img --size 128M");
    rig.ok("volume create b.img#v --size 16M");
    for (what, config) in [
        ("another volume", ONE.replace("volume = \"v\"", "volume = \"w\"")),
        ("a device", ONE.replace("pool = \"a\"\nvolume = \"v\"", "spec = \"null:size=16M\"")),
        ("other rights", format!("{ONE}read_only = true\n")),
    ] {
        let config = rig.config("s.toml", &config);
        eprintln!("{what}");
        is_refused(&rig, &config, 2, "s.toml has another source or mode of the export 'va', which has 1 clients");
    }
    let other = rig.config("p.toml", &ONE.replace("a.img", "b.img"));
    is_refused(&rig, &other, 2, "p.toml has another pool at the name 'a', which the daemon has open");
    let uuid = rig.ok("pool info b.img --json").json()["uuid"].as_str().expect("a text").to_owned();
    let other = rig.config("u.toml", &ONE.replace("a.img", &format!("uuid:{uuid}")));
    is_refused(&rig, &other, 2, "u.toml has another pool at the name 'a', which the daemon has open");
    let moved = rig.config("l.toml", &ONE.replace("unix:nbd.sock", "unix:moved.sock"));
    is_refused(&rig, &moved, 2, "l.toml no longer has the address unix:nbd.sock, which clients connect to");
    let broken = rig.config("b.toml", "lisen = []");
    is_refused(&rig, &broken, 2, "unknown field `lisen`");
    is_refused(&rig, "--config missing.toml", 1, "missing.toml: No such file or directory");
    assert_eq!(rig.pid(), pid);
    load.goes_on();
    let plan = rig.ok("upgrade --dry-run --json").json();
    assert_eq!((&plan["pools"], &plan["exports"], &plan["clients"]), (&json!(["a"]), &json!(["va"]), &json!(1)));
    assert_eq!((&plan["refused"], &plan["pid"]), (&json!([]), &json!(pid)));
    let text = rig.ok("upgrade --dry-run").out;
    assert!(text.ends_with("nothing is in the way\n"), "{text}");
    assert_eq!(rig.pid(), pid, "a check changes nothing");
    load.end_well(&rig);
    // Nobody uses the export now.
    until("the client is gone", || rig.ok("client list --json").json()["clients"] == json!([]));
    rig.ok(&format!("upgrade {without}"));
    assert!(rig.connect("vb").read(0, 512).is_ok());
    rig.end();
}

#[test]
fn a_daemon_of_one_spec_and_exports_in_memory_are_refused() {
    let Some(rig) = Rig::new(ONE) else { return };
    let rig = rig.run("serve a.img#v --nbd unix:nbd.sock");
    is_refused(&rig, "", 2, "this daemon serves one spec, which its command line names");
    rig.end();
    let Some(rig) = Rig::start(ONE) else { return };
    rig.ok("export add ram:size=1M --name scratch");
    is_refused(&rig, "", 1, "the export 'scratch' is in the memory of the daemon, and would be lost");
    rig.ok("export remove scratch");
    rig.upgrade();
    rig.end();
    let Some(rig) = Rig::start(&format!("{ONE}\n[[export]]\nname = \"m\"\nspec = \"ram:size=1M\"\n")) else { return };
    is_refused(&rig, "", 1, "the export 'm' is in the memory of the daemon, and would be lost");
    rig.end();
}

#[test]
fn a_long_call_under_way_is_named_and_goes_on() {
    let Some(rig) = Rig::start(ONE) else { return };
    let mut command = rig.command("volume import - a.img#i --size 1M");
    let mut import = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let is_busy = || rig.ask("upgrade --dry-run").code == 1;
    until("the import has begun", is_busy);
    is_refused(&rig, "", 1, "is under way at the control socket");
    let mut stdin = import.stdin.take().expect("piped");
    stdin.write_all(&[7; 1 << 20]).expect("sent");
    drop(stdin);
    let ended = import.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    until("nothing is under way", || !is_busy());
    rig.upgrade();
    rig.end();
}

#[test]
fn a_second_upgrade_at_the_same_time_is_refused() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let pid = rig.pid();
    // The new process waits for its configuration, which is a pipe. The command has read it before.
    let pipe = rig.dir.path("new.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let first = rig.begin_with("upgrade --config new.toml", || std::fs::write(&pipe, ONE).expect("read"));
    let new = first.new.expect("it is there");
    until("it has begun", || rig.said().contains("BeginUpgrade"));
    let err = rig.refused("upgrade", 1);
    assert!(err.contains("another upgrade is under way"), "{err}");
    let err = rig.refused("volume create a.img#w --size 1M", 1);
    assert!(err.contains("the daemon is being upgraded"), "{err}");
    load.goes_on();
    std::fs::write(&pipe, ONE).expect("read");
    let said = first.end();
    assert_eq!(said.code, 0, "{}\n{}", said.err, rig.said());
    assert!(rig.pid() == new && new != pid);
    load.end_well(&rig);
    rig.end();
}

#[test]
fn an_admin_without_the_rights_of_the_daemon_gets_none_of_its_descriptors() {
    if std::fs::metadata("/proc/self").expect("proc").uid() != 0 {
        return sheave_testkit::skip("only root can run a command as another user");
    }
    let admin = "[control]\npath = \"control.sock\"\nmode = \"0666\"\nadmin_uids = [65534]\n";
    let Some(rig) = Rig::start(&format!("{ONE}{admin}")) else { return };
    std::fs::set_permissions(rig.dir.path(""), std::fs::Permissions::from_mode(0o755)).expect("set");
    let script = "
import socket
ours, theirs = socket.socketpair()
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect('control.sock')
socket.send_fds(s, [b'{\"method\":\"io.sheave.Control.BeginUpgrade\",\"parameters\":{}}\\0'], [theirs.fileno()])
print(s.recv(65536))
";
    let mut command = Command::new("python3");
    command.args(["-c", script]).current_dir(rig.dir.path("")).uid(65534).gid(65534);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return sheave_testkit::skip(&format!("python3 as another user: {error}")),
    };
    let said = crate::sheave::Said::of(output);
    assert!(said.out.contains("user 65534 has not the rights of the daemon"), "{}{}", said.out, said.err);
    rig.ok("upgrade --control control.sock");
    rig.end();
}
