//! A daemon whose control socket is not in the runtime directory, and the messages of commands about it.

use serde_json::json;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};

#[test]
fn pools_of_a_daemon_elsewhere_are_reached_by_its_control_socket() {
    let Some(dir) = pools() else { return };
    dir.ok("pool create free.img --size 64M");
    let daemon = Daemon::start(&dir, &format!("{BOTH}\n[control]\npath = \"else.sock\"\n"));
    // Without --control the pool is in use, and the error says how to reach the daemon.
    let said = ask(&dir, "volume list a.img");
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.err.contains("is in use") && said.err.contains("is named by --control PATH"), "{}", said.err);

    for line in [
        "volume create a.img#w --size 4M --control else.sock",
        "volume --control else.sock snapshot a.img#w s",
        "pool info a.img --control else.sock",
        "pool trim a.img --control=else.sock --progress none",
    ] {
        let said = ask_ok(&dir, line);
        assert!(said.err.contains("a.img is served: asking 'sheave serve'"), "{line}\n{}", said.err);
        // --quiet suppresses the note, because cron mails every line that a job prints.
        let said = ask(&dir, &format!("--quiet {}", line.replace("#w --size", "#x --size").replace("#w s", "#w t")));
        assert!(said.code == 0 && said.err.is_empty(), "{line}\n{}", said.err);
    }
    let said = ask(&dir, "pool scrub a.img -q --control else.sock");
    assert!(said.code == 0 && said.err.is_empty(), "{}", said.err);
    // Errors are printed even with --quiet.
    let said = ask(&dir, "volume create a.img#w --size 4M --control else.sock -q");
    assert!(said.code != 0 && said.err.contains("there is a volume 'w' already"), "{}", said.err);
    // A pool that no process has open is opened by the command itself. A socket without a server is always an error.
    ask_ok(&dir, "pool info free.img --control else.sock");
    let said = ask(&dir, "pool info free.img --control none.sock");
    assert!(said.code == 1 && said.err.contains("no server answers at none.sock"), "{}", said.err);
    daemon.end();
}

#[test]
fn what_changes_a_server_tells_programs_what_was_done() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let id = ask_ok(&dir, "client list --json").json()["clients"][0]["id"].clone();
    for (line, expected) in [
        ("export add ram:size=1M --name x --json".to_owned(), json!({ "done": "added", "export": "x" })),
        (
            "--json export limit x iops=1.5k".into(),
            json!({ "done": "limited", "export": "x", "limit": "iops=1500,burst=100ms" }),
        ),
        ("export limit x off --json".into(), json!({ "done": "limited", "export": "x", "limit": null })),
        ("export limit x --json".into(), json!({ "done": "shown", "export": "x", "limit": null })),
        ("export remove x -f --json".into(), json!({ "done": "removed", "export": "x" })),
        (format!("client disconnect {id} --json"), json!({ "done": "disconnected", "clients": [id] })),
        ("trace stop --json".into(), json!({ "done": "stopped" })),
    ] {
        assert_eq!(ask_ok(&dir, &line).json(), expected, "{line}");
    }
    let started = ask_ok(&dir, "trace start --json").json();
    assert!(started["done"] == "started" && started["reactors"] == 2, "{started}");
    let exported = ask_ok(&dir, "trace export --chrome t.json --json").json();
    assert!(exported["files"] == json!(["t.json"]) && exported["traces"].as_array().is_some_and(|t| t.len() == 2));
    drop(client);
    daemon.end();
}
