//! A user other than root who is an admin of root's daemon (`admin_uids`): the daemon must not open files for this user
//! with its own rights. The daemon is not confined here, so that only its own checks can refuse the user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::control::{call, python_as_nobody};
use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};
use crate::sheave::{Dir, Said};

const LISTED: &str = "\n[control]\nmode = \"0666\"\nadmin_uids = [65534]\n";

/// Starts a daemon of root with the user nobody in `admin_uids`. Returns `None` if the test does not run as root.
fn listing() -> Option<(Dir, Daemon)> {
    let dir = pools()?;
    if std::fs::metadata("/proc/self").expect("proc").uid() != 0 {
        sheave_testkit::skip("only root can run a command as another user");
        return None;
    }
    let secret = dir.path("secret.img");
    std::fs::write(&secret, vec![b'k'; 1 << 20]).expect("written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("set");
    let daemon = Daemon::start(&dir, &format!("confine = false\n{BOTH}{LISTED}"));
    Some((dir, daemon))
}

/// Runs a Python script as the user nobody, with the function `call(method, parameters, descriptors)`. Returns its
/// stdout.
fn nobody_prints(dir: &Dir, script: &str) -> Option<String> {
    let script = format!(
        "
import json, os, socket
def call(method, parameters, fds=[]):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect('run/control.sock')
    data = json.dumps(dict(method='io.sheave.Control.' + method, parameters=parameters)).encode() + b'\\0'
    socket.send_fds(s, [data], fds)
    reply = b''
    while not reply.endswith(b'\\0'):
        reply += s.recv(65536)
    return json.loads(reply[:-1])
def cause(*args):
    reply = call(*args)
    return reply['parameters'].get('cause', 'well') if 'error' in reply else 'well'
{script}"
    );
    let said = python_as_nobody(dir, &script)?.wait_with_output().expect("it ends");
    assert!(said.status.success(), "it failed");
    Some(String::from_utf8(said.stdout).expect("a text"))
}

#[test]
fn a_listed_user_opens_nothing_by_name_at_any_depth_of_a_spec() {
    let Some((dir, daemon)) = listing() else { return };
    let secret = dir.path("secret.img").display().to_string();
    let new = dir.path("run/new.img").display().to_string();
    let specs = [
        format!("file:{secret}"),
        format!("file:{secret},readonly=on"),
        format!("file:{new},size=1M"),
        format!("fault:error=0,over=file:{secret}"),
        format!("partition:size=512,over=file:{secret},readonly=on"),
        format!("linear:over=ram:size=1M+file:{secret}"),
        format!("linear:over=ram:size=1M+fault:seed=1,over=file:{new},size=1M"),
        format!("nbd:unix:{},export=va", dir.path("nbd.sock").display()),
        "nbd:127.0.0.1:1".into(),
        "rbd:p/i".into(),
    ];
    let script = format!(
        "
for (at, spec) in enumerate({specs:?}):
    for read_only in (False, True):
        said = cause('AddExport', dict(name='x%d' % at, spec=spec, read_only=read_only))
        assert 'opens nothing that user 65534 names' in said, (spec, said)
    said = cause('GrowPool', dict(pool='a', spec=spec, overwrite=True))
    assert 'opens nothing that user 65534 names' in said or 'in memory' in said, (spec, said)
for spec in ['/etc/shadow', 'a.img', 'odd:x']:
    assert cause('AddExport', dict(name='x', spec=spec)) != 'well', spec
print(cause('AddExport', dict(name='memory', spec='ram:size=1M')))
print(cause('AddExport', dict(name='volume', pool='a', volume='v')))
"
    );
    let Some(said) = nobody_prints(&dir, &script) else { return };
    assert_eq!(said, "well\nwell\n");
    assert!(!dir.path("run/new.img").exists(), "a file was made as root");
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!(rows["exports"].as_array().map(Vec::len), Some(4), "{rows}");
    // Root may name any file.
    let add = serde_json::json!({ "name": "r", "spec": format!("fault:error=0,over=file:{secret}") });
    let added = call(&dir, "io.sheave.Control.AddExport", &add);
    assert!(added["error"].is_null(), "{added}");
    daemon.end();
}

#[test]
fn a_listed_user_passes_files_that_it_can_open_itself_under_their_own_names() {
    let Some((dir, daemon)) = listing() else { return };
    let script = "
def opened(path, how):
    return [os.open(path, how | os.O_CREAT, 0o644) for _ in range(2)]
os.umask(0)
at = os.path.realpath('run')
own = opened(at + '/own.img', os.O_RDWR)
os.ftruncate(own[0], 64 << 20)
os.symlink('own.img', at + '/link')
def add(name, spec, fds=own, **more):
    return cause('AddExport', dict(name=name, spec=spec, **more), fds)
for path in [at + '/link', os.path.realpath('secret.img'), '/etc/shadow', 'own.img']:
    said = add('x', 'file:' + path)
    assert 'is called' in said, (path, said)
for spec in ['fault:over=file:%s/own.img' % at, 'fault:over=nbd:unix:x', 'ram:size=1M']:
    said = add('x', spec)
    assert 'came' in said, (spec, said)
assert 'is called' in cause('GrowPool', dict(pool='a', spec='file:%s/link' % at), own)
print(add('own', 'file:%s/own.img' % at))
more = opened(at + '/more.img', os.O_RDWR)
print(cause('GrowPool', dict(pool='a', spec='file:%s/more.img,size=64M' % at), more))
";
    let Some(said) = nobody_prints(&dir, script) else { return };
    assert_eq!(said, "well\nwell\n");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "own").expect("it is served");
    assert_eq!(client.write(4096, &[7; 4096]), Some(0));
    assert_eq!(std::fs::read(dir.path("run/own.img")).expect("read")[4096..8192], [7; 4096]);
    drop(client);
    let info = call(&dir, "io.sheave.Control.GetPoolInfo", &serde_json::json!({ "pool": "a" }));
    assert_eq!(info["parameters"]["info"]["members"].as_array().map(Vec::len), Some(2), "{info}");
    daemon.end();
}

/// The command opens files with the rights of its user, and makes new files as this user.
#[test]
fn the_command_of_a_listed_user_makes_and_passes_its_files() {
    let Some((dir, daemon)) = listing() else { return };
    for path in ["", "run"] {
        std::fs::set_permissions(dir.path(path), std::fs::Permissions::from_mode(0o777)).expect("set");
    }
    std::fs::copy(assert_cmd::cargo::cargo_bin!("sheave"), dir.path("sheave")).expect("copied");
    let nobody = |line: &str| {
        let mut command = Command::new(dir.path("sheave"));
        command.args(line.split_whitespace()).current_dir(dir.path("")).uid(65534).gid(65534);
        Said::of(command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).output().expect("it runs"))
    };
    for (line, why) in [
        ("export add file:secret.img --name x", "Permission denied"),
        ("export add file:secret.img,readonly=on --name x", "Permission denied"),
        ("export add fault:error=0,over=file:secret.img --name x", "opens nothing that user 65534 names"),
        ("export add file:none.img --name x", "No such file"),
        ("export add file:new.img,size=1M --name va", "'va'"),
        ("export add file:new.img,size=1000 --name x", "1000"),
    ] {
        let said = nobody(line);
        assert!(said.code != 0 && said.err.contains(why), "{line}: {}", said.err);
    }
    assert!(!dir.path("new.img").exists(), "a file that is not served stays");
    for line in ["export add file:new.img,size=1M --name new", "export add file:sync.img,size=1M,sync=on --name sync"] {
        let said = nobody(line);
        assert_eq!(said.code, 0, "{line}: {}", said.err);
    }
    for (name, file) in [("new", "new.img"), ("sync", "sync.img")] {
        let mut client = Nbd::connect(&dir.path("nbd.sock"), name).expect("it is served");
        assert_eq!(client.write(0, &[3; 512]), Some(0));
        let meta = std::fs::metadata(dir.path(file)).expect("made");
        assert_eq!((meta.uid(), meta.len()), (65534, 1 << 20), "{file}");
    }
    daemon.end();
}
