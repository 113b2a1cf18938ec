//! The alert rules and the dashboard of `docs/monitoring`: Prometheus accepts them, and `/metrics` has the series that
//! they name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sheave_testkit::require;

use crate::daemon::{BOTH, Daemon, Nbd, pools};

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name)
}

/// Runs promtool, which must succeed. Returns `None` if promtool is not installed.
fn promtool(arguments: &[&str], file: &Path) -> Option<()> {
    let mut command = Command::new(require("promtool")?);
    let said = command.args(arguments).arg(file).current_dir(page("")).output().expect("it runs");
    let words = [said.stdout, said.stderr].concat();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&words));
    Some(())
}

/// Returns the names of Sheave's series that occur in a text.
fn series(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let names = text.split(|letter: char| !is_part(letter)).filter(|name| name.starts_with("sheave_"));
    names.map(str::to_owned).collect()
}

/// Returns all queries of the dashboard, each with the title of its panel.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().expect("a list of panels");
    let of = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().expect("a list of queries").clone();
        assert!(!targets.is_empty(), "{title} asks nothing");
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().expect("a query").to_owned()))
    };
    panels.iter().flat_map(of).collect()
}

#[test]
fn the_alert_rules_are_read_and_do_what_they_say() {
    let Some(()) = promtool(&["check", "rules"], &page("alerts.yml")) else { return };
    promtool(&["test", "rules"], &page("alerts-test.yml"));
}

#[test]
fn the_dashboard_is_one_that_grafana_and_prometheus_read() {
    let dashboard = std::fs::read_to_string(page("dashboard.json")).expect("read");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    for (field, is_right) in [
        ("uid", dashboard["uid"].as_str().is_some_and(|uid| (1..=40).contains(&uid.len()))),
        ("title", dashboard["title"].is_string()),
        ("schemaVersion", dashboard["schemaVersion"].as_u64() >= Some(36)),
        ("templating", dashboard["templating"]["list"].is_array()),
        ("time", dashboard["time"]["from"].is_string()),
    ] {
        assert!(is_right, "{field}: {}", dashboard[field]);
    }
    let panels = dashboard["panels"].as_array().expect("a list");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{title}: its number is taken");
        assert!(["stat", "table", "timeseries"].iter().any(|kind| panel["type"] == *kind), "{title}");
        assert!(panel["fieldConfig"]["defaults"].is_object() && panel["options"].is_object(), "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a number"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is beyond the grid");
        for cell in (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row))) {
            assert!(taken.insert(cell), "{title} lies on another panel");
        }
        let letters: BTreeSet<_> =
            panel["targets"].as_array().expect("a list").iter().map(|target| target["refId"].as_str()).collect();
        assert_eq!(letters.len(), panel["targets"].as_array().expect("a list").len(), "{title}");
    }
    // promtool checks rules, so each query becomes a rule, with values for the variables of the dashboard.
    let known: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|variable| variable["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(known, BTreeSet::from(["datasource", "instance", "job"]));
    let rule = |(at, (title, query)): (usize, (String, String))| {
        let query = query.replace("$__rate_interval", "5m").replace("$job", "sheave").replace("$instance", ".+");
        assert!(!query.contains('$'), "{title}: {query} has an unknown variable");
        json!({ "record": format!("panel:{at}"), "expr": query })
    };
    let rules: Vec<Value> = queries(&dashboard).into_iter().enumerate().map(rule).collect();
    let dir = tempfile::tempdir().expect("a directory");
    // promtool reads YAML, and JSON is valid YAML.
    let groups = json!({ "groups": [{ "name": "panels", "rules": rules }] });
    std::fs::write(dir.path().join("rules.yml"), groups.to_string()).expect("written");
    promtool(&["check", "rules"], &dir.path().join("rules.yml"));
}

#[test]
fn rules_and_dashboard_name_what_the_daemon_tells() {
    let Some(dir) = pools() else { return };
    let daemon =
        Daemon::start(&dir, &format!("web = \"0\"\n{BOTH}").replace("path = \"b.img\"", "path = \"gone.img\""));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    let metrics = crate::web::get(&daemon, "/metrics");
    let told = series(&metrics);
    let alerts = std::fs::read_to_string(page("alerts.yml")).expect("read");
    let dashboard = std::fs::read_to_string(page("dashboard.json")).expect("read");
    let named = series(&alerts).into_iter().chain(series(&dashboard));
    let missing: Vec<String> = named.filter(|name| !told.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in\n{metrics}");
    daemon.end();
}
