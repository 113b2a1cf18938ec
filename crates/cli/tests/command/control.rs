//! The control socket of a daemon: calls by programs, and calls by users without permission.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::{Dir, Said};

/// Calls a method of the daemon in plain bytes over the control socket. Returns the reply.
pub fn call(dir: &Dir, method: &str, parameters: &Value) -> Value {
    let mut stream = UnixStream::connect(dir.path("run/control.sock")).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let call = json!({ "method": method, "parameters": parameters }).to_string();
    stream.write_all(&[call.as_bytes(), &[0]].concat()).expect("sent");
    let mut reply = Vec::new();
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && byte[0] != 0 {
        reply.push(byte[0]);
    }
    serde_json::from_slice(&reply).expect("JSON")
}

/// Exports are listed while the device of another export waits for its silent storage (D2).
#[test]
fn exports_are_told_while_the_device_of_another_is_silent() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    // The server accepts connections and sends nothing until the test is over.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let spec = format!("nbd:127.0.0.1:{}", silent.local_addr().expect("bound").port());
    std::thread::scope(|scope| {
        let (dir, daemon) = (&dir, &daemon);
        let adds = scope.spawn(move || call(dir, "io.sheave.Control.AddExport", &json!({ "name": "n", "spec": spec })));
        let (connection, _) = silent.accept().expect("the daemon asks it");
        let from = Instant::now();
        let rows = call(dir, "io.sheave.Control.ListExports", &json!({}));
        assert!(rows["parameters"]["exports"].is_array(), "{rows}");
        ask_ok(dir, "export remove va");
        assert!(from.elapsed() < Duration::from_secs(5), "{:?}: it waits for the server", from.elapsed());
        assert!(!adds.is_finished(), "{}", daemon.said());
        drop((connection, silent));
        let reply = adds.join().expect("no panic");
        assert!(reply["error"].is_string(), "{reply}");
    });
    daemon.end();
}

#[test]
fn every_method_of_the_definition_is_there_and_wrong_parameters_are_refused() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let asked = json!({ "interface": "io.sheave.Control" });
    let idl = call(&dir, "org.varlink.service.GetInterfaceDescription", &asked)["parameters"]["description"].clone();
    let idl = idl.as_str().expect("a text");
    let methods: Vec<&str> = idl.lines().filter_map(|line| line.strip_prefix("method ")?.split('(').next()).collect();
    assert!(methods.len() > 20, "{methods:?}");
    for method in methods {
        let reply = call(&dir, &format!("io.sheave.Control.{method}"), &json!({ "nonsense": [1, {}] }));
        assert_eq!(reply["error"], "org.varlink.service.InvalidParameter", "{method}: {reply}");
    }
    let reply = call(&dir, "io.sheave.Control.Nonsense", &json!({}));
    assert_eq!(reply["error"], "org.varlink.service.MethodNotFound");
    let reply = call(&dir, "io.sheave.Control.GetPoolInfo", &json!({ "pool": "none" }));
    assert_eq!(
        (&reply["error"], &reply["parameters"]["kind"]),
        (&json!("io.sheave.Control.Refused"), &json!("failed"))
    );
    assert!(reply["parameters"]["fix"].is_string(), "{reply}");
    // Invalid numbers and names.
    for (method, parameters) in [
        ("CreateVolume", json!({ "pool": "a", "volume": "../x", "size_bytes": 4096 })),
        ("CreateVolume", json!({ "pool": "a", "volume": "x", "size_bytes": u64::MAX })),
        ("CreateVolume", json!({ "pool": "a", "volume": "x", "size_bytes": -1 })),
        ("CreateVolume", json!({ "pool": "a", "volume": "y", "size_bytes": 4095 })),
        ("MapVolume", json!({ "pool": "a", "volume": "v", "offset_bytes": u64::MAX, "length_bytes": u64::MAX })),
        ("DeleteVolumes", json!({ "pool": "a", "volumes": [] })),
        ("AddExport", json!({ "name": "", "spec": "ram:size=1M" })),
        ("AddExport", json!({ "name": "x", "spec": "/etc/passwd" })),
        ("AddExport", json!({ "name": "x", "spec": "ram:size=1M", "pool": "a" })),
        ("ImportVolume", json!({ "pool": "a", "volume": "x" })),
        ("DisconnectClient", json!({ "id": 99 })),
        ("GrowPool", json!({ "pool": "a", "spec": "ram:size=64M" })),
        ("GrowPool", json!({ "pool": "a", "spec": "x.img+y.img" })),
        ("GrowPool", json!({ "pool": "a", "spec": "file:/etc/passwd" })),
        ("GrowPool", json!({ "pool": "none", "spec": "file:x.img" })),
        ("LimitExport", json!({ "name": "va", "limit": "iops=0" })),
        ("LimitExport", json!({ "name": "none", "limit": "iops=1" })),
    ] {
        let reply = call(&dir, &format!("io.sheave.Control.{method}"), &parameters);
        let refused = reply["error"].is_string() || reply["parameters"]["extents"] == json!([]);
        assert!(refused, "{method} {parameters}: {reply}");
    }
    assert_eq!(ask_ok(&dir, "volume list a.img --json").json()["volumes"].as_array().map(Vec::len), Some(1));
    daemon.end();
}

#[test]
fn a_limit_changes_while_clients_stay_and_a_reload_sets_that_of_the_configuration() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, &BOTH.replace("name = \"va\"", "name = \"va\"\nlimit = \"iops=5000\""));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(ask_ok(&dir, "export limit va").out, "va: iops=5000,burst=100ms\n");
    assert_eq!(ask_ok(&dir, "export limit vb").out, "vb: no limit\n");
    assert_eq!(ask_ok(&dir, "export limit va iops=20,burst=10ms").out, "va: iops=20,burst=10ms\n");
    let from = Instant::now();
    (0..11).for_each(|_| assert_eq!(client.write(0, &[1; 512]), Some(0)));
    // The first write starts at once, the others at a rate of 20 per second.
    assert!(from.elapsed() >= Duration::from_millis(450), "{:?}", from.elapsed());
    assert!(ask_ok(&dir, "export list").out.contains("a#v, iops=20,burst=10ms\n"));
    ask_ok(&dir, "export limit va off");
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!((&rows["exports"][0]["limit"], &rows["exports"][0]["clients"]), (&Value::Null, &json!(1)));
    for (line, code) in [("export limit va iops=0", 2), ("export limit va fast", 2), ("export limit none off", 1)] {
        assert_eq!(ask(&dir, line).code, code, "{line}");
    }
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    assert_eq!(ask_ok(&dir, "export limit va").out, "va: iops=5000,burst=100ms\n");
    assert_eq!(client.write(0, &[2; 512]), Some(0));
    daemon.end();
}

/// A user whom the socket's mode lets connect may call methods that read. Only admins may change anything.
#[test]
fn a_user_without_rights_looks_and_changes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let Some(dir) = pools() else { return };
    if !std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0) {
        return sheave_testkit::skip("only root can run a command as another user");
    }
    for path in ["", "run"] {
        std::fs::set_permissions(dir.path(path), std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    std::fs::copy(assert_cmd::cargo::cargo_bin!("sheave"), dir.path("sheave")).expect("copied");
    let nobody = |line: &str| {
        let mut command = Command::new(dir.path("sheave"));
        command.args(line.split_whitespace()).current_dir(dir.path("")).uid(65534).gid(65534);
        Said::of(command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).output().expect("it runs"))
    };
    let open = "\n[control]\nmode = \"0666\"\n";
    let daemon = Daemon::start(&dir, &(BOTH.to_owned() + open));
    assert_eq!(nobody("export list --json").json()["exports"][0]["name"], "va");
    for line in ["export remove va", "export add ram:size=1M --name x", "export limit va iops=1", "client disconnect 1"]
    {
        let refused = nobody(line);
        let words = "lets this user look, and change nothing";
        assert!(refused.code == 1 && refused.err.contains(words), "{line}: {}", refused.err);
    }
    assert_eq!(ask_ok(&dir, "export list --json").json()["exports"].as_array().map(Vec::len), Some(2));
    daemon.end();
    // `admin_uids` makes the user an admin.
    let daemon = Daemon::start(&dir, &(BOTH.to_owned() + open + "admin_uids = [65534]\n"));
    assert_eq!(nobody("export remove va").code, 0);
    daemon.end();
    // Without `mode` other users cannot connect.
    let daemon = Daemon::start(&dir, BOTH);
    let refused = nobody("export list --control run/control.sock");
    assert!(refused.code == 1 && refused.err.contains("Permission denied"), "{}", refused.err);
    daemon.end();
}

/// The Python client of the varlink project, if it is installed.
#[test]
fn a_varlink_client_that_others_wrote_is_answered() {
    let Some(dir) = pools() else { return };
    let Some(mut command) = sheave_testkit::python::require("varlink") else { return };
    let mut python =
        |script: &str| Said::of(command.arg("-c").arg(script).current_dir(dir.path("")).output().expect("it runs"));
    let daemon = Daemon::start(&dir, BOTH);
    let said = python(
        "
import varlink
with varlink.Client(address='unix:run/control.sock') as client:
    assert 'io.sheave.Control' in client.get_interfaces()
    with client.open('io.sheave.Control') as control:
        print(control.ListExports()['exports'][0]['name'])
        control.CreateSnapshot(pool='a', volume='v', name='s')
        print([v['name'] for v in control.ListVolumes(pool='a')['volumes']])
        for reply in control.ScrubPool(pool='a', _more=True):
            last = reply
        print(last['report']['found'])
        try:
            control.CreateSnapshot(pool='a', volume='none', name='t')
        except varlink.VarlinkError as error:
            print(error.error(), error.parameters()['cause'])
",
    );
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let words = ["va\n", "['s', 'v']\n", "0\n", "io.sheave.Control.Refused there is no volume 'none'"];
    assert!(words.iter().all(|word| said.out.contains(word)), "{}", said.out);
    // The command-line client of the same package.
    let cli = |line: &str| {
        let mut command = sheave_testkit::python::python();
        command.args(["-m", "varlink.cli"]).args(line.split_whitespace()).current_dir(dir.path(""));
        Said::of(command.output().expect("it runs"))
    };
    let said = cli("help unix:run/control.sock/io.sheave.Control");
    assert!(said.out.contains("method CreateSnapshot"), "{}{}", said.out, said.err);
    let said = cli("call unix:run/control.sock/io.sheave.Control.ListExports {}");
    assert!(said.out.contains("\"name\": \"va\""), "{}{}", said.out, said.err);
    daemon.end();
}

/// Starts a Python script as the user nobody. Returns `None` if that is not possible.
pub fn python_as_nobody(dir: &Dir, script: &str) -> Option<std::process::Child> {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    for path in ["", "run"] {
        std::fs::set_permissions(dir.path(path), std::fs::Permissions::from_mode(0o777)).expect("set");
    }
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).current_dir(dir.path("")).uid(65534).gid(65534);
    command.stdout(std::process::Stdio::piped());
    command.spawn().map_err(|error| sheave_testkit::skip(&format!("python3 as another user: {error}"))).ok()
}

#[test]
fn who_may_only_look_is_refused_all_else_and_takes_a_share_of_the_places() {
    let Some(dir) = pools() else { return };
    let open = "\n[control]\nmode = \"0666\"\n";
    let daemon = Daemon::start(&dir, &(BOTH.to_owned() + open));
    let asked = json!({ "interface": "io.sheave.Control" });
    let idl = call(&dir, "org.varlink.service.GetInterfaceDescription", &asked)["parameters"]["description"].clone();
    let idl = idl.as_str().expect("a text");
    let all = idl.lines().filter_map(|line| line.strip_prefix("method ")?.split('(').next());
    let looks = |name: &str| ["Get", "List", "Map", "Compare", "Watch"].iter().any(|verb| name.starts_with(verb));
    let changes: Vec<&str> = all.filter(|name| !looks(name)).collect();
    assert!(changes.len() > 14, "{changes:?}");
    let script = format!(
        "
import json, socket, time
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect('run/control.sock')
    return s
for name in {changes:?}:
    s = connect()
    call = dict(method='io.sheave.Control.' + name, parameters=dict(pool='a', volume='v'))
    s.sendall(json.dumps(call).encode() + b'\\0')
    assert b'org.varlink.service.PermissionDenied' in s.recv(4096), name
    s.close()
def is_open(s):
    s.settimeout(0.01)
    try:
        return s.recv(1) != b''
    except TimeoutError:
        return True
    except ConnectionError:
        return False
for tries in range(20):
    # The daemon has to hear of the ends of the last connections, and to close those that are too many.
    time.sleep(0.2 * (tries + 1))
    all = [connect() for _ in range(100)]
    time.sleep(0.5 * (tries + 1))
    places = sum(map(is_open, all))
    if places == 32:
        break
    for s in all:
        s.close()
print(places, flush=True)
time.sleep(60)
"
    );
    let Some(mut nobody) = python_as_nobody(&dir, &script) else { return };
    let mut said = String::new();
    let mut out = std::io::BufReader::new(nobody.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut out, &mut said).expect("it says");
    assert_eq!(said.trim(), "32", "clients that may only look, at a time");
    ask_ok(&dir, "export list");
    nobody.kill().expect("it runs");
    nobody.wait().expect("it ends");
    daemon.end();
}

/// Another user's server claims to hold the pool. Commands must not call it or pass it a file.
#[test]
fn a_server_of_another_user_is_not_believed() {
    let Some(dir) = pools() else { return };
    let mut held = crate::sheave::sheave("serve a.img#v --nbd unix:nbd.sock");
    let said = dir.path("said");
    held.current_dir(dir.path("")).stderr(std::fs::File::create(&said).expect("made"));
    let mut daemon = Daemon { child: held.spawn().expect("it runs"), said };
    daemon.until_it_says("serving ");
    let script = "
import json, os, socket
s = socket.socket(socket.AF_UNIX)
s.bind('run/control-evil.sock')
s.listen(5)
print('listens', flush=True)
meta = os.stat('a.img')
row = dict(name='a', place='a.img', read_only=False, devices=[dict(device=meta.st_dev, inode=meta.st_ino)])
while True:
    c = s.accept()[0]
    while c.recv(65536):
        print('asked', flush=True)
        c.sendall(json.dumps(dict(parameters=dict(pools=[row]))).encode() + b'\\0')
";
    let Some(mut nobody) = python_as_nobody(&dir, script) else { return };
    let mut out = std::io::BufReader::new(nobody.stdout.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("it says");
    assert_eq!(line, "listens\n");
    // Root could connect to that server, but must not.
    for command in ["volume list a.img", "volume snapshot a.img#v s", "export list"] {
        let said = crate::daemon::ask(&dir, command);
        assert!(said.code == 1 && !said.err.contains("is served"), "{command}: {}", said.err);
    }
    nobody.kill().expect("it runs");
    nobody.wait().expect("it ends");
    let mut asked = String::new();
    out.read_to_string(&mut asked).expect("read");
    assert_eq!(asked, "", "it was asked");
    daemon.end();
}
